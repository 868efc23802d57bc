"""What a coordinator has learnt of its ranks: how long a block takes each, and when it begins with the first one.

Lateness is judged by what is usual, the median of recent rounds. Work is shared out by what is seen at best, the lowest
quarter: a rank that is slow now and then is not known to be slow, one that is slow in most rounds is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: Rounds that are remembered of a rank.
REMEMBERED = 8

#: A rank that was slow and now does a block within so many times what it takes the others has recovered.
RECOVERED_WITHIN = 2.0


class Pace:
    """Times of ranks, by rank."""

    def __init__(self, ranks: int) -> None:
        self._blocks: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._lags: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._over: deque[float] = deque(maxlen=8 * REMEMBERED)

    def did(self, rank: int, each: float, lag: float | None = None) -> None:
        """A rank has done blocks, each in so many seconds, and could begin `lag` seconds into the round."""
        known, usual = self.block(rank), self.usual()
        if known is not None and usual is not None and known > RECOVERED_WITHIN * usual >= each:
            self._blocks[rank].clear()  # it was slow, and is no more
            self._lags[rank].clear()
        self._blocks[rank].append(each)
        if lag is not None:
            self._lags[rank].append(max(0.0, lag))

    def held_up(self, rank: int, blocks: int, after: float) -> None:
        """A rank has done only so many blocks of what it was given so many seconds ago."""
        known = self.block(rank)
        if not blocks:
            self._lags[rank].append(after)
        elif known is None or after / (blocks + 1) > known:
            self._blocks[rank].append(after / (blocks + 1))

    def block(self, rank: int) -> float | None:
        """Seconds that a block usually takes a rank; None if nothing is known of it."""
        return _at(0.5, self._blocks[rank])

    def lag(self, rank: int) -> float:
        """Seconds into a round until a rank usually begins."""
        return _at(0.5, self._lags[rank]) or 0.0

    def at_best(self, rank: int) -> float | None:
        """Seconds that a block takes a rank in its better rounds."""
        return _at(0.25, self._blocks[rank])

    def lag_at_best(self, rank: int) -> float:
        """Seconds into a round until a rank begins at best; nothing, before that has been seen for some rounds."""
        return min(self._lags[rank]) if 2 * len(self._lags[rank]) >= REMEMBERED else 0.0

    def usual(self) -> float | None:
        """Seconds that a block takes a rank in the middle."""
        return _at(0.5, [one for one in map(self.block, range(len(self._blocks))) if one is not None])

    def ended(self, over: float) -> None:
        """A rank was through with its work by so much later than expected, as a part of what was expected."""
        self._over.append(over)

    def spread(self) -> float:
        """How much later than expected the quicker ranks are, as a part of what was expected."""
        return _at(0.4, self._over) or 0.0


def _at(part: float, values: Sequence[float]) -> float | None:
    """The value below which such a part of the values lies."""
    return sorted(values)[int(part * (len(values) - 1))] if values else None
