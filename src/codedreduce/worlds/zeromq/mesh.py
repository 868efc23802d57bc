"""Messages between nodes of which each talks to each: two sockets a node, that both listen and are connected.

Two nodes have one connection on each plane. The higher number makes the one for control, the lower the one for data: so
each of the two has made one, and is told at once, by where it leads, when the other is gone or back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import ClassVar

import zmq

from codedreduce.errors import CodedReduceError
from codedreduce.protocol import Settings
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.zeromq.carrier import CONTROL, DATA, Arrived, Carrier, Endpoints, Unsent, name_of
from codedreduce.worlds.zeromq.sockets import Context, Socket, connections, mutual, reach

#: Messages that are taken from a socket before the others are looked at again.
AT_ONCE = 16

#: As plain numbers, as in `carrier`.
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)

#: Milliseconds between two looks at whatever else there is to see while connections are awaited.
LOOK_EVERY = 200


class Mesh(Carrier):
    """The sockets of one node that talks to all others; node 0 is the one that the others need."""

    one_at_a_time: ClassVar[bool] = False  # all sums grow at the same time

    def __init__(self, context: Context, node: int, settings: Settings, buffers: Buffers) -> None:
        super().__init__(context, node, settings, buffers)
        self._peers: frozenset[int] = frozenset()
        self._leads_to: dict[str, int] = {}  # the connections this node makes, by where they lead
        self._there: dict[int, bool] = {}  # of everyone who was ever there, whether they are
        self._came = 0  # connections that others have made
        self._news: list[tuple[int, bool]] = []  # who came and went while connections were awaited

    @property
    def needs(self) -> int | None:
        """Node 0, which itself needs nobody."""
        return 0 if self.node else None

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind, at any free port of a host, at a name of this machine, or exactly there."""
        found = []
        for address in self._addresses(where):
            socket, monitor, listens_at = mutual(self._context, address, name_of(self.node), f"node {self.node}")
            self.sockets.append(socket)
            self.monitors.append(monitor)
            found.append(listens_at)
        return Endpoints(*found)

    def connect(self, neighbours: Mapping[int, Endpoints]) -> None:
        """Connect to all others, on one plane each; on the other they connect to this node."""
        self._peers = frozenset(neighbours)
        for peer, endpoints in neighbours.items():
            plane = CONTROL if peer < self.node else DATA
            self._leads_to[endpoints[plane]] = peer
            reach(self.sockets[plane], endpoints[plane], name_of(peer))

    def wait_until_connected(self, within: float, look: Callable[[], None]) -> None:
        """Wait until this node is connected to all others, and all others to it."""
        deadline = time.monotonic() + within
        poller = zmq.Poller()
        for monitor in self.monitors:
            poller.register(monitor, zmq.POLLIN)
        while True:
            self._news += self._watch()
            away = sorted(peer for peer in self._peers if not self._there.get(peer, False))
            if not away and self._came >= len(self._peers):
                return
            if time.monotonic() > deadline:
                if away:
                    raise CodedReduceError(f"node {self.node} could not reach nodes {away} within {within:g} s")
                came = f"{self._came} of {len(self._peers)} others"
                raise CodedReduceError(f"only {came} could reach node {self.node} within {within:g} s")
            poller.poll(LOOK_EVERY)
            look()

    def comes_and_goes(self) -> list[tuple[int, bool]]:
        """Whose connection has come (True) or gone (False) since last asked, in that order."""
        news, self._news = self._news, []
        return news + self._watch()

    def _watch(self) -> list[tuple[int, bool]]:
        news = []
        for endpoint, is_there in connections(self.monitors):
            peer = self._leads_to.get(endpoint)
            if peer is None:
                self._came += is_there
            elif is_there != self._there.get(peer, False):  # a connection may also go before it was ever of use
                self._there[peer] = is_there
                news.append((peer, is_there))
        return news

    def _way(self, to: int, plane: int) -> tuple[Socket | None, bytes | None]:
        return self.sockets[plane], name_of(to)

    def _gives_up(self, unsent: Unsent) -> bool:
        """Who is there has yet to connect on the other plane; who is gone, as was told, will start anew."""
        return unsent.to not in self._peers or self._there.get(unsent.to) is False

    def _called(self, name: bytes) -> int | None:
        node = int.from_bytes(name, "big")
        return node if len(name) == 4 and node in self._peers else None

    def receive(self, ready: Container[object]) -> Iterator[Arrived]:
        """Messages of each socket that has some, small messages first; what cannot be read is skipped."""
        for plane, socket in enumerate(self.sockets):
            if socket in ready:
                for _ in range(AT_ONCE):
                    arrived = self._take(socket, plane)
                    if arrived is not None:
                        yield arrived
                    if not int(socket.get(_EVENTS)) & _READABLE:  # costs a tenth of asking all sockets
                        break
