"""The load on the ranks' links in a round, and the time that a vector takes on one link.

A rank's outgoing link carries the partial sums of its parts, one after the other, and then the sum of its stripe, to
all others. A reducer sends a sum when the last partial sum has arrived. A round ends when the link with the most load
is free. The leader learns from that time how long a vector takes.

Until a round has ended, the leader learns it from chunks. A rank sends in a known order. So a chunk of its partial sum
that reaches the leader (`own`) shows how much of the vector has left. The time since the rank reported the part done
shows how long that took. The quickest of several senders counts. While nothing has arrived, the wait for the chunk that
should be first is a lower bound for a vector's time. The bound is at most `unknown` seconds: that chunk may be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

#: Rounds that are remembered. The quickest counts: a sum may be late for reasons other than the vector's length.
REMEMBERED = 32

#: Steps of the bisection that finds a vector's seconds.
HALVINGS = 16


class Links:
    """The outgoing links of all ranks in this round, and a vector's seconds as recent rounds have shown them."""

    def __init__(self, ranks: int, unknown: float = 0.5, own: int = 0) -> None:
        self._ranks = ranks
        self._own = own
        self._unknown = unknown
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.vector: float = 0.0
        self.is_known = False
        self._chunks = 1
        self._keepers_after: Sequence[int] = [0] * ranks  # number of reducers between a rank and `own`
        self._awaited: tuple[float, float] | None = None  # the first chunk: fraction of a vector, since when
        self._kept: Sequence[float] = [0.0] * ranks
        self._sent: list[tuple[int, float]] = []
        self._sent_by: dict[int, list[float]] = {}

    def begin(self, stripes: Sequence[range]) -> None:
        """A round begins, in which the ranks reduce these chunks of the vector."""
        chunks = sum(map(len, stripes)) or 1
        self._kept = [len(stripe) / chunks for stripe in stripes]
        self._sent = []
        self._sent_by = {}
        self._awaited = None
        if not self.is_known:
            self.vector = 0.0
            self._chunks = chunks
            turned = [*stripes[self._own :], *stripes[: self._own]]
            after = list(accumulate((bool(stripe) for stripe in reversed(turned)), initial=0))[-2::-1]
            self._keepers_after = [after[(rank - self._own) % self._ranks] for rank in range(self._ranks)]

    def sends(self, rank: int, now: float) -> None:
        """A rank begins to send a vector."""
        self._sent.append((rank, now))
        if rank != self._own and rank not in self._sent_by and self._kept[self._own] and not self.is_known:
            self.look(now)
            part = self._sent_with(rank, 0)
            if self._awaited is None or part <= self._awaited[0]:
                self._awaited = (part, now)
        self._sent_by.setdefault(rank, []).append(now)

    def came(self, rank: int, position: int, now: float) -> None:
        """A chunk of the leader's stripe has arrived, of the first vector that a rank sends in this round."""
        if self._seconds or rank not in self._sent_by:
            return
        seconds = (now - self._sent_by[rank][0]) / self._sent_with(rank, position)
        self.vector = min(seconds, self.vector) if self.is_known else seconds
        self.is_known = True

    def look(self, now: float) -> None:
        """Raise the lower bound for a vector's time, while the chunk that should be first has not arrived."""
        if not self.is_known and self._awaited is not None:
            part, since = self._awaited
            self.vector = max(self.vector, min(now - since, self._unknown) / part)

    def _sent_with(self, rank: int, position: int) -> float:
        """The fraction of a vector that has left a rank with that chunk of the leader's stripe, if stripes are equal.

        They are equal while no vector's time is known. `Stripes.in_order` defines the order in which chunks are sent.
        """
        others = max(1, self._keepers_after[self._own] + bool(self._kept[self._own]) - 1)
        sent = position * others + self._keepers_after[rank] + 1
        return min(1.0, sent / (self._chunks * (1 - self._kept[rank]) or 1.0))

    def free_at(self, rank: int) -> float:
        """When the partial sums that a rank has sent so far will have left it."""
        free = 0.0
        for when in self._sent_by.get(rank, ()):
            free = max(free, when) + self.vector
        return free

    def end(self, *, at_all: bool = False) -> float:
        """When the sum should be at the leader; or `at_all` ranks, for which the leader must also send its stripe."""
        return self._end(self.vector if self.is_known else 0.0, at_all=at_all)

    def _end(self, vector: float, *, at_all: bool = False) -> float:
        kept = self._kept if at_all else [0.0 if rank == self._own else part for rank, part in enumerate(self._kept)]
        return last_link(self._sent, kept, vector * (self._ranks - 1), vector)

    def resent(self, part: int, of: int, now: float) -> float:
        """When `part` of the vector's `of` chunks should be summed, which all ranks send again to another reducer."""
        again = part / of * self.vector
        return max([now, *map(self.free_at, self._sent_by)]) + again * (len(self._sent) + self._ranks)

    def over(self, units_done: float, now: float) -> None:
        """The sum has arrived: learn how long a vector takes."""
        low, high = 0.0, max(0.0, now - units_done)
        for _ in range(HALVINGS if self._ranks > 1 else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self._end(middle) < now else (low, middle)
        self._learn(high)

    def over_with_help(self) -> None:
        """The sum has arrived, after the leader intervened: only its chunks show how long a vector takes."""
        if self.is_known and not self._seconds:
            self._learn(self.vector)

    def _learn(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self.vector = min(self._seconds)
        self.is_known = True


def last_link(sent: Sequence[tuple[int, float]], kept: Sequence[float], whole: float, vector: float) -> float:
    """When the last link is free, of ranks that began to send vectors at these times, in this order.

    Each rank reduces a part of the sum. One link needs `whole` seconds to send all of the sum to all ranks.

    >>> last_link([(0, 1.0), (1, 1.0), (1, 1.2)], [0.5, 0.5], 1.0, 1.0)
    3.5
    """
    free: dict[int, float] = {}
    last = 0.0
    for rank, when in sent:
        free[rank] = max(free.get(rank, 0.0), when) + vector
        last = max(last, when)
    if not sent:
        return 0.0
    own = max(until + kept[rank] * whole for rank, until in free.items())
    into = sent[0][1] + (max(kept) * (len(sent) - 1) + 1 - max(kept)) * vector
    return max(own, last + max(kept) * whole, into)
