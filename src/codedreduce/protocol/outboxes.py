"""A rank's connections to all others: what is on its way over each, and which of them are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from codedreduce.protocol.events import AnyAction
from codedreduce.protocol.messages import AnyChunk
from codedreduce.protocol.outbox import Outbox
from codedreduce.vectors import Vector


class Outboxes:
    """Chunks go over these, a window at a time. Whom a connection is lost to gets nothing until it is found again."""

    def __init__(self, others: Iterable[int], window: int) -> None:
        self._outboxes = {peer: Outbox(peer, window) for peer in others}
        self._lost: set[int] = set()

    def __contains__(self, peer: object) -> bool:
        return peer in self._outboxes

    def put(self, peer: int, message: AnyChunk, data: Vector, actions: list[AnyAction]) -> None:
        """Send a chunk when its turn has come, unless the connection is lost."""
        if peer not in self._lost:
            self._outboxes[peer].put(message, data, actions)

    def drained(self, peer: int, actions: list[AnyAction]) -> None:
        """What was marked has arrived."""
        self._outboxes[peer].drained(actions)

    def lose(self, peer: int) -> None:
        """A connection is lost, and what was on its way with it."""
        self._lost.add(peer)
        self._outboxes[peer].reset()

    def find(self, peer: int) -> None:
        """A connection is new: nothing is on its way."""
        self._lost.discard(peer)
        self._outboxes[peer].reset()

    def lost(self) -> frozenset[int]:
        """Whom the connection is lost to."""
        return frozenset(self._lost)

    @property
    def are_empty(self) -> bool:
        """Whether all that was put there is on its way."""
        return not any(outbox.waiting for outbox in self._outboxes.values())

    def reaches(self, peers: Iterable[int]) -> bool:
        """Whether none of these is lost."""
        return self._lost.isdisjoint(peers)

    def keep_only(self, wanted: Callable[[AnyChunk], bool]) -> None:
        """Take back what has not been sent and is no longer wanted."""
        for outbox in self._outboxes.values():
            outbox.keep_only(wanted)
