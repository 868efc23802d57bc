"""Numbers that are wrong and look like others: one bit of a vector is another than it should be."""

from __future__ import annotations

import random

import numpy as np

from codedreduce.vectors import Vector

#: Bits of a float32 that are flipped: the sign, and those that a sum does not round away.
BITS = (31, 22, 21, 20)

#: Bits that can be flipped in any number without making it infinite: fraction, and lower ones of the exponent.
HARMLESS = range(26)


def flipped_anywhere(vector: Vector, draw: random.Random) -> Vector:
    """A copy of which any one bit is flipped: so that hardly ever two of them are alike."""
    copy = vector.copy()
    copy.view(np.uint32)[draw.randrange(len(copy))] ^= np.uint32(1 << draw.choice(HARMLESS))
    return copy


def flipped(vector: Vector, where: int) -> Vector:
    """A copy of which one bit is flipped; another one for every `where`, as long as there are some left.

    >>> flipped(np.array([1, -4], np.float32), 0).tolist(), flipped(np.array([1, -4], np.float32), 3).tolist()
    ([1.0, 4.0], [1.5, -4.0])
    """
    copy = vector.copy()
    bit, place = divmod(where, len(vector))
    largest_first = np.argsort(-np.abs(copy), kind="stable")
    copy.view(np.uint32)[largest_first[place]] ^= np.uint32(1 << BITS[bit % len(BITS)])
    return copy
