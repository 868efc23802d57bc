"""How vectors lie in shared memory: as numbers, or packed as they would travel."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.packed import Packed
from codedreduce.protocol import Settings
from codedreduce.vectors import Vector


class SlotShape(Protocol):
    """What a slot is made of, and where its chunks are."""

    dtype: np.dtype[Any]
    length: int

    def slice(self, index: int) -> slice:
        """Where a chunk lies."""

    def whole(self, found: Vector) -> Vector:
        """What lies in a slot, as a vector."""

    def chunk(self, found: Vector, index: int) -> Vector:
        """What lies where a chunk does, as a chunk."""


class AsTheyAre:
    """Numbers."""

    def __init__(self, settings: Settings, dtype: npt.DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.length = settings.length
        self.slice = settings.chunk_slice

    def whole(self, found: Vector) -> Vector:
        """It is one."""
        return found

    def chunk(self, found: Vector, index: int) -> Vector:
        """It is one."""
        return found


class AsTheyTravel:
    """Bytes of numbers that are packed."""

    def __init__(self, settings: Settings, narrow: npt.DTypeLike, wide: npt.DTypeLike) -> None:
        self.dtype = np.dtype(np.uint8)
        self.length = settings.bytes
        self.slice = settings.byte_slice
        self._settings = settings
        self._narrow, self._wide = np.dtype(narrow), np.dtype(wide)

    def whole(self, found: Vector) -> Vector:
        """A vector."""
        return self._packed(found, self._settings.exact)

    def chunk(self, found: Vector, index: int) -> Vector:
        """A chunk of one."""
        return self._packed(found, self._settings.exact_in(index))

    def _packed(self, found: Vector, exact: int) -> Vector:
        packed: Any = Packed(found, exact, self._narrow, self._wide)
        vector: Vector = packed
        return vector


def shape_of(settings: Settings, dtype: npt.DTypeLike) -> SlotShape:
    """How a run's vectors lie, of numbers of this type."""
    return AsTheyAre(settings, dtype) if settings.wire is None else AsTheyTravel(settings, settings.wire, dtype)
