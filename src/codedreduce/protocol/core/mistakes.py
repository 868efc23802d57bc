"""How often ranks were found to have computed wrongly."""

from __future__ import annotations

from collections import Counter

from codedreduce.protocol.core.settings import Settings


class Mistakes:
    """How often which rank was found to have computed wrongly: known to all, whoever leads next."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.audit.quarantine if settings.audit is not None else 0
        self._times: Counter[int] = Counter()

    def note(self, rank: int, times: int) -> None:
        """So many times it was."""
        self._times[rank] = max(self._times[rank], times)

    def again(self, rank: int) -> int:
        """Once more; how often that is."""
        self._times[rank] += 1
        return self._times[rank]

    def is_quarantined(self, rank: int) -> bool:
        """Whether that is often enough not to use it any more."""
        return 0 < self._most <= self._times[rank]
