"""Short digests of numbers and bytes: whether two are the same.

BLAKE3, from its library: as safe as BLAKE2, and several times as fast as links are. Where only chance is to be found
out, which nobody directs, XXH3: it takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from xxhash import xxh3_128

#: Bytes of a digest.
SIZE = 16

#: A node has one core.
_ONE_THREAD = 1


def digest(data: npt.NDArray[Any] | bytes | memoryview) -> bytes:
    """Of numbers, as they lie in memory, or of bytes.

    >>> digest(np.zeros(3)).hex()
    'db27f030ad8e467c098bebb9e7c39e0a'
    """
    return blake3(_bytes(data), max_threads=_ONE_THREAD).digest(length=SIZE)


def digest_of_all(parts: Iterable[npt.NDArray[Any] | bytes | memoryview]) -> bytes:
    """Of all that is given, one after the other: the same as if it were in one piece.

    >>> digest_of_all([np.zeros(1), np.zeros(2)]) == digest(np.zeros(3))
    True
    """
    found = blake3(max_threads=_ONE_THREAD)
    for part in parts:
        found.update(_bytes(part))
    return found.digest(length=SIZE)


def checksum(parts: Iterable[npt.NDArray[Any] | bytes | memoryview]) -> bytes:
    """Of all that is given, one after the other: who wants to can find other bytes that have the same.

    >>> checksum([b"ab", b"c"]) == checksum([b"abc"]), len(checksum([]))
    (True, 16)
    """
    found = xxh3_128()
    for part in parts:
        found.update(part if isinstance(part, bytes | memoryview) else _bytes(part))
    return found.digest()


def _bytes(data: npt.NDArray[Any] | bytes | memoryview) -> bytes | memoryview:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).view(np.uint8).data
    return data
