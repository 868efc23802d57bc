"""Loading of a worker's model, chunk by chunk."""

from __future__ import annotations

from codedreduce.protocol.core.settings import Settings
from codedreduce.vectors import Vector, empty


class ModelLoading:
    """The model of a worker's round, as far as its chunks have arrived."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._vector: Vector | None = None
        self._here: list[bool] = []  # by chunk: whether it has arrived
        self.in_order = 0  # number of chunks, from the first one on, that have arrived without a gap

    def begin(self, first: Vector) -> None:
        """Begin another model, of which this is a chunk. If it is the only one, it is used without a copy."""
        chunks = self._settings.chunks
        self._vector = first if chunks == 1 else empty(self._settings.length, first.dtype)
        self._here = [False] * chunks
        self.in_order = 0

    def take(self, index: int, data: Vector) -> range:
        """Take a chunk. Return the chunks that now continue the gapless beginning of the model."""
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
        """The model; chunks that have not arrived have undefined values."""
        assert self._vector is not None, "no model has arrived"
        return self._vector

    @property
    def is_whole(self) -> bool:
        """Whether all chunks have arrived."""
        return self.in_order == self._settings.chunks
