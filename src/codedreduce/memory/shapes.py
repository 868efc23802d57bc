"""How vectors lie in shared memory: as numbers, or packed as they would travel."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.packed import Packed
from codedreduce.protocol import Settings
from codedreduce.vectors import Vector


class SlotShape(Protocol):
    """What a slot contains, and where its chunks lie."""

    dtype: np.dtype[Any]
    length: int

    def slice(self, index: int) -> slice:
        """Where a chunk lies in a slot."""

    def whole(self, found: Vector) -> Vector:
        """The contents of a slot, as a vector."""

    def chunk(self, found: Vector, index: int) -> Vector:
        """The contents of a chunk's range, as a chunk."""


class AsTheyAre:
    """A slot of plain numbers."""

    def __init__(self, settings: Settings, dtype: npt.DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.length = settings.length
        self.slice = settings.chunk_slice

    def whole(self, found: Vector) -> Vector:
        """The slot itself."""
        return found

    def chunk(self, found: Vector, index: int) -> Vector:
        """The range itself."""
        return found


class AsTheyTravel:
    """A slot of bytes: packed numbers."""

    def __init__(self, settings: Settings, narrow: npt.DTypeLike, wide: npt.DTypeLike) -> None:
        self.dtype = np.dtype(np.uint8)
        self.length = settings.bytes
        self.slice = settings.byte_slice
        self._settings = settings
        self._narrow, self._wide = np.dtype(narrow), np.dtype(wide)

    def whole(self, found: Vector) -> Vector:
        """The slot, as a packed vector."""
        return self._packed(found, self._settings.exact)

    def chunk(self, found: Vector, index: int) -> Vector:
        """The range, as a packed chunk."""
        return self._packed(found, self._settings.exact_in(index))

    def _packed(self, found: Vector, exact: int) -> Vector:
        packed: Any = Packed(found, exact, self._narrow, self._wide)
        vector: Vector = packed
        return vector


def shape_of(settings: Settings, dtype: npt.DTypeLike) -> SlotShape:
    """How the vectors of a run, of numbers of this type, lie in shared memory."""
    return AsTheyAre(settings, dtype) if settings.wire is None else AsTheyTravel(settings, settings.wire, dtype)
