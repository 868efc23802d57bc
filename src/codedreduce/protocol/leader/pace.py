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
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median

#: Rounds that are remembered of a rank.
REMEMBERED = 4

#: A rank is known to begin late when it did so in this many rounds.
LAGS_NEEDED = 4

#: A slow rank has recovered when a block takes it at most this many times as long as the others.
RECOVERED_WITHIN = 2.0

#: Values that are remembered of the time by which ranks exceeded what was expected, of all ranks together.
EXCESSES = 64


#: The start time of a rank that had not begun when others had done its work.
NEVER = float("inf")


class Pace:
    """Times of ranks, by rank."""

    def __init__(self, ranks: int) -> None:
        self._blocks: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._lags: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._over: deque[float] = deque(maxlen=EXCESSES)
        self._now: dict[int, tuple[int, float]] = {}  # by rank: blocks done in this round, and seconds per block
        self._usual: float | None = None
        self._spread = 0.0

    def refresh(self) -> None:
        """A round begins: compute the usual pace again. All ranks are looked at only here, not for every message."""
        self._now = {}
        self._usual = _at(0.5, [one for one in map(self.block, range(len(self._blocks))) if one is not None])
        self._spread = _at(0.4, self._over) or 0.0

    def did(self, rank: int, each: float, blocks: int = 1) -> None:
        """A rank has done some blocks, in `each` seconds per block; its blocks of one round count once."""
        known, usual = self.block(rank), self._usual
        if rank in self._now:
            before, took = self._now[rank]
            self._blocks[rank].pop()
            each = (before * took + blocks * each) / (before + blocks)
            blocks += before
        elif known is not None and usual is not None and known > RECOVERED_WITHIN * usual >= each:
            self._blocks[rank].clear()  # it has recovered
        self._now[rank] = (blocks, each)
        self._blocks[rank].append(each)
        if self._usual is None:
            self._usual = each

    def began(self, rank: int, lag: float) -> None:
        """A rank began with its work `lag` seconds into the round."""
        if lag <= self.lag(rank) / RECOVERED_WITHIN:
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
        return min(self._lags[rank]) if len(self._lags[rank]) >= LAGS_NEEDED else 0.0

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


#: A link is slow if its chunks take SLOWER times as long as most others', and longer by this fraction of the round.
SLOWER, OF_A_ROUND = 4.0, 0.15

#: It must be slow in this many rounds in a row: a single delay is not the link.
ROUNDS = 3

#: Times of at least this many ranks must be known: fewer ranks have no majority to compare with.
RANKS = 3


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

    def __init__(self) -> None:
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
        if len(self._took) < RANKS:
            return []
        usual = median(self._took.values())
        slow = [
            rank for rank, took in self._took.items() if took > SLOWER * usual and took - usual > OF_A_ROUND * seconds
        ]
        for rank in list(self._slow):
            if rank in self._took and rank not in slow:
                del self._slow[rank]
        self._slow.update(slow)
        found = sorted(rank for rank, rounds in self._slow.items() if rounds >= ROUNDS)
        for rank in found:
            del self._slow[rank]
        return found
