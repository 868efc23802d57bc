"""What waits to be sent to a neighbour: a small window in flight, the rest where it can still be taken back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from codedreduce.protocol.core.events import AnyAction, Transmit
from codedreduce.protocol.core.messages import AnyChunk
from codedreduce.vectors import Vector


class Outbox:
    """Chunks for one neighbour, at most `window` of them in flight.

    Every half window one message is marked; when it has arrived, another half window may go. So a slow link never
    holds a queue of old rounds, and acknowledgements cost one small message for several chunks.
    """

    __slots__ = ("_half", "_peer", "_queue", "_since_mark", "_unanswered")

    def __init__(self, peer: int, window: int) -> None:
        self._peer = peer
        self._half = max(1, window // 2)
        self._queue: OrderedDict[tuple[int, ...], tuple[AnyChunk, Vector]] = OrderedDict()
        self._since_mark = 0
        self._unanswered = 0

    @property
    def in_flight(self) -> int:
        """An upper bound on the chunks sent and not known to have arrived."""
        return self._unanswered * self._half + self._since_mark

    @property
    def waiting(self) -> int:
        """How many chunks wait for the window to open."""
        return len(self._queue)

    def put(self, message: AnyChunk, data: Vector, actions: list[AnyAction]) -> None:
        """Send a chunk now if the window is open, else when it opens; once, however often it is put there."""
        if self._queue or self._unanswered == 2:
            self._queue[message.place] = (message, data)
        else:
            self._send(message, data, actions)

    def drained(self, actions: list[AnyAction]) -> None:
        """A marked chunk has arrived."""
        self._unanswered = max(0, self._unanswered - 1)
        while self._queue and self._unanswered < 2:
            self._send(*self._queue.popitem(last=False)[1], actions)

    def clear(self) -> None:
        """Take back what has not been sent: it is of an old round."""
        self._queue.clear()

    def keep_only(self, wanted: Callable[[AnyChunk], bool]) -> None:
        """Take back what has not been sent and is no longer wanted."""
        for place in [place for place, (message, _) in self._queue.items() if not wanted(message)]:
            del self._queue[place]

    def reset(self) -> None:
        """The connection is new: nothing is in flight."""
        self._queue.clear()
        self._since_mark = self._unanswered = 0

    def _send(self, message: AnyChunk, data: Vector, actions: list[AnyAction]) -> None:
        self._since_mark += 1
        marked = self._since_mark == self._half
        if marked:
            self._since_mark = 0
            self._unanswered += 1
        actions.append(Transmit(to=self._peer, message=message, data=data, marked=marked))


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
