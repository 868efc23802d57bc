"""Messages between nodes of which each talks to each: one socket a plane, that both listen and are connected.

Two nodes have one connection on each plane. The higher number makes the one for control, the lower the one for data: so
each of the two makes one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import zmq

from codedreduce.errors import CodedReduceError
from codedreduce.protocol import Settings
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.zeromq.carrier import Carrier, Endpoints, Link, name_of
from codedreduce.worlds.zeromq.sessions import CONTROL, DATA
from codedreduce.worlds.zeromq.sockets import Context, Socket, mutual

#: Milliseconds between two looks at whatever else there is to see while connections are awaited.
LOOK_EVERY = 200


class Mesh(Carrier):
    """The sockets of one node that talks to all others; node 0 is the one that the others need."""

    one_at_a_time: ClassVar[bool] = False  # all sums grow at the same time
    at_once: ClassVar[int] = 16

    def __init__(self, context: Context, node: int, settings: Settings, buffers: Buffers) -> None:
        super().__init__(context, node, settings, buffers)
        self._links: dict[int, Link] = {}

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
            self._monitors[monitor] = socket
            found.append(listens_at)
        return Endpoints(*found)

    def connect(self, neighbours: Mapping[int, Endpoints]) -> None:
        """Connect to all others, on one plane each; on the other they connect to this node."""
        for peer, endpoints in neighbours.items():
            plane = CONTROL if peer < self.node else DATA
            link = self._links[peer] = Link(peer, self._process)
            self._reach(link, plane, endpoints[plane])

    def wait_until_connected(self, within: float, look: Callable[[], None]) -> None:
        """Wait until the sessions with all others are up; what they say meanwhile is kept."""
        deadline = time.monotonic() + within
        poller = zmq.Poller()
        for socket in self.sockets + self.monitors:
            poller.register(socket, zmq.POLLIN)
        while away := [peer for peer, link in sorted(self._links.items()) if not link.session.is_up]:
            if time.monotonic() > deadline:
                raise CodedReduceError(f"node {self.node} could not reach nodes {away} within {within:g} s")
            ready = dict(poller.poll(LOOK_EVERY))
            self._news = deque(self.take(ready))
            look()

    def _readers(self) -> Iterator[tuple[Socket, int, Link | None]]:
        for plane, socket in enumerate(self.sockets):
            yield socket, plane, None

    def _link_to(self, peer: int) -> Link:
        return self._links[peer]

    def _link_called(self, name: bytes) -> Link | None:
        return self._links.get(int.from_bytes(name, "big")) if len(name) == 4 else None

    def _way(self, link: Link, plane: int) -> tuple[Socket | None, bytes | None]:
        return self.sockets[plane], name_of(link.peer)
