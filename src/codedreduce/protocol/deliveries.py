"""Whose link is slow, where vectors are short: seen by how long each rank's vector takes to reach rank 0.

A link that is slow from the first round on is in all that is known of how long sums take, so that nobody is late by
it. But rank 0 keeps a stripe, as the others do, and gets chunks of it from all: a rank whose chunks take several times
as long as most others', and so much that a round is longer by it, several rounds in a row, has a slow link.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

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
