"""The connections of a node.

`Transport`: between neighbours of a tree or ring the parent binds, and children connect, once for each plane. `Mesh`:
between nodes that all talk to each other there is one socket for each plane, which both listens and connects. Two nodes
have one connection on each plane. The node with the higher number makes the control connection, the one with the lower
number the data connection: each makes one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

import zmq

from codedreduce.errors import CodedReduceError
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Carrier, Endpoints, Gone, PeerLink, name_of
from codedreduce.net.keys import Guard
from codedreduce.net.sessions import CONTROL, DATA, PLANES
from codedreduce.net.sockets import Context, Socket, bound, connecting, mutual
from codedreduce.protocol import Settings
from codedreduce.protocol.rights import Rights
from codedreduce.run.quorum import Gathering
from codedreduce.timing import milliseconds


class Transport(Carrier):
    """The sockets of one node of a tree or ring: two that its children connect to, and two connected to its parent.

    In a ring of two the next node is also the previous one: there is a link each way. A peer that connects to the lower
    sockets is a child, whatever its name.
    """

    def __init__(
        self, context: Context, node: int, settings: Settings, buffers: Buffers, rights: Rights,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, node, settings, buffers, rights, guard)
        self._down: list[Socket] = []
        self._up: list[Socket] = []
        self._parent: PeerLink | None = None
        self._children: dict[int, PeerLink] = {}

    @property
    def needs(self) -> int | None:
        """The parent, or the next node in the ring; None for a root."""
        return self._parent.peer if self._parent is not None else None

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind for children: at any free port of a host, at a name on this host, or exactly there."""
        found = []
        for plane, address in enumerate(self._addresses(where).planes):
            limits, keys = self._limits[plane], self._guard
            socket, monitor, listens_at = bound(
                self._context, address, f"rank {self.node}", limits, keys, hands_over=not self._own_key
            )
            self._down.append(socket)
            self._listens(socket, monitor, plane, listens_at)
            found.append(listens_at)
        self._children = {child: self._link(child, kinds) for child, kinds in self._rights.below.items()}
        self._reads(self._down)
        return Endpoints(*found)._replace(key=self._own_key)

    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare the link to the parent, or to the next node in the ring. A root has none."""
        for parent in neighbours:
            self._parent = self._link(parent, self._rights.above[parent])
            for plane in PLANES:
                socket, monitor = connecting(self._context, self._limits[plane])
                self._up.append(socket)
                self._monitors[monitor] = socket
            self._reads(self._up, self._parent)

    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Return at once: messages to the parent wait until it is connected, and children send Hello."""

    def _planes_to(self, peer: int) -> tuple[int, ...]:
        return PLANES if peer == self.needs else ()

    def _link_to(self, peer: int) -> PeerLink:
        if self._parent is not None and peer == self._parent.peer:
            return self._parent
        return self._children[peer]

    def _link_called(self, name: bytes) -> PeerLink | None:
        return self._children.get(int.from_bytes(name, "big")) if len(name) == 4 else None

    def _way(self, link: PeerLink, plane: int) -> tuple[Socket | None, bytes | None]:
        if link is self._parent:
            return self._up[plane], None
        return (self._down[plane], link.called[plane]) if self._down else (None, None)


class Mesh(Carrier):
    """The sockets of one node that talks to all others; the others need node 0."""

    one_at_a_time: ClassVar[bool] = False  # all sums grow at the same time
    at_once: ClassVar[int] = 16

    def __init__(
        self, context: Context, node: int, settings: Settings, buffers: Buffers, rights: Rights,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, node, settings, buffers, rights, guard)
        self._links: dict[int, PeerLink] = {}

    @property
    def needs(self) -> int | None:
        """Node 0; node 0 itself needs none."""
        return 0 if self.node else None

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind: at any free port of a host, at a name on this host, or exactly there."""
        found, sockets = [], []
        addresses = self._addresses(where).planes
        name, owner = b"" if self._own_key else name_of(self.node), f"rank {self.node}"
        for plane, address in enumerate(addresses):
            limits, keys = self._limits[plane], self._guard
            socket, monitor, listens_at = mutual(self._context, address, name, owner, limits, keys)
            sockets.append(socket)
            self._listens(socket, monitor, plane, listens_at)
            found.append(listens_at)
        self._reads(sockets)
        return Endpoints(*found)._replace(key=self._own_key)

    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare the links to all others."""
        for peer in neighbours:
            if peer not in self._links:
                self._links[peer] = self._link(peer, self._rights.below[peer])

    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Wait until the sessions with all others, or with enough of them, are up; keep what arrives meanwhile."""
        gathering = gathering or Gathering(lambda missing: not missing, time.monotonic(), self._timing)
        deadline = time.monotonic() + within
        poller = zmq.Poller()
        for readable in (*self.sockets, *self.monitors):
            poller.register(readable, zmq.POLLIN)
        while not gathering.may_begin(away := self._away(), time.monotonic()):
            if time.monotonic() > deadline:
                raise CodedReduceError(f"rank {self.node} could not reach ranks {away} within {within:g} s")
            ready = dict(poller.poll(milliseconds(self._timing.poll_interval)))
            self._news = deque(self.take(ready))
            look()
        for peer in away:  # their sessions start when they connect
            self._links[peer].session.give_up_waiting()
            self._links[peer].waiting.clear()
            self._news.append(Gone(peer))

    def _away(self) -> list[int]:
        return [peer for peer, link in sorted(self._links.items()) if not link.session.is_up]

    def _planes_to(self, peer: int) -> tuple[int, ...]:
        """Two nodes make one connection each: the higher number on the control plane, the lower on the data plane."""
        if peer not in self._links:
            return ()
        return (CONTROL,) if peer < self.node else (DATA,)

    def _link_to(self, peer: int) -> PeerLink:
        return self._links[peer]

    def _link_called(self, name: bytes) -> PeerLink | None:
        return self._links.get(int.from_bytes(name, "big")) if len(name) == 4 else None

    def _way(self, link: PeerLink, plane: int) -> tuple[Socket | None, bytes | None]:
        return self.sockets[plane], link.called[plane]
