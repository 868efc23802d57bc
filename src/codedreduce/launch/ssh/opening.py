"""Connects to all hosts of a run, and checks that the run can use them, before any process starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from codedreduce.errors import UsageError
from codedreduce.launch.placement import Placement
from codedreduce.launch.ssh.connection import Connection, Hear, Way
from codedreduce.launch.ssh.hosts import SshHost, laid_out
from codedreduce.launch.ssh.over_ssh import OverSsh
from codedreduce.launch.ssh.words import Close, Listen, Reach
from codedreduce.process.addresses import FIRST_PORT, PORTS, is_loopback

#: Attempts to find a port that is free on all hosts.
TRIES = 8


@contextmanager
def open_hosts(hosts: tuple[SshHost, ...], processes: int, way: Way, port: int = 0) -> Iterator[Placement]:
    """Connect to these hosts for a run of `processes` processes, as long as the context is entered."""
    ranks = laid_out(hosts, processes)

    def connect(index: int, hear: Hear) -> Connection:
        return Connection(hosts[index], way, hear)

    starter = OverSsh(connect, ranks)
    try:
        connections = starter.open()
        addresses = _addresses(connections)
        meets_at = _common_port(connections, port)
        _check_reach(connections, addresses, meets_at)
        yield Placement(
            addresses=tuple(addresses[index] for index in ranks), starter=lambda: starter, port=meets_at, inherits=False
        )
    finally:
        starter.end(0.0)


def _each(connections: Sequence[Connection], do: Callable[[Connection], object]) -> None:
    """Call `do` for all connections; raise one error with the reasons of all that fail."""
    failed = []
    for connection in connections:
        try:
            do(connection)
        except UsageError as error:
            failed.append(str(error))
    if failed:
        raise UsageError("\n".join(failed))


def _addresses(connections: Sequence[Connection]) -> list[str]:
    """The address of each host at which ssh reached it: other hosts can reach it there, too."""
    _each(connections, lambda connection: connection.wait_for_hello())
    addresses = [connection.hello.address if connection.hello else "" for connection in connections]
    for connection, address in zip(connections, addresses, strict=True):
        if not address or (is_loopback(address) and len(connections) > 1):
            raise UsageError(
                f"{connection.host.name} is {address or 'at an unknown address'}, where other hosts cannot "
                "reach it: write a name or an address that they can reach"
            )
    return addresses


def _common_port(connections: Sequence[Connection], port: int) -> int:
    """Find a port that is free on all hosts, and have them listen there."""
    for _ in range(TRIES):
        tried = port or random.randrange(FIRST_PORT, FIRST_PORT + PORTS)
        try:
            _each(connections, lambda connection, at=tried: connection.ask(Listen(at)))  # type: ignore[misc]
        except UsageError:
            _each(connections, lambda connection: connection.ask(Close()))
            if port:
                raise
        else:
            return tried
    raise UsageError(f"none of {TRIES} ports tried is free on all hosts; set one with --port")


def _check_reach(connections: Sequence[Connection], addresses: Sequence[str], port: int) -> None:
    """Raise if hosts cannot reach each other, at the rendezvous port and at a port that the system assigns."""
    places = [(address, port) for address in addresses]
    for connection, address in zip(connections, addresses, strict=True):
        places.append((address, connection.ask(Listen(0)).port))
    names = {address: connection.host.name for connection, address in zip(connections, addresses, strict=True)}
    shut: list[str] = []
    for connection in connections:
        for address, at, why in connection.ask(Reach(tuple(places))).unreached:
            shut.append(f"{connection.host.name} cannot reach {names[address]} ({address}) at port {at}: {why}")
    _each(connections, lambda connection: connection.ask(Close()))
    if shut:
        more = f", and {len(shut) - 1} more such connections" if len(shut) > 1 else ""
        raise UsageError(
            f"{shut[0]}{more}. Hosts must accept each other's connections at port {port} (--port sets another), and at "
            "those that the system assigns (cat /proc/sys/net/ipv4/ip_local_port_range)"
        )
