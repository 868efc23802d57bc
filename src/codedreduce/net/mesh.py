"""The sockets of a node that talks to all others.

There is one socket for each plane, which both listens and connects. Two nodes have one connection on each plane. The
node with the higher number makes the control connection, the one with the lower number the data connection: each makes
one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import zmq

from codedreduce.errors import CodedReduceError
from codedreduce.net.carrier import Carrier, Gone
from codedreduce.run.quorum import Gathering
from codedreduce.timing import milliseconds


class Mesh(Carrier):
    """The messages of one node that talks to all others; the others need node 0."""

    one_at_a_time: ClassVar[bool] = False  # all sums grow at the same time
    at_once: ClassVar[int] = 16
    connects_too: ClassVar[bool] = True

    @property
    def needs(self) -> int | None:
        """Node 0; node 0 itself needs none."""
        return 0 if self.node else None

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
            link = self._links[peer]
            link.session.give_up_waiting()
            link.waiting.clear()
            self._news.append(Gone(peer))

    def _away(self) -> list[int]:
        return [peer for peer, link in sorted(self._links.items()) if not link.session.is_up]
