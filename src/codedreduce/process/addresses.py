"""Addresses and ports of this host, and name resolution."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket

from codedreduce.errors import UsageError

#: Ports that are derived from a launch's number, or drawn: below the ephemeral ports of systems (32768 and more), above
#: the ports of services.
FIRST_PORT, PORTS = 20_000, 12_000

#: An address that no host has (RFC 5737): the route to it leads out of this host.
OUTSIDE = "192.0.2.1"


def free_port() -> int:
    """A free port at random, outside the ephemeral range: the system gives it to no other socket before its use."""
    for _ in range(100):
        port = FIRST_PORT + secrets.randbelow(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise UsageError(f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free; set MASTER_PORT to one that is")


def derived_port(number: int) -> int:
    """The port of a launch with this number, the same for all its processes.

    >>> [derived_port(number) for number in (0, 1, 12_000)]
    [20000, 20001, 20000]
    """
    return FIRST_PORT + number % PORTS


def own_address(host: str, port: int) -> str:
    """The address of this host on the route to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port or 1))
        return str(probe.getsockname()[0])


def numeric(host: str, towards: str | None = None) -> str:
    """The address of a name, since ZeroMQ listens only at numeric addresses and interfaces.

    A host's own name may resolve to a loopback address, as Debian's installer writes it into /etc/hosts. The result is
    then the address of this host on the route to `towards`, or out of this host.

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
            f"the name {host!r} resolves to {address} here, where no other host can reach this one: set MASTER_ADDR "
            "to an address of this host that the others reach"
        ) from None


def resolved(host: str) -> str:
    """The address of a name on this host.

    >>> resolved("127.0.0.1")
    '127.0.0.1'
    """
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"the name {host!r} of the rendezvous address is not known on {socket.gethostname()} ({_words(error)}): "
            "set MASTER_ADDR to an address of rank 0's host that all others reach"
        ) from None


def _words(error: Exception) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a name"


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address as written: names are not resolved."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
