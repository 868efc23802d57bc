"""Packed vectors, for a narrow wire type: the first numbers have a narrower type, the last ones are unchanged.

The end of a vector has counts, losses and other values that must stay exact. A packed vector is bytes, and a slice of
it is a slice of these bytes, so it can lie in shared memory and be sent from there. Packed vectors are added in the
wide type, and the sum is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from codedreduce.vectors import (
    BLOCK_BYTES,
    Vector,
    combine,
    convert,
    empty,
    empty_of,
    is_finite,
    know,
    on_host,
    viewed,
)

FLOAT32 = np.dtype(np.float32)


class Packed:
    """A vector, or a slice of one, as `raw` bytes; the last `exact` numbers are wide.

    >>> import numpy as np
    >>> one = Packed.of(np.array([1.0001, 2.0, 3.0001], np.float32), np.dtype(np.float16), exact=1)
    >>> len(one), one.nbytes, on_host(one), on_host(one[1:])
    (3, 8, array([1.    , 2.    , 3.0001], dtype=float32), array([2.    , 3.0001], dtype=float32))
    """

    __slots__ = ("exact", "head", "narrow", "raw", "tail", "wide")

    def __init__(self, raw: Vector, exact: int, narrow: npt.DTypeLike, wide: npt.DTypeLike = FLOAT32) -> None:
        self.raw = raw
        self.exact = exact
        self.narrow = np.dtype(narrow)
        self.wide = np.dtype(wide)
        border = len(raw) - exact * self.wide.itemsize
        self.head = viewed(raw[:border], self.narrow)
        self.tail = viewed(raw[border:], self.wide)

    @classmethod
    def of(cls, vector: Vector, narrow: npt.DTypeLike, exact: int) -> Packed:
        """Pack a vector's numbers on the host."""
        vector = on_host(vector)
        size = (len(vector) - exact) * np.dtype(narrow).itemsize + exact * vector.itemsize
        packed = cls(empty(size, np.uint8), exact, narrow, vector.dtype)
        packed.take(vector)
        return packed

    def take(self, vector: Vector) -> None:
        """Store a vector's numbers here, narrowed."""
        border = len(self.head)
        convert(vector[:border], self.head)
        convert(vector[border:], self.tail)

    def give(self, out: Vector) -> None:
        """Write the numbers, widened, into a vector."""
        border = len(self.head)
        convert(self.head, out[:border])
        convert(self.tail, out[border:])

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return len(self.raw)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers in computations."""
        return self.wide

    def __len__(self) -> int:
        return len(self.head) + self.exact

    def __getitem__(self, where: slice) -> Packed:
        start, stop, _ = where.indices(len(self))
        exact = self._exact_before(stop) - self._exact_before(start)
        return Packed(self.raw[self._byte(start) : self._byte(stop)], exact, self.narrow, self.wide)

    def _exact_before(self, place: int) -> int:
        return max(0, place - len(self.head))

    def _byte(self, place: int) -> int:
        exact = self._exact_before(place)
        return (place - exact) * self.narrow.itemsize + exact * self.wide.itemsize


def raw_of(vector: Any) -> Any:
    """The array in memory: for a packed vector its bytes."""
    return vector.raw if isinstance(vector, Packed) else vector


class _PackedVectors:
    """The operations on packed vectors. Partial sums are wide and not packed until they are rounded."""

    def empty_like(self, vector: Packed) -> Vector:
        """An uninitialized, wide vector for a sum."""
        return self.empty_of(vector, len(vector), vector.wide)

    def empty_of(self, vector: Packed, length: int, dtype: npt.DTypeLike) -> Vector:
        """An uninitialized vector of that length and type, in the same place."""
        return empty_of(vector.raw, length, dtype)

    def copied(self, vector: Packed) -> Vector:
        """A wide copy of its numbers in new memory."""
        out = self.empty_like(vector)
        vector.give(out)
        return out

    def round_off(self, vector: Packed, dtype: npt.DTypeLike) -> None:
        """Do nothing: the numbers are rounded already."""

    def viewed(self, vector: Packed, dtype: npt.DTypeLike) -> Any:
        """Not possible: the numbers have two types."""
        raise NotImplementedError("a packed vector has numbers of two types")

    def convert(self, numbers: Any, out: Any) -> None:
        """Pack or widen the numbers."""
        if isinstance(out, Packed):
            out.take(numbers)
        else:
            numbers.give(out)

    def is_finite(self, vector: Packed) -> bool:
        """Whether no number is infinite or NaN."""
        return is_finite(self.copied(vector))

    def on_host(self, vector: Packed) -> Vector:
        """Its numbers, wide, in memory of the host."""
        host = Packed(on_host(vector.raw), vector.exact, vector.narrow, vector.wide)
        out = empty(len(vector), vector.wide)
        host.give(out)
        return out

    def combine(self, vectors: Sequence[Any], weights: Sequence[float] | None, out: Any) -> None:
        """The sum in the given order: added in the wide type, and rounded at the end if the sum is packed."""
        if weights is not None and any(weight != 1 for weight in weights):
            raise NotImplementedError("packed vectors can only be added with weight 1")
        border = next(len(one.head) for one in (out, *vectors) if isinstance(one, Packed))
        tail = _tail(out, border)
        _add_up([_head(one, border) for one in vectors], _head(out, border), tail.dtype)
        if len(tail):
            combine([_tail(one, border) for one in vectors], None, tail)


know(Packed, _PackedVectors())


def add_with(function: Callable[[Sequence[Vector], Vector, np.dtype[Any]], None]) -> None:
    """Set the function that adds arrays. It must add in the given order, in the wide type, and round once."""
    _adding[0] = function


def _head(vector: Any, border: int) -> Vector:
    found: Vector = vector.head if isinstance(vector, Packed) else vector[:border]
    return found


def _tail(vector: Any, border: int) -> Vector:
    found: Vector = vector.tail if isinstance(vector, Packed) else vector[border:]
    return found


def _add_up(vectors: Sequence[Vector], out: Vector, wide: Any) -> None:
    """Add narrow or wide numbers block by block, so that the wide block stays in the cache."""
    if not isinstance(out, np.ndarray):
        combine(vectors, None, out)
    else:
        _adding[0](vectors, out, wide)


def _add_arrays(vectors: Sequence[Vector], out: Vector, wide: np.dtype[Any]) -> None:
    block = BLOCK_BYTES // wide.itemsize
    sums, more = (np.empty(min(block, len(out)), dtype=wide) for _ in range(2))
    for start in range(0, len(out), block):
        pieces = [vector[start : start + block] for vector in vectors]
        target = out[start : start + block]
        total = target if target.dtype == wide else sums[: len(target)]
        convert(pieces[0], total)
        for piece in pieces[1:]:
            if piece.dtype != wide:
                convert(piece, more[: len(piece)])
                piece = more[: len(piece)]
            np.add(total, piece, out=total)
        if total is not target:
            convert(total, target)


#: The function that adds arrays; `add_with` sets a faster one.
_adding: list[Callable[[Sequence[Vector], Vector, np.dtype[Any]], None]] = [_add_arrays]
