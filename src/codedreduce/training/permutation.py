"""A random order of any number of items, in which each place can be computed by itself.

A permutation of 0..n-1 by a Feistel network over numbers (Black, Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). A number below a b is a pair (l, r), l below a and r below b. Each turn adds a hash of one half to the
other. This is invertible, so the result is a permutation:

    l = (l + h_1(r)) mod a,  r = (r + h_2(l)) mod b,  l = (l + h_3(r)) mod a, ...

With a and b next to sqrt(n), fewer than sqrt(n) of the a b numbers are not below n. Such a number goes through the
network again until it is below n (cycle walking). Only the keys of the hashes are stored.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Indices = npt.NDArray[np.intp]
_Words = npt.NDArray[np.uint64]

#: Turns of the network. With 8 turns the orders of five items are visibly not equally likely; with 12 they are.
TURNS = 16

#: The largest number of items.
MOST = 2**62


class Permutation:
    """One of the orders of `count` items, chosen by a key.

    >>> Permutation(10, [0, 1])(np.arange(10)).tolist()
    [8, 0, 6, 9, 1, 4, 7, 2, 3, 5]
    >>> Permutation(10**12, [0, 1])(np.arange(3)).tolist()
    [29939327071, 545676248049, 721847284019]
    """

    def __init__(self, count: int, key: list[int]) -> None:
        if not 1 <= count <= MOST:
            raise UsageError(f"a permutation must have 1 to 2^62 items, got {count}")
        self._count = np.uint64(count)
        first = math.isqrt(count - 1) + 1
        self._a, self._b = np.uint64(first), np.uint64(-(-count // first))
        self._keys = np.random.SeedSequence(key).generate_state(TURNS, np.uint64).astype(np.uint64)

    def __call__(self, places: npt.NDArray[np.integer]) -> Indices:
        """The items at these places."""
        found = self._walk(places.astype(np.uint64))
        outside = found >= self._count
        while outside.any():
            found[outside] = self._walk(found[outside])
            outside = found >= self._count
        return found.astype(np.intp)

    def _walk(self, numbers: _Words) -> _Words:
        right = numbers // self._a
        left = numbers - right * self._a
        for turn, key in enumerate(self._keys):
            if turn % 2 == 0:
                left = (left + _hash(right, key)) % self._a
            else:
                right = (right + _hash(left, key)) % self._b
        found: _Words = left + right * self._a
        return found


def _hash(numbers: _Words, key: np.uint64) -> _Words:
    """A hash of 63 bits: the mixing of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    x = numbers + key
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x >> np.uint64(1)
