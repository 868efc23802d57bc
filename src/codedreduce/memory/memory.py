"""The kind of memory that holds a node's vectors: the host's, or that of a device which the host's processes share.

In shared memory vectors lie as numbers, or packed as they would travel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.memory.arena import Arena, Reference
from codedreduce.packed import Packed
from codedreduce.protocol import Settings
from codedreduce.vectors import Vector, convert, empty


class SlotShape:
    """What a slot contains, and where its chunks lie: plain numbers, or with `wire` the bytes of packed numbers."""

    def __init__(self, settings: Settings) -> None:
        is_packed = settings.wire is not None
        self.dtype: np.dtype[Any] = np.dtype(np.uint8) if is_packed else settings.dtype
        self.length = settings.bytes if is_packed else settings.length
        self.slice = settings.byte_slice if is_packed else settings.chunk_slice
        self._settings = settings

    def whole(self, found: Vector) -> Vector:
        """The contents of a slot, as a vector."""
        return self._unpacked(found, self._settings.exact)

    def chunk(self, found: Vector, index: int) -> Vector:
        """The contents of a chunk's range, as a chunk."""
        return self._unpacked(found, self._settings.exact_in(index))

    def _unpacked(self, found: Vector, exact: int) -> Vector:
        if self._settings.wire is None:
            return found
        packed: Any = Packed(found, exact, self._settings.wire, self._settings.dtype)
        vector: Vector = packed
        return vector


def _references(vectors: list[Vector], place: int) -> int:
    """The reference count of a vector in a list, including the references that the interpreter needs to count."""
    return sys.getrefcount(vectors[place])


#: The count for a vector that only a list references. Measured, since Python versions differ in how many references of
#: the interpreter they count.
NOBODY_ELSE = _references([np.zeros(1, np.float32)], 0)


class SharedMemory(Protocol):
    """A node's own memory that other processes of the host read in place, and its view of theirs."""

    def slot(self, round_: int) -> Vector | None:
        """The next vector to write in a round; None if there is no memory for another one."""

    def vector(self, slot: int) -> Vector:
        """A slot of this node's own memory."""

    def part(self, slot: int, start: int, stop: int) -> Vector:
        """Elements start..stop of a slot of this node's own memory."""

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Allocate memory for elements start..stop of a slot, or raise an OSError."""

    def stamp(self, slot: int, stamp: int) -> None:
        """Stamp a slot of this node's own memory, before anything is written to it."""

    def is_stamped(self, chunk: Vector, stamp: int) -> bool:
        """Whether a chunk's slot still has this stamp after the chunk was read. True for chunks outside such memory."""

    def refer(self, chunk: Vector) -> Reference | None:
        """The reference to a chunk, if the chunk lies in such memory."""

    def view(self, reference: Reference) -> Vector:
        """The chunk that a reference names."""

    def close(self) -> None:
        """Close it."""


class Memory:
    """Allocates a node's vectors: NumPy arrays in host memory. A subclass allocates them on a device."""

    def __init__(self) -> None:
        self._taken: list[Vector] = []

    def shared(
        self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike
    ) -> SharedMemory:
        """Memory that other processes read; in some slots only single chunks are ever used."""
        return Arena(run, node, slots=slots, length=length, dtype=dtype)

    def empty(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """A new vector in this process's own memory."""
        return empty(length, dtype)

    def working(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """A new vector that is computed, and then packed elsewhere."""
        return self.empty(length, dtype)

    def gathered(self, chunks: Iterable[Vector], length: int, dtype: npt.DTypeLike) -> Vector:
        """Chunks concatenated in this process's own memory; they have been read completely when this returns."""
        vector = self._free(length, dtype)
        start = 0
        for chunk in chunks:
            convert(chunk, vector[start : start + len(chunk)])
            start += len(chunk)
        return vector

    def _free(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """A vector that nothing else references, or a new one: the first write to new memory is slow."""
        for place in range(len(self._taken)):
            if _references(self._taken, place) == NOBODY_ELSE:
                vector = self._taken[place]
                if len(vector) == length and vector.dtype == dtype:
                    return vector
        vector = empty(length, dtype)
        self._taken = [vector, *self._taken[:1]]
        return vector

    def from_host(self, data: npt.NDArray[Any]) -> Vector:
        """Numbers that arrived as bytes."""
        return np.asarray(data)
