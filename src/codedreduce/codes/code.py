"""Gradient codes: the matrix of a code, and decoding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codedreduce.errors import CodeError, TooManyStragglers

Vector = npt.NDArray[np.float64]

#: Decoding vectors that a code caches. Straggler patterns repeat, and few clusters show more of them.
REMEMBERED = 4096

#: Straggler sets examined for a worst case: all sets up to this number, and a sample of this size beyond it.
SAMPLED_SETS = 1000


@dataclass(frozen=True)
class Approximation:
    """The best least-squares decoding of a set that may be too small.

    `residual` is ||a B - 1|| / sqrt(k): 0 for the exact sum, 1 if the set contributes nothing.
    """

    weights: Vector
    residual: float


@dataclass(frozen=True, eq=False)
class GradientCode:
    """A matrix B (n x k): row i has the weights of child i for the k parts of a sum.

    For every set F of at least n - s rows there is a vector a, zero outside F, with a B = 1. So a parent
    decodes the whole sum from the messages of F.

    >>> from codedreduce.codes import repetition
    >>> code = repetition(4, 1)
    >>> code.matrix
    array([[1., 0.],
           [1., 0.],
           [0., 1.],
           [0., 1.]])
    >>> code.decode({1, 2, 3})
    array([0., 1., 1., 0.])
    """

    name: str
    n: int
    s: int
    matrix: Vector
    _decoders: dict[frozenset[int], Vector] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.matrix.flags.writeable = False

    @property
    def k(self) -> int:
        """The number of parts of the sum."""
        return int(self.matrix.shape[1])

    def parts(self, child: int) -> list[tuple[int, float]]:
        """The parts that a child holds, each with its weight, in the order of B.

        >>> from codedreduce.codes import uncoded
        >>> uncoded(3).parts(1)
        [(1, 1.0)]
        """
        row = self.matrix[child]
        return [(int(part), float(row[part])) for part in np.flatnonzero(row)]

    def decode(self, available: Iterable[int]) -> Vector:
        """The vector a, zero outside `available`, with a @ matrix = 1.

        A set seen before costs a dictionary look-up. Raises `TooManyStragglers` if the set does not determine the sum.
        """
        known = available if isinstance(available, frozenset) else frozenset(available)
        vector = self._decoders.get(known)
        if vector is None:
            self._check(known)
            approximation = self._solve(known)
            if approximation.residual > 1e-6:
                missing = set(range(self.n)) - known
                raise TooManyStragglers(missing=missing, tolerance=self.s, among=f"children 0..{self.n - 1}")
            vector = approximation.weights
            vector.flags.writeable = False
            if len(self._decoders) >= REMEMBERED:
                self._decoders.pop(next(iter(self._decoders)))
            self._decoders[known] = vector
        return vector

    def approximate(self, available: Iterable[int]) -> Approximation:
        """The vector a, zero outside `available`, that minimizes ||a @ matrix - 1||, and its residual.

        >>> from codedreduce.codes import repetition
        >>> repetition(4, 1).approximate({0, 1}).residual ** 2   # one of two groups is missing
        0.5000000000000001
        """
        known = frozenset(available)
        self._check(known)
        return self._solve(known)

    def amplification(self) -> float:
        """The largest growth of the messages' rounding errors over all tolerated sets.

        max over F of (sum over i, j of |a_i| |B_ij|) / k. It is 1 for a code with weights 0 and 1 (uncoded,
        repetition), and above 1 for a code with real weights. The values of a tree's levels multiply.
        """
        magnitude = np.abs(self.matrix).sum(axis=1)
        return max(float(np.abs(self.decode(known)) @ magnitude) / self.k for known in self.tolerated_sets())

    def tolerated_sets(self) -> Iterator[frozenset[int]]:
        """Sets with s children missing: all of them if they are few, else runs of neighbours and a fixed sample."""
        everyone = frozenset(range(self.n))
        if math.comb(self.n, self.s) <= SAMPLED_SETS:
            for missing in itertools.combinations(range(self.n), self.s):
                yield everyone - set(missing)
            return
        for first in range(self.n):
            yield everyone - {(first + step) % self.n for step in range(self.s)}
        random = np.random.default_rng([self.n, self.s])
        for _ in range(SAMPLED_SETS):
            yield everyone - set(random.choice(self.n, self.s, replace=False).tolist())

    def _check(self, known: frozenset[int]) -> None:
        strangers = [child for child in known if not 0 <= child < self.n]
        if strangers:
            raise CodeError(f"children {sorted(strangers)} do not exist: this code has children 0..{self.n - 1}")

    def _solve(self, known: frozenset[int]) -> Approximation:
        rows = sorted(known)
        weights = np.zeros(self.n)
        if rows:
            weights[rows] = np.linalg.lstsq(self.matrix[rows].T, np.ones(self.k), rcond=None)[0]
        return Approximation(weights, float(np.linalg.norm(weights @ self.matrix - 1)) / math.sqrt(self.k))


def check_tolerance(n: int, s: int) -> None:
    """Raise `CodeError` if no code can have this number of children or this tolerance."""
    if n < 1:
        raise CodeError(f"a code needs at least one child, got n={n}")
    if not 0 <= s < n:
        raise CodeError(f"n={n} children can tolerate 0 to {n - 1} stragglers, got s={s}")
