"""Chunks that wait to be sent to a neighbour: a small window is in flight; the rest can still be withdrawn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from codedreduce.protocol.core.events import Actions, Drained, Transmit
from codedreduce.protocol.core.messages import AnyChunk
from codedreduce.vectors import Vector


class Outbox:
    """Chunks for one neighbour, at most `window` of them in flight.

    One message in every half window is marked. When it has arrived, another half window may go. So a slow link never
    holds a queue of old rounds, and one small acknowledgement is enough for several chunks.
    """

    __slots__ = ("_actions", "_half", "_peer", "_queue", "_since_mark", "_unanswered")

    def __init__(self, actions: Actions, peer: int, window: int) -> None:
        self._actions = actions
        self._peer = peer
        self._half = max(1, window // 2)
        self._queue: OrderedDict[tuple[int, ...], tuple[AnyChunk, Vector]] = OrderedDict()
        self._since_mark = 0
        self._unanswered = 0

    @property
    def in_flight(self) -> int:
        """An upper bound on the chunks that were sent and are not known to have arrived."""
        return self._unanswered * self._half + self._since_mark

    @property
    def waiting(self) -> int:
        """The number of chunks that wait for the window to open."""
        return len(self._queue)

    def put(self, message: AnyChunk, data: Vector) -> None:
        """Send a chunk now if the window is open, else when it opens. A chunk that waits already is sent only once."""
        if self._queue or self._unanswered == 2:
            self._queue[message.place] = (message, data)
        else:
            self._send(message, data)

    def drained(self) -> None:
        """A marked chunk has arrived."""
        self._unanswered = max(0, self._unanswered - 1)
        while self._queue and self._unanswered < 2:
            self._send(*self._queue.popitem(last=False)[1])

    def clear(self) -> None:
        """Withdraw all unsent chunks: they are of an old round."""
        self._queue.clear()

    def keep_only(self, wanted: Callable[[AnyChunk], bool]) -> None:
        """Withdraw the unsent chunks that are no longer wanted."""
        for place in [place for place, (message, _) in self._queue.items() if not wanted(message)]:
            del self._queue[place]

    def reset(self) -> None:
        """The connection is new: nothing is in flight."""
        self._queue.clear()
        self._since_mark = self._unanswered = 0

    def _send(self, message: AnyChunk, data: Vector) -> None:
        self._since_mark += 1
        marked = self._since_mark == self._half
        if marked:
            self._since_mark = 0
            self._unanswered += 1
        self._actions.append(Transmit(to=self._peer, message=message, data=data, marked=marked))


class Outboxes:
    """The outboxes for all neighbours. A neighbour with a lost connection gets nothing until it is found again."""

    def __init__(self, actions: Actions, others: Iterable[int], window: int) -> None:
        self._actions = actions
        self._outboxes = {peer: Outbox(self._actions, peer, window) for peer in others}
        self._lost: set[int] = set()

    def __contains__(self, peer: object) -> bool:
        return peer in self._outboxes

    def put(self, peer: int, message: AnyChunk, data: Vector) -> None:
        """Send a chunk when its turn comes, unless the connection is lost."""
        if peer not in self._lost:
            self._outboxes[peer].put(message, data)

    def on_drained(self, event: Drained, now: float) -> None:
        """A marked chunk has arrived at a peer."""
        if event.peer in self._outboxes:
            self._outboxes[event.peer].drained()

    def lose(self, peer: int) -> None:
        """A connection is lost, together with all chunks in flight."""
        self._lost.add(peer)
        self._outboxes[peer].reset()

    def find(self, peer: int) -> None:
        """A connection is new: nothing is in flight."""
        self._lost.discard(peer)
        self._outboxes[peer].reset()

    def lost(self) -> frozenset[int]:
        """The peers with a lost connection."""
        return frozenset(self._lost)

    @property
    def are_empty(self) -> bool:
        """True if no chunk waits for a window."""
        return not any(outbox.waiting for outbox in self._outboxes.values())

    def reaches(self, peers: Iterable[int]) -> bool:
        """True if none of these connections is lost."""
        return self._lost.isdisjoint(peers)

    def keep_only(self, wanted: Callable[[AnyChunk], bool]) -> None:
        """Withdraw the unsent chunks that are no longer wanted."""
        for outbox in self._outboxes.values():
            outbox.keep_only(wanted)
