"""The pace of ranks and of their links, as the leader has learnt it.

`Pace`: how long a block takes each rank, and when the rank begins with the first one.

The lower median of a block's time in the last few rounds counts. So a rank that is slow in most rounds counts as slow,
and one that is slow now and then does not. The least of a rank's start times counts. The leader plans only for stalls
that occur in every round, and reacts to the others when they occur.

`Deliveries`: the ranks with a slow link, where vectors are short. The leader measures how long each rank's vector takes
to reach the leader.

A link that is slow from the first round on is part of all measured times of sums. So no rank is late because of it. But
the leader reduces a stripe, as the others do, and gets chunks of it from all ranks. The link of a rank is slow if its
chunks take several times as long as most others', and lengthen the round noticeably, several rounds in a row.

`Links`: the load on the ranks' links in a round, and the time that a vector takes on one link.

A rank's outgoing link carries the partial sums of its parts, one after the other, and then the sum of its stripe, to
all others. A reducer sends a sum when the last partial sum has arrived. A round ends when the link with the most load
is free. The leader learns from that time how long a vector takes.

Until a round has ended, the leader learns it from chunks. A rank sends in a known order. So a chunk of its partial sum
that reaches the leader (`own`) shows how much of the vector has left. The time since the rank reported the part done
shows how long that took. The quickest of several senders counts. While nothing has arrived, the wait for the chunk that
should be first is a lower bound for a vector's time. The bound is at most `unknown` seconds: that chunk may be lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy

#: The start time of a rank that had not begun when others had done its work.
NEVER = float("inf")


class Pace:
    """Times of ranks, by rank."""

    def __init__(self, ranks: int, policy: Policy = DEFAULT_POLICY) -> None:
        self._policy = policy
        self._blocks: list[deque[float]] = [deque(maxlen=policy.rounds_of_pace) for _ in range(ranks)]
        self._lags: list[deque[float]] = [deque(maxlen=policy.rounds_of_pace) for _ in range(ranks)]
        self._over: deque[float] = deque(maxlen=policy.spread_values)
        self._now: dict[int, tuple[int, float]] = {}  # by rank: blocks done in this round, and seconds per block
        self._usual: float | None = None
        self._spread = 0.0

    def refresh(self) -> None:
        """A round begins: compute the usual pace again. All ranks are looked at only here, not for every message."""
        self._now = {}
        self._usual = _at(0.5, [one for one in map(self.block, range(len(self._blocks))) if one is not None])
        self._spread = _at(self._policy.spread_part, self._over) or 0.0

    def did(self, rank: int, each: float, blocks: int = 1) -> None:
        """A rank has done some blocks, in `each` seconds per block; its blocks of one round count once."""
        known, usual = self.block(rank), self._usual
        if rank in self._now:
            before, took = self._now[rank]
            self._blocks[rank].pop()
            each = (before * took + blocks * each) / (before + blocks)
            blocks += before
        elif known is not None and usual is not None and known > self._policy.recovered_within * usual >= each:
            self._blocks[rank].clear()  # it has recovered
        self._now[rank] = (blocks, each)
        self._blocks[rank].append(each)
        if self._usual is None:
            self._usual = each

    def began(self, rank: int, lag: float) -> None:
        """A rank began with its work `lag` seconds into the round."""
        if lag <= self.lag(rank) / self._policy.recovered_within:
            self._lags[rank].clear()  # it no longer begins late
        self._lags[rank].append(max(0.0, lag))

    def held_up(self, rank: int, blocks: int, after: float) -> None:
        """A rank had done only these `blocks` of its work when others had done all of it, `after` seconds later."""
        known = self.block(rank)
        if not blocks:
            self._lags[rank].append(NEVER)  # it is unknown when it would have begun
        elif rank not in self._now and (known is None or after / (blocks + 1) > known):
            self._blocks[rank].append(after / (blocks + 1))

    def block(self, rank: int) -> float | None:
        """Seconds per block of a rank in most rounds; None if not known."""
        return _at(0.5, self._blocks[rank])

    def lag(self, rank: int) -> float:
        """Least seconds into a round until a rank begins, if known from enough rounds, else 0; infinite if never."""
        return min(self._lags[rank]) if len(self._lags[rank]) >= self._policy.lags_needed else 0.0

    def usual(self) -> float | None:
        """Seconds per block of the median rank."""
        return self._usual

    def ended(self, over: float) -> None:
        """A rank finished its work this much later than expected, as a fraction of the expected time."""
        self._over.append(over)

    def spread(self) -> float:
        """How much later than expected the quicker ranks finish, as a fraction of the expected time."""
        return self._spread


def _at(part: float, values: Sequence[float]) -> float | None:
    """The value below which this fraction of the values lies.

    >>> _at(0.5, [4.0, 1.0, 2.0, 9.0])
    2.0
    """
    return sorted(values)[int(part * (len(values) - 1))] if values else None


class Deliveries:
    """The time from when a rank has computed its unit until all of the leader's stripe of it has arrived.

    >>> deliveries = Deliveries()
    >>> for round_ in range(3):
    ...     deliveries.begin()
    ...     for rank in (1, 2, 3):
    ...         deliveries.sends(rank, 1.0); deliveries.came(rank, 2.0 if rank == 3 else 1.1)
    ...     slow = deliveries.over(seconds=2.0)
    >>> slow
    [3]
    """

    def __init__(self, policy: Policy = DEFAULT_POLICY) -> None:
        self._policy = policy
        self._sent: dict[int, float] = {}
        self._took: dict[int, float] = {}
        self._slow: Counter[int] = Counter()  # rounds in a row

    def begin(self) -> None:
        """A round begins."""
        self._sent.clear()
        self._took.clear()

    def sends(self, rank: int, now: float) -> None:
        """A rank has computed a part, and sends it; the first time counts."""
        self._sent.setdefault(rank, now)

    def came(self, rank: int, now: float) -> None:
        """A chunk from a rank has arrived."""
        if rank in self._sent:
            self._took[rank] = now - self._sent[rank]

    def over(self, seconds: float) -> list[int]:
        """The round is over, after `seconds`; return the ranks now known to have a slow link."""
        policy = self._policy
        if len(self._took) < policy.slow_link_ranks:
            return []
        usual = median(self._took.values())
        slow = [
            rank for rank, took in self._took.items()
            if took > policy.slow_link * usual and took - usual > policy.slow_link_round * seconds
        ]  # fmt: skip
        for rank in list(self._slow):
            if rank in self._took and rank not in slow:
                del self._slow[rank]
        self._slow.update(slow)
        found = sorted(rank for rank, rounds in self._slow.items() if rounds >= policy.slow_link_rounds)
        for rank in found:
            del self._slow[rank]
        return found


#: Steps of the bisection that finds a vector's seconds.
HALVINGS = 16


class Links:
    """The outgoing links of all ranks in this round, and a vector's seconds as recent rounds have shown them."""

    def __init__(self, ranks: int, unknown: float = 0.5, own: int = 0, policy: Policy = DEFAULT_POLICY) -> None:
        self._ranks = ranks
        self._own = own
        self._unknown = unknown
        self._seconds: deque[float] = deque(maxlen=policy.vectors_timed)
        self.vector: float = 0.0
        self.is_known = False
        self._chunks = 1
        self._reducers_after: Sequence[int] = [0] * ranks  # number of reducers between a rank and `own`
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
            self._reducers_after = [after[(rank - self._own) % self._ranks] for rank in range(self._ranks)]

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
        others = max(1, self._reducers_after[self._own] + bool(self._kept[self._own]) - 1)
        sent = position * others + self._reducers_after[rank] + 1
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
