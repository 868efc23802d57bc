"""Cyclic gradient codes (Tandon et al. 2017, Algorithm 2), with a check of their float32 accuracy.

Row i covers parts i .. i+s (mod n). Take H (s x n) with H 1 = 0 and any s columns independent; row i is the vector
in the null space of H with that support. Any n-s rows then span the null space, which holds the all-ones vector.

The growth of rounding errors depends on H alone. The usual choice, a random H, is poor and sometimes useless. We
take rows of neighbouring frequencies around the highest one. This is in effect a real Reed-Solomon (cyclic MDS) code
as in Raviv et al. 2018. Frequencies half a step apart extend it to every parity of n and s. We scale the columns so
that the all-ones vector stays in the null space. The order of the columns is free as well: we try the strides
coprime to n and keep the best. `python -m bench.mathematics` compares both choices of H.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from codedreduce.codes.code import GradientCode, Vector, check_tolerance
from codedreduce.errors import CodeError

#: The largest float32 relative error of a decoded sum that a cyclic code may have over its tolerated sets.
LARGEST_ERROR = 1e-4

#: The largest relative rounding error of a float32 number.
ROUNDING = 2.0**-24

#: Random draws tried for a given seed before the code is refused.
DRAWS = 32


@lru_cache(maxsize=64)
def cyclic(n: int, s: int, seed: int | None = None) -> GradientCode:
    """A cyclic code. Raises `CodeError` unless its float32 error stays under 1e-4 over the tolerated sets.

    With a seed, H is drawn at random as in the paper, and the best of 32 draws is taken.

    >>> code = cyclic(5, 1)
    >>> bool(np.allclose(code.decode({0, 1, 3, 4}) @ code.matrix, 1))
    True
    >>> [part for part, weight in code.parts(4)]
    [0, 4]
    """
    check_tolerance(n, s)
    if seed is None:
        H = _spectral(n, s)
        strides = [t for t in range(1, max(n // 2, 1) + 1) if math.gcd(t, n) == 1]
        candidates = (H[:, t * np.arange(n) % n] for t in strides)
    else:
        random = np.random.default_rng([seed, n, s])
        candidates = (_gaussian(n, s, random) for _ in range(DRAWS))
    draws = (_draw(n, s, H) for H in candidates)
    # compare coarsely, the first wins: the choice must not depend on the last bits of a host's linear algebra
    growth, code = min(draws, key=lambda draw: float(f"{draw[0]:.2e}"))
    # An estimate, not a measurement: measured errors differ by up to a third between hosts, and either all hosts of a
    # run must accept a code, or none. For n <= 32 and s <= 5 the worst sets measured 0.5 to 1.1 of this estimate.
    error = growth * ROUNDING
    if not error < LARGEST_ERROR:
        raise CodeError(
            f"cyclic(n={n}, s={s}) would lose float32 accuracy: relative error {error:.1e} over its straggler sets, "
            f"above {LARGEST_ERROR:.0e}; use repetition({n}, {s}), which adds no error, or a smaller fan-out"
        )
    return code


def _spectral(n: int, s: int) -> Vector:
    """H from s neighbouring frequencies around n/2, columns scaled so that H 1 = 0."""
    position = np.arange(n) - (n - 1) / 2
    highest = (-1.0) ** np.arange(n)
    rows = [highest] if s % 2 else []
    distance = 1.0 if s % 2 else 0.5
    while len(rows) < s:
        angle = 2 * np.pi * distance * position / n
        rows += [highest * np.cos(angle), highest * np.sin(angle)]
        distance += 1
    H = np.array(rows).reshape(s, n)
    basis = np.linalg.qr(H.T)[0]
    scale = np.ones(n) - basis @ (basis.T @ np.ones(n))
    return np.asarray(H * scale)


def _gaussian(n: int, s: int, random: np.random.Generator) -> Vector:
    """H drawn at random, as in the paper."""
    H = random.standard_normal((s, n))
    return np.asarray(H - H.mean(axis=1, keepdims=True))


def _draw(n: int, s: int, H: Vector) -> tuple[float, GradientCode]:
    """The code of H, after the growth of rounding errors with its decoding vectors over its tolerated sets."""
    matrix = np.zeros((n, n))
    for row in range(n):
        support = [(row + step) % n for step in range(s + 1)]
        vector = np.linalg.svd(H[:, support])[2][-1] if s else np.ones(1)
        matrix[row, support] = vector / vector[np.argmax(np.abs(vector))]
    code = GradientCode(name="cyclic", n=n, s=s, matrix=matrix)

    # all sets at once: with C = B Z' for a basis Z of the null space, a solves the square system C_F' a = Z 1
    null_space = np.linalg.svd(H)[2][s:] if s else np.eye(n)
    reduced = matrix @ null_space.T
    rows = np.array([sorted(known) for known in code.tolerated_sets()])
    target = np.broadcast_to((null_space @ np.ones(n))[:, None], (len(rows), n - s, 1))
    decoders = np.zeros((len(rows), n))
    try:
        solutions = np.linalg.solve(reduced[rows].transpose(0, 2, 1), target)[..., 0]
    except np.linalg.LinAlgError:
        return np.inf, code
    np.put_along_axis(decoders, rows, solutions, axis=1)
    return float((np.abs(decoders) @ np.abs(matrix)).sum(axis=1).max()) / n, code
