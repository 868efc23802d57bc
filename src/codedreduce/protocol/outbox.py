"""What waits to be sent to one neighbour: a small window in flight, the rest where it can still be taken back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from codedreduce.protocol.events import AnyAction, Transmit
from codedreduce.protocol.messages import AnyChunk
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
