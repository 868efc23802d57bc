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
from codedreduce.net.carrier import Carrier, Gone
from codedreduce.net.connections import Endpoints
from codedreduce.net.sessions import CONTROL, DATA
from codedreduce.run.quorum import Gathering


class Transport(Carrier):
    """The sockets of one node of a tree or ring: two that its children connect to, and two connected to its parent.

    In a ring of two the next node is also the previous one: there is a link each way. A peer that connects to the lower
    sockets is a child, whatever its name.
    """

    @property
    def needs(self) -> int | None:
        """The parent, or the next node in the ring; None for a root."""
        return next(iter(self._rights.above), None)

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind for children: at any free port of a host, at a name on this host, or exactly there."""
        endpoints = super().listen(where)
        self._links = {child: self._connections.link(child, kinds) for child, kinds in self._rights.below.items()}
        return endpoints

    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare the link to the parent, or to the next node in the ring. A root has none."""
        for parent in neighbours:
            link = self._links[parent] = self._connections.link_apart(parent, self._rights.above[parent])
            self._reads([(connection.socket, connection.plane, connection) for connection in link.planes])

    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Return at once: messages to the parent wait until it is connected, and children send Hello."""


#: Milliseconds between two calls of `look` while connections are awaited.
LOOK_EVERY = 200


class Mesh(Carrier):
    """The sockets of one node that talks to all others; the others need node 0."""

    one_at_a_time: ClassVar[bool] = False  # all sums grow at the same time
    at_once: ClassVar[int] = 16
    connects_too: ClassVar[bool] = True

    @property
    def needs(self) -> int | None:
        """Node 0; node 0 itself needs none."""
        return 0 if self.node else None

    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare the links to all others. The higher number makes the control connection, the lower the other one."""
        for peer in neighbours:
            if peer not in self._links:
                makes = (CONTROL,) if peer < self.node else (DATA,)
                self._links[peer] = self._connections.link(peer, self._rights.below[peer], makes)

    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Wait until the sessions with all others, or with enough of them, are up; keep what arrives meanwhile."""
        gathering = gathering or Gathering(lambda missing: not missing, time.monotonic())
        deadline = time.monotonic() + within
        poller = zmq.Poller()
        for readable in (*self.sockets, *self.monitors):
            poller.register(readable, zmq.POLLIN)
        while not gathering.may_begin(away := self._away(), time.monotonic()):
            if time.monotonic() > deadline:
                raise CodedReduceError(f"rank {self.node} could not reach ranks {away} within {within:g} s")
            ready = dict(poller.poll(LOOK_EVERY))
            self._news = deque(self.take(ready))
            look()
        for peer in away:  # their sessions start when they connect
            link = self._links[peer]
            link.session.give_up_waiting()
            link.waiting.clear()
            self._news.append(Gone(peer))

    def _away(self) -> list[int]:
        return [peer for peer, link in sorted(self._links.items()) if not link.session.is_up]
