"""The sum of a round, put together from what keepers send."""

from __future__ import annotations

from codedreduce.protocol.settings import Settings
from codedreduce.vectors import Vector, empty


class Assembly:
    """The sum of a round, as far as it is here."""

    def __init__(self, round_: int, settings: Settings) -> None:
        self.round = round_
        self._settings = settings
        self._here: set[int] = set()
        self.vector: Vector | None = None

    def add(self, index: int, data: Vector) -> bool:
        """A chunk is here; whether that is news."""
        if index in self._here:
            return False
        if self.vector is None:
            self.vector = empty(self._settings.length, data.dtype)
        self.vector[self._settings.chunk_slice(index)] = data
        self._here.add(index)
        return True

    @property
    def count(self) -> int:
        """How many chunks are here."""
        return len(self._here)

    @property
    def is_complete(self) -> bool:
        """Whether all of it is here."""
        return len(self._here) == self._settings.chunks

    def missing(self) -> list[int]:
        """The chunks that are not here."""
        return [index for index in range(self._settings.chunks) if index not in self._here]
