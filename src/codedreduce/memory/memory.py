"""What kind of memory a node's vectors lie in: the host's, or that of a device which its processes share."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.memory.arena import Arena, Reference
from codedreduce.vectors import Vector, convert, empty


def _references(vectors: list[Vector], place: int) -> int:
    """How many references there are to a vector of a list, with those that the interpreter needs to count them."""
    return sys.getrefcount(vectors[place])


#: References to a vector that only a list has. Counted, since versions of Python count the interpreter's own otherwise.
NOBODY_ELSE = _references([np.zeros(1, np.float32)], 0)


class SharedMemory(Protocol):
    """A node's own memory that others of this machine read where it lies, and its view of theirs."""

    def slot(self, round_: int) -> Vector | None:
        """The next vector to write into, in a round; None if there is no memory for one more."""

    def vector(self, slot: int) -> Vector:
        """A slot of this node's own."""

    def part(self, slot: int, start: int, stop: int) -> Vector:
        """Some numbers of a slot of this node's own."""

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Have memory for these numbers of a slot, or raise an OSError."""

    def stamp(self, slot: int, stamp: int) -> None:
        """Say whose a slot of this node's own is from now on, before anything is written into it."""

    def is_stamped(self, chunk: Vector, stamp: int) -> bool:
        """Whether the slot that a chunk lies in is still as stamped, after it was read; a chunk elsewhere is."""

    def refer(self, chunk: Vector) -> Reference | None:
        """The reference of a chunk, if it lies in such memory."""

    def view(self, reference: Reference) -> Vector:
        """The chunk that lies there."""

    def close(self) -> None:
        """Let go of it."""


class Memory(Protocol):
    """Where a node's vectors lie."""

    def shared(
        self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike
    ) -> SharedMemory:
        """Memory that others read; of some slots only single chunks are ever used."""

    def empty(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """Room for a vector that is this process's own."""

    def working(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """Room for a vector that is computed, and then packed elsewhere."""

    def gathered(self, chunks: Iterable[Vector], length: int, dtype: npt.DTypeLike) -> Vector:
        """Chunks, laid end to end in memory of this process's own, when they have been read to their end."""

    def from_host(self, data: npt.NDArray[Any]) -> Vector:
        """Numbers that have travelled."""


class HostMemory:
    """The host's: arrays of NumPy."""

    def __init__(self) -> None:
        self._taken: list[Vector] = []

    def shared(
        self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike
    ) -> SharedMemory:
        """Memory that the kernel gives to whoever may open it."""
        return Arena(run, node, slots=slots, length=length, dtype=dtype)

    def empty(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """Room for a vector that is this process's own."""
        return empty(length, dtype)

    def working(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """Room for a vector that is computed, and then packed elsewhere."""
        return empty(length, dtype)

    def gathered(self, chunks: Iterable[Vector], length: int, dtype: npt.DTypeLike) -> Vector:
        """Chunks, laid end to end."""
        vector = self._free(length, dtype)
        start = 0
        for chunk in chunks:
            convert(chunk, vector[start : start + len(chunk)])
            start += len(chunk)
        return vector

    def _free(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """A vector that nobody has any more, or a new one: memory that was never touched is slow to write into."""
        for place in range(len(self._taken)):
            if _references(self._taken, place) == NOBODY_ELSE:
                vector = self._taken[place]
                if len(vector) == length and vector.dtype == dtype:
                    return vector
        vector = empty(length, dtype)
        self._taken = [vector, *self._taken[:1]]
        return vector

    def from_host(self, data: npt.NDArray[Any]) -> Vector:
        """It is there."""
        return np.asarray(data)
