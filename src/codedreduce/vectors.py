"""Vectors: what they are, and the one place where the protocol makes, joins and adds them.

Everything that knows what a vector is made of is here, or in `worlds/buffers.py` where it lies in memory that
processes share and travels as bytes: a vector of another kind (on a device, say) is added in these two files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Vector = npt.NDArray[Any]

#: The sum is taken block by block, so that the running total stays in the cache while the vectors stream past.
BLOCK_BYTES = 1 << 20

#: A block to multiply in, by dtype; a thread starts with a context, and so with blocks, of its own.
_scratch: ContextVar[dict[np.dtype[Any], Vector]] = ContextVar("scratch")


def empty(length: int, dtype: npt.DTypeLike) -> Vector:
    """Room for a vector."""
    return np.empty(length, dtype=dtype)


def joined(chunks: Sequence[Vector]) -> Vector:
    """Chunks laid end to end, in a vector of their own: what came from a neighbour may lie in its memory."""
    return np.concatenate(chunks)


def rounded(vector: Vector, dtype: npt.DTypeLike | None) -> Vector:
    """A vector's numbers as a narrower type has them; the vector itself if there is none."""
    return vector if dtype is None else vector.astype(dtype).astype(vector.dtype)


def is_finite(vector: Vector) -> bool:
    """Whether no number of a vector is infinite, or none: as good as always to be seen of their sum alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(vector.sum()) or np.isfinite(vector).all())


def combine(vectors: Sequence[Vector], weights: Sequence[float] | None, out: Vector) -> Vector:
    """Out = sum of weights[i] * vectors[i], in the order given. `None` stands for weights of one.

    A vector with weight 0 is not read, one with weight 1 is not multiplied, and nothing is allocated: the same
    vectors in the same order give the same bits. `out` may be the first vector with a weight other than 0, no other.

    >>> combine([np.ones(3), np.full(3, 2.0), np.full(3, 9.0)], [1, 0.5, 0], np.empty(3))
    array([2., 2., 2.])
    """
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
    """A block of this thread's own to multiply in, kept from call to call."""
    kept = _scratch.get(None)
    if kept is None:
        _scratch.set(kept := {})
    if like.dtype not in kept:
        kept[like.dtype] = np.empty(max(1, BLOCK_BYTES // like.itemsize), dtype=like.dtype)
    return kept[like.dtype][: len(like)]
