"""No redundancy: every child has a part of its own, and every child is needed."""

from __future__ import annotations

from functools import lru_cache

from codedreduce.codes.code import GradientCode
from codedreduce.codes.repetition import RepetitionCode, groups_of


@lru_cache(maxsize=64)
def uncoded(n: int) -> GradientCode:
    """B = I, s = 0.

    >>> uncoded(2).decode({0, 1})
    array([1., 1.])
    """
    return RepetitionCode.of(groups_of(n, 0), s=0, name="uncoded")
