"""What a coordinator has learnt of its ranks: how long a block takes each, and when it begins with the first one.

Of the last few rounds the lower middle counts: a rank that is slow now and then is not known to be slow, one that is
slow in most rounds is. So stalls in one round of four are met when they come, and those in every round are planned for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: Rounds that are remembered of a rank.
REMEMBERED = 4

#: A rank is known to begin late when it did so in as many rounds.
LAGS_NEEDED = 3

#: A rank that was slow and now does a block within so many times what it takes the others has recovered.
RECOVERED_WITHIN = 2.0

#: Ranks' excess over what was expected of them that is remembered, of all ranks together.
EXCESSES = 64

#: A rank that had done nothing when it was relieved would have begun as much later as it had waited then.
AS_LONG_AGAIN = 2.0


class Pace:
    """Times of ranks, by rank."""

    def __init__(self, ranks: int) -> None:
        self._blocks: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._lags: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._over: deque[float] = deque(maxlen=EXCESSES)
        self._usual: float | None = None
        self._spread = 0.0

    def refresh(self) -> None:
        """A round begins: what is usual is seen anew. Looking at all ranks is for here, not for every message."""
        self._usual = _at(0.5, [one for one in map(self.block, range(len(self._blocks))) if one is not None])
        self._spread = _at(0.4, self._over) or 0.0

    def did(self, rank: int, each: float) -> None:
        """A rank has done blocks, each in so many seconds."""
        known, usual = self.block(rank), self._usual
        if known is not None and usual is not None and known > RECOVERED_WITHIN * usual >= each:
            self._blocks[rank].clear()  # it was slow, and is no more
        self._blocks[rank].append(each)
        if self._usual is None:
            self._usual = each

    def began(self, rank: int, lag: float) -> None:
        """A rank began with its work so many seconds into the round."""
        if self.lag(rank) > 0 and self._usual is not None and lag <= self._usual:
            self._lags[rank].clear()  # it began late, and does no more
        self._lags[rank].append(max(0.0, lag))

    def held_up(self, rank: int, blocks: int, after: float) -> None:
        """A rank had done only so many blocks of its work when, so many seconds later, others had done it."""
        known = self.block(rank)
        if not blocks:
            self.began(rank, AS_LONG_AGAIN * after)
        elif known is None or after / (blocks + 1) > known:
            self._blocks[rank].append(after / (blocks + 1))

    def block(self, rank: int) -> float | None:
        """Seconds that a block takes a rank in most rounds; None if nothing is known of it."""
        return _at(0.5, self._blocks[rank])

    def lag(self, rank: int) -> float:
        """Seconds into a round until a rank begins, if it is late to begin in most rounds."""
        lags = self._lags[rank]
        return (_at(0.5, lags) or 0.0) if len(lags) >= LAGS_NEEDED else 0.0

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
