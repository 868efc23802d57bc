"""Detects drift: ranks report digests of their models now and then; the leader names ranks that differ from most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


class DriftDetector:
    """Digests of one round at a time."""

    def __init__(self, ranks: int, first: int = 1, own: int = 0) -> None:
        self._first = first
        self._own = own
        self._ranks = ranks
        self._round = 0
        self._digests: dict[int, str] = {}
        self._named: set[int] = set()
        self.has_majority = False  # whether more than half of the reported models equal the one that counts

    def hear(self, rank: int, round_: int, digest: str, present: Collection[int]) -> list[int]:
        """Note a rank's digest; return the ranks now known to differ from the digest that counts, each once.

        Before the first round the leader's digest counts. Later that of the majority counts; in a tie, the leader's if
        it is one of the tied digests.
        """
        if round_ < self._round:
            return []
        if round_ > self._round:
            self._round = round_
            self._digests.clear()
            self._named.clear()
        self._digests[rank] = digest
        if self._own not in self._digests:
            return []
        right = self._digests[self._own]
        if round_ > self._first:
            if len(self._digests) < len(present):
                return []
            counts = Counter(self._digests.values())
            most = max(counts.values())
            right = right if counts[right] == most else counts.most_common(1)[0][0]
            self.has_majority = 2 * counts[right] > len(self._digests)
        odd = [one for one, told in self._digests.items() if told != right and one not in self._named]
        self._named.update(odd)
        return sorted(odd)
