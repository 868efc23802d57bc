"""How many wrong results each rank has computed."""

from __future__ import annotations

from collections import Counter

from codedreduce.protocol.core.settings import Settings


class Mistakes:
    """The number of wrong results of each rank. All ranks know it, so that every later leader does."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.audit.quarantine if settings.audit is not None else 0
        self._times: Counter[int] = Counter()

    def note(self, rank: int, times: int) -> None:
        """Record that a rank has computed wrongly so many times."""
        self._times[rank] = max(self._times[rank], times)

    def again(self, rank: int) -> int:
        """Count one more wrong result of a rank; return the new number."""
        self._times[rank] += 1
        return self._times[rank]

    def is_quarantined(self, rank: int) -> bool:
        """True if a rank has so many wrong results that it is no longer used."""
        return 0 < self._most <= self._times[rank]
