"""Vectors: the one place where the protocol makes, joins and adds them.

Only this module and `net/buffers.py` depend on the representation of a vector; `net/buffers.py` handles vectors in
shared memory and as bytes on the wire. A vector may be of another kind than a NumPy array, such as one on a device. The
module that makes such vectors registers how to add them (`know`), and the protocol does not see the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Vector = npt.NDArray[Any]

#: The sum is taken block by block, so that the running total stays in the cache while the vectors are read.
BLOCK_BYTES = 1 << 20

#: A block for products, by dtype. Every thread starts with its own context, and so has its own blocks.
_scratch: ContextVar[dict[np.dtype[Any], Vector]] = ContextVar("scratch")


class Kind(Protocol):
    """Makes and adds vectors of another kind: the same numbers in the same order as here."""

    def empty_like(self, vector: Any) -> Any:
        """An uninitialized vector of the same length, type and place."""

    def empty_of(self, vector: Any, length: int, dtype: npt.DTypeLike) -> Any:
        """An uninitialized vector of that length and type, in the same place."""

    def copied(self, vector: Any) -> Any:
        """A copy of the numbers in new memory."""

    def round_off(self, vector: Any, dtype: npt.DTypeLike) -> None:
        """Round its numbers to a narrower type."""

    def viewed(self, vector: Any, dtype: npt.DTypeLike) -> Any:
        """The same bytes as numbers of another type."""

    def convert(self, numbers: Any, out: Any) -> None:
        """Write numbers in the type of `out`; one of the two vectors is of this kind."""

    def is_finite(self, vector: Any) -> bool:
        """Whether no number is infinite or NaN."""

    def combine(self, vectors: Sequence[Any], weights: Sequence[float] | None, out: Any) -> None:
        """The weighted sum in the given order, as in `combine`."""

    def on_host(self, vector: Any) -> Vector:
        """Its numbers in memory of the host."""


_kinds: dict[type, Kind] = {}


def know(of: type, kind: Kind) -> None:
    """Register a type of vectors. If an operation mixes types, the type registered first handles all of them."""
    _kinds[of] = kind


def _kind_for(*vectors: Any) -> Kind | None:
    """The kind that handles these vectors; None if all are NumPy arrays."""
    types = set(map(type, vectors))
    return next((kind for of, kind in _kinds.items() if of in types), None)


def _kind_of(vector: Any) -> Kind | None:
    """The kind that handles this vector; None for a NumPy array."""
    return None if isinstance(vector, np.ndarray) else _kinds[type(vector)]


def empty_like(vector: Vector) -> Vector:
    """An uninitialized vector of the same length, type and place."""
    kind = _kind_of(vector)
    return np.empty_like(vector) if kind is None else kind.empty_like(vector)


def empty_of(vector: Vector, length: int, dtype: npt.DTypeLike) -> Vector:
    """An uninitialized vector of that length and type, in the same place as another."""
    kind = _kind_of(vector)
    return np.empty(length, dtype=dtype) if kind is None else kind.empty_of(vector, length, dtype)


def copied(vector: Vector) -> Vector:
    """A copy of the numbers in new memory."""
    kind = _kind_of(vector)
    return vector.copy() if kind is None else kind.copied(vector)


def on_host(vector: Vector) -> Vector:
    """The numbers of a vector in memory of the host."""
    kind = _kind_of(vector)
    return vector if kind is None else kind.on_host(vector)


def empty(length: int, dtype: npt.DTypeLike) -> Vector:
    """An uninitialized vector."""
    return np.empty(length, dtype=dtype)


def joined(chunks: Sequence[Vector]) -> Vector:
    """Concatenate chunks into a new vector: the chunks may lie in the memory of a neighbour."""
    return np.concatenate(chunks)


def viewed(vector: Vector, dtype: npt.DTypeLike) -> Vector:
    """The same bytes as numbers of another type."""
    kind = _kind_of(vector)
    return vector.view(dtype) if kind is None else kind.viewed(vector, dtype)


def round_off(vector: Vector, dtype: npt.DTypeLike | None, exact: int = 0) -> Vector:
    """Round a vector's numbers to a narrower type, except the last `exact` ones. Without a type, change nothing.

    >>> round_off(np.array([1.0001, 1.0001], np.float32), np.float16, exact=1)
    array([1.    , 1.0001], dtype=float32)
    """
    if dtype is None or exact >= len(vector):
        return vector
    rounds = vector[: len(vector) - exact]
    kind = _kind_of(vector)
    if kind is not None:
        kind.round_off(rounds, dtype)
        return vector
    block = BLOCK_BYTES // vector.itemsize
    narrow = np.empty(min(block, len(rounds)), dtype=dtype)
    for start in range(0, len(rounds), block):
        piece = rounds[start : start + block]
        convert(piece, narrow[: len(piece)])
        convert(narrow[: len(piece)], piece)
    return vector


def _convert(numbers: Vector, out: Vector) -> None:
    np.copyto(out, numbers, casting="unsafe")


#: The function that converts arrays; `convert_with` sets a faster one.
_converting: list[Callable[[Vector, Vector], None]] = [_convert]


def convert_with(function: Callable[[Vector, Vector], None]) -> None:
    """Set the function that converts arrays. It must round to nearest, ties to even."""
    _converting[0] = function


def convert(numbers: Vector, out: Vector) -> None:
    """Write numbers in the type of `out`. A NaN stays a NaN, but its payload may change."""
    kind = _kind_for(numbers, out)
    if kind is None:
        _converting[0](numbers, out)
    else:
        kind.convert(numbers, out)


def is_finite(vector: Vector) -> bool:
    """Whether no number of a vector is infinite or NaN. The sum alone decides this in almost all cases."""
    kind = _kind_of(vector)
    if kind is not None:
        return kind.is_finite(vector)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(vector.sum()) or np.isfinite(vector).all())


def combine(vectors: Sequence[Vector], weights: Sequence[float] | None, out: Vector) -> Vector:
    """Out = sum of weights[i] * vectors[i], in the given order. `None` means that all weights are 1.

    It does not read a vector with weight 0, does not multiply one with weight 1, and allocates nothing. The same
    vectors in the same order give a bit-identical sum. `out` may be the first vector with a nonzero weight, no other.

    >>> combine([np.ones(3), np.full(3, 2.0), np.full(3, 9.0)], [1, 0.5, 0], np.empty(3))
    array([2., 2., 2.])
    """
    kind = _kind_for(out, *vectors)
    if kind is not None:
        kind.combine(vectors, weights, out)
        return out
    if weights is not None and len(weights) != len(vectors):
        raise UsageError(f"{len(vectors)} vectors need as many weights, got {len(weights)}")
    for vector in vectors:
        if vector.shape != out.shape or vector.dtype != out.dtype:
            raise UsageError(f"cannot add {vector.dtype}{vector.shape} into {out.dtype}{out.shape}")
    terms = [
        (vector, 1.0 if weights is None else float(weights[index]))
        for index, vector in enumerate(vectors)
        if weights is None or weights[index] != 0
    ]
    if not terms:
        out.fill(0)
        return out
    block = max(1, BLOCK_BYTES // out.itemsize)
    plain = all(weight == 1 for _, weight in terms)
    if plain and len(terms) == 1:
        if terms[0][0] is not out:
            np.copyto(out, terms[0][0])
        return out
    for start in range(0, len(out), block):
        if plain:
            _add_block([vector[start : start + block] for vector, _ in terms], out[start : start + block])
        else:
            _add_weighted_block([(v[start : start + block], w) for v, w in terms], out[start : start + block])
    return out


def _add_block(pieces: list[Vector], total: Vector) -> None:
    np.add(pieces[0], pieces[1], out=total)
    for piece in pieces[2:]:
        np.add(total, piece, out=total)


def _add_weighted_block(pieces: list[tuple[Vector, float]], total: Vector) -> None:
    first, weight = pieces[0]
    np.multiply(first, total.dtype.type(weight), out=total)
    product = _product(total)
    for piece, weight in pieces[1:]:
        if weight == 1:
            np.add(total, piece, out=total)
        else:
            np.multiply(piece, total.dtype.type(weight), out=product)
            np.add(total, product, out=total)


def _product(like: Vector) -> Vector:
    """A block for products that belongs to this thread and is reused from call to call."""
    kept = _scratch.get(None)
    if kept is None:
        _scratch.set(kept := {})
    if like.dtype not in kept:
        kept[like.dtype] = np.empty(max(1, BLOCK_BYTES // like.itemsize), dtype=like.dtype)
    return kept[like.dtype][: len(like)]
