"""Silent data corruption: one bit of a vector is flipped, and its numbers still look plausible."""

from __future__ import annotations

import random

import numpy as np

from codedreduce.vectors import Vector

#: Bits of a float32 that are flipped: the sign, and those that a sum does not round away.
BITS = (31, 22, 21, 20)

#: Bits that can be flipped in any number without making it infinite: the fraction, and lower bits of the exponent.
HARMLESS = range(26)


def flipped_anywhere(vector: Vector, draw: random.Random) -> Vector:
    """A copy with one random bit flipped, so that two copies are hardly ever equal."""
    copy = vector.copy()
    copy.view(np.uint32)[draw.randrange(len(copy))] ^= np.uint32(1 << draw.choice(HARMLESS))
    return copy


def flipped(vector: Vector, where: int) -> Vector:
    """A copy with one bit flipped: a different bit for every `where`, until all are used.

    >>> flipped(np.array([1, -4], np.float32), 0).tolist(), flipped(np.array([1, -4], np.float32), 3).tolist()
    ([1.0, 4.0], [1.5, -4.0])
    """
    copy = vector.copy()
    bit, place = divmod(where, len(vector))
    largest_first = np.argsort(-np.abs(copy), kind="stable")
    copy.view(np.uint32)[largest_first[place]] ^= np.uint32(1 << BITS[bit % len(BITS)])
    return copy
