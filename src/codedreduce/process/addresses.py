"""Addresses and ports of this machine, and those that names stand for."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket

from codedreduce.errors import UsageError

#: Ports that are derived from a launch's number, or drawn: below those that systems hand out (32768 and more), above
#: those of services.
FIRST_PORT, PORTS = 20_000, 12_000

#: An address that nobody has (RFC 5737): what leads there leads out of this machine.
OUTSIDE = "192.0.2.1"


def free_port() -> int:
    """A port nobody listens at, drawn from those that the system gives no other socket before it is listened at."""
    for _ in range(100):
        port = FIRST_PORT + secrets.randbelow(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise UsageError(f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free; set MASTER_PORT to one that is")


def derived_port(number: int) -> int:
    """The port of a launch that has this number, the same for all its processes.

    >>> [derived_port(number) for number in (0, 1, 12_000)]
    [20000, 20001, 20000]
    """
    return FIRST_PORT + number % PORTS


def own_address(host: str, port: int) -> str:
    """The address this machine has on the way to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port or 1))
        return str(probe.getsockname()[0])


def numeric(host: str, towards: str | None = None) -> str:
    """The address that a name stands for: ZeroMQ listens only at numbers, and interfaces.

    A machine's own name may stand for an address that only this machine has, as Debian's installer writes it into
    /etc/hosts: then it is the one that this machine has on the way to another, or out of here.

    >>> numeric("localhost"), numeric("10.0.0.1")
    ('127.0.0.1', '10.0.0.1')
    """
    if host == "localhost":
        return "127.0.0.1"
    address = resolved(host)
    if not is_loopback(address) or is_loopback(host):
        return address
    try:
        return own_address(resolved(towards) if towards else OUTSIDE, 1)
    except OSError:
        raise UsageError(
            f"the name {host!r} stands for {address} here, where no other machine can reach this one: set MASTER_ADDR "
            "to an address of this machine that the others reach"
        ) from None


def resolved(host: str) -> str:
    """The address that a name stands for on this machine.

    >>> resolved("127.0.0.1")
    '127.0.0.1'
    """
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"the name {host!r}, where the run is to meet, is not known on {socket.gethostname()} ({_words(error)}): "
            "set MASTER_ADDR to an address of rank 0's machine that all others reach"
        ) from None


def _words(error: Exception) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a name"


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine has, as it is written: names are not looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
