"""The kind of this host's arithmetic: two hosts of the same kind compute bit-identical results.

Another CPU, or another linear algebra library, adds in another order or rounds a function otherwise. That is no fault,
but the last bits of a sum then depend on which rank computed what. A process computes a few sums that show this when it
joins a run, and their digests are compared.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from codedreduce.digests import digest


class Arithmetic(NamedTuple):
    """The digest of some results, and a description of what they were computed with."""

    digest: str
    words: str

    def __str__(self) -> str:
        return f"{self.digest} ({self.words})"

    def beside(self, other: Arithmetic) -> Arithmetic:
        """Both kinds of arithmetic, as one."""
        return Arithmetic(digest(f"{self.digest} {other.digest}".encode()).hex()[:8], f"{self.words}, {other.words}")


@cache
def of_numpy() -> Arithmetic:
    """The arithmetic of NumPy, on one core."""
    random = np.random.default_rng(7)
    found = []
    with threadpool_limits(1):
        for dtype in (np.float32, np.float64):
            a: np.ndarray[Any, Any] = random.standard_normal((67, 259)).astype(dtype)
            b: np.ndarray[Any, Any] = random.standard_normal((259, 41)).astype(dtype)
            product = a @ b
            found += [product, a.sum(axis=1), a.T @ product, np.exp(a), np.tanh(a), np.log1p(np.abs(a)), a @ a[0]]
    return Arithmetic(digest_of(found), f"NumPy {np.__version__}, {_algebra()}, {platform.machine()}")


def digest_of(vectors: list[np.ndarray[Any, Any]]) -> str:
    """A digest of all results, short enough for people to compare."""
    return digest(b"".join(np.ascontiguousarray(one).tobytes() for one in vectors)).hex()[:8]


def _algebra() -> str:
    """The BLAS library of NumPy, and the CPU type that it selected."""
    loaded = [one for one in threadpool_info() if one.get("user_api") == "blas"]  # in any order, also of SciPy
    if not loaded:
        return "no BLAS"
    found = min(loaded, key=lambda one: ("numpy" not in str(one.get("filepath")), str(one.get("filepath"))))
    return " ".join(str(found.get(one) or "") for one in ("internal_api", "version", "architecture")).strip()
