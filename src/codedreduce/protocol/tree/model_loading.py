"""A model on its way into a worker, chunk by chunk."""

from __future__ import annotations

from codedreduce.protocol.core.settings import Settings
from codedreduce.vectors import Vector, empty


class ModelLoading:
    """The model of a worker's round, as far as it is here."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._vector: Vector | None = None
        self._here: list[bool] = []  # which chunks are
        self.in_order = 0  # of the chunks, in order, how many are here

    def begin(self, first: Vector) -> None:
        """Another model comes, of which this is a chunk. If it is the only one it is taken as it is."""
        chunks = self._settings.chunks
        self._vector = first if chunks == 1 else empty(self._settings.length, first.dtype)
        self._here = [False] * chunks
        self.in_order = 0

    def take(self, index: int, data: Vector) -> range:
        """A chunk is here; which ones are in order by it that were not before."""
        before = self.in_order
        if not self._here[index]:
            self._here[index] = True
            if self._settings.chunks > 1:
                self.model[self._settings.chunk_slice(index)] = data
            while self.in_order < self._settings.chunks and self._here[self.in_order]:
                self.in_order += 1
        return range(before, self.in_order)

    @property
    def model(self) -> Vector:
        """The model, with whatever is not here yet."""
        assert self._vector is not None, "no model has come"
        return self._vector

    @property
    def is_whole(self) -> bool:
        """Whether all chunks are here."""
        return self.in_order == self._settings.chunks
