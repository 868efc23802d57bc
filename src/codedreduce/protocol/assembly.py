"""The sum of a round, put together from what keepers send."""

from __future__ import annotations

from codedreduce.protocol.events import Aggregated, Gathered
from codedreduce.protocol.rooms import OWN_ROOMS, Rooms
from codedreduce.protocol.settings import Settings
from codedreduce.vectors import Vector, empty


class Assembly:
    """The sum of a round, as far as it is here: in a vector, or if chunks are lent, where its keepers have it."""

    def __init__(self, round_: int, settings: Settings, rooms: Rooms = OWN_ROOMS) -> None:
        self.round = round_
        self._settings = settings
        self._rooms = rooms
        self._here: dict[int, Vector] = {}
        self._vector: Vector | None = None

    def add(self, index: int, data: Vector) -> bool:
        """A chunk is here; whether that is news."""
        if index in self._here:
            return False
        if not self._rooms.lends:
            if self._vector is None:
                self._vector = empty(self._settings.length, data.dtype)
            place = self._vector[self._settings.chunk_slice(index)]
            place[:] = data
            data = place
        self._here[index] = data
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

    def given(self, late: tuple[int, ...]) -> Aggregated | Gathered:
        """The whole sum, for the script."""
        if self._vector is not None:
            return Aggregated(round=self.round, vector=self._vector, late=late)
        return Gathered(round=self.round, chunks=self.in_order(), late=late)

    def in_order(self) -> tuple[Vector, ...]:
        """The chunks of a sum that is complete."""
        return tuple(self._here[index] for index in range(self._settings.chunks))
