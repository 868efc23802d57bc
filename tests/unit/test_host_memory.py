"""Sums are gathered into memory that nobody has any more: that is seen by references, which Pythons count otherwise."""

from __future__ import annotations

import numpy as np

from codedreduce.memory.memory import Memory
from codedreduce.vectors import Vector


def gathered(memory: Memory, number: int) -> Vector:
    return memory.gathered([np.full(100, number, np.float32)], 100, np.float32)


def test_a_vector_that_somebody_has_is_not_written_into() -> None:
    memory = Memory()
    vectors = [gathered(memory, number) for number in range(5)]
    assert [vector[0] for vector in vectors] == [0, 1, 2, 3, 4]
    kept = vectors[4][10:20]
    del vectors
    for number in range(5, 12):
        gathered(memory, number)
    assert kept[0] == 4, "a view of it is enough"


def test_one_that_nobody_has_any_more_is_written_into_again() -> None:
    memory = Memory()
    places = set()
    for number in range(5):
        vector = gathered(memory, number)
        assert vector[0] == number
        places.add(vector.ctypes.data)
        del vector
    assert len(places) == 1
