"""The pace of ranks and of their links, as the leader has learnt it.

How long a block takes each rank, and when it begins with the first one:

Of a block's time in the last few rounds the lower middle counts: a rank that is slow now and then is not known to be
slow, one that is slow in most rounds is. Of the times at which a rank began the least counts: stalls in some rounds are
met when they come, and only those in every round are planned for.

Whose link is slow, where vectors are short: seen by how long each rank's vector takes to reach rank 0.

A link that is slow from the first round on is in all that is known of how long sums take, so that nobody is late by
it. But rank 0 keeps a stripe, as the others do, and gets chunks of it from all: a rank whose chunks take several times
as long as most others', and so much that a round is longer by it, several rounds in a row, has a slow link.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median

#: Rounds that are remembered of a rank.
REMEMBERED = 4

#: A rank is known to begin late when it did so in so many rounds.
LAGS_NEEDED = 4

#: A rank that was slow and now does a block within so many times what it takes the others has recovered.
RECOVERED_WITHIN = 2.0

#: Ranks' excess over what was expected of them that is remembered, of all ranks together.
EXCESSES = 64


#: When a rank begins that has not when others have done its work.
NEVER = float("inf")


class Pace:
    """Times of ranks, by rank."""

    def __init__(self, ranks: int) -> None:
        self._blocks: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._lags: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._over: deque[float] = deque(maxlen=EXCESSES)
        self._now: dict[int, tuple[int, float]] = {}  # blocks that ranks have done in this round, and what each took
        self._usual: float | None = None
        self._spread = 0.0

    def refresh(self) -> None:
        """A round begins: what is usual is seen anew. Looking at all ranks is for here, not for every message."""
        self._now = {}
        self._usual = _at(0.5, [one for one in map(self.block, range(len(self._blocks))) if one is not None])
        self._spread = _at(0.4, self._over) or 0.0

    def did(self, rank: int, each: float, blocks: int = 1) -> None:
        """A rank has done some blocks, each in so many seconds; what it did in one round counts once."""
        known, usual = self.block(rank), self._usual
        if rank in self._now:
            before, took = self._now[rank]
            self._blocks[rank].pop()
            each = (before * took + blocks * each) / (before + blocks)
            blocks += before
        elif known is not None and usual is not None and known > RECOVERED_WITHIN * usual >= each:
            self._blocks[rank].clear()  # it was slow, and is no more
        self._now[rank] = (blocks, each)
        self._blocks[rank].append(each)
        if self._usual is None:
            self._usual = each

    def began(self, rank: int, lag: float) -> None:
        """A rank began with its work so many seconds into the round."""
        if lag <= self.lag(rank) / RECOVERED_WITHIN:
            self._lags[rank].clear()  # it began late, and does no more
        self._lags[rank].append(max(0.0, lag))

    def held_up(self, rank: int, blocks: int, after: float) -> None:
        """A rank had done only so many blocks of its work when, so many seconds later, others had done it."""
        known = self.block(rank)
        if not blocks:
            self._lags[rank].append(NEVER)  # nobody knows when it would have
        elif rank not in self._now and (known is None or after / (blocks + 1) > known):
            self._blocks[rank].append(after / (blocks + 1))

    def block(self, rank: int) -> float | None:
        """Seconds that a block takes a rank in most rounds; None if nothing is known of it."""
        return _at(0.5, self._blocks[rank])

    def lag(self, rank: int) -> float:
        """Seconds into a round until a rank begins at best, if that was seen in some rounds; without end if never."""
        return min(self._lags[rank]) if len(self._lags[rank]) >= LAGS_NEEDED else 0.0

    def usual(self) -> float | None:
        """Seconds that a block takes a rank in the middle."""
        return self._usual

    def ended(self, over: float) -> None:
        """A rank was through with its work by so much later than expected, as a part of what was expected."""
        self._over.append(over)

    def spread(self) -> float:
        """How much later than expected the quicker ranks are, as a part of what was expected."""
        return self._spread


def _at(part: float, values: Sequence[float]) -> float | None:
    """The value below which such a part of the values lies.

    >>> _at(0.5, [4.0, 1.0, 2.0, 9.0])
    2.0
    """
    return sorted(values)[int(part * (len(values) - 1))] if values else None


#: So many times as long as at most others, and by such a part of the round.
SLOWER, OF_A_ROUND = 4.0, 0.15

#: In so many rounds in a row: what happens once is not the link.
ROUNDS = 3

#: Of so many ranks at least it must be known: of fewer none is as most others.
RANKS = 3


class Deliveries:
    """How long after a rank had computed its unit all of rank 0's stripe of it had come.

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
        """A rank has computed something, and sends it; the first time counts."""
        self._sent.setdefault(rank, now)

    def came(self, rank: int, now: float) -> None:
        """A chunk of it has come."""
        if rank in self._sent:
            self._took[rank] = now - self._sent[rank]

    def over(self, seconds: float) -> list[int]:
        """The round is over, and took so long; the ranks that are known by now to have a slow link."""
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
