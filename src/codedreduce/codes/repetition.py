"""Repetition: siblings form groups, and any one member of a group delivers the group's part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from codedreduce.codes.code import Approximation, GradientCode, check_tolerance


@lru_cache(maxsize=64)
def repetition(n: int, s: int) -> GradientCode:
    """floor(n / (s+1)) groups of neighbours; left-over children join as extra replicas.

    All weights are 0 or 1, and decoding uses one member of each group. So the sum adds the same numbers in the
    same order whichever children are missing: it is bit-identical.

    >>> repetition(5, 1).matrix.astype(int).tolist()
    [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]
    >>> repetition(5, 1).decode({1, 4})          # more than s missing, yet one of each group is there
    array([0., 1., 0., 0., 1.])
    """
    return RepetitionCode.of(groups_of(n, s), s=s, name="repetition")


def groups_of(n: int, s: int) -> tuple[range, ...]:
    """The groups of neighbours among n siblings when s of each group may straggle.

    >>> groups_of(7, 2)
    (range(0, 3), range(3, 7))
    """
    check_tolerance(n, s)
    return split_evenly(n, n // (s + 1))


def split_evenly(n: int, k: int) -> tuple[range, ...]:
    """0..n-1 in k neighbouring ranges, with lengths that differ by at most one.

    >>> split_evenly(5, 2)
    (range(0, 2), range(2, 5))
    """
    return tuple(range(part * n // k, (part + 1) * n // k) for part in range(k))


@dataclass(frozen=True, eq=False)
class RepetitionCode(GradientCode):
    """A 0/1 code with groups of rows; decoding takes the first available member of each group."""

    groups: tuple[range, ...] = ()

    @classmethod
    def of(cls, groups: Sequence[range], *, s: int, name: str) -> RepetitionCode:
        """The code with these groups of rows."""
        matrix = np.zeros((groups[-1].stop, len(groups)))
        for part, members in enumerate(groups):
            matrix[members.start : members.stop, part] = 1.0
        return cls(name=name, n=len(matrix), s=s, matrix=matrix, groups=tuple(groups))

    def amplification(self) -> float:
        """1: all weights are 0 or 1."""
        return 1.0

    def _solve(self, known: frozenset[int]) -> Approximation:
        weights = np.zeros(self.n)
        lost = 0
        for members in self.groups:
            first = next((child for child in members if child in known), None)
            if first is None:
                lost += 1
            else:
                weights[first] = 1.0
        return Approximation(weights, math.sqrt(lost / self.k))


@lru_cache(maxsize=64)
def uncoded(n: int) -> GradientCode:
    """No redundancy, B = I and s = 0: every child has a part of its own, and every child is needed.

    >>> uncoded(2).decode({0, 1})
    array([1., 1.])
    """
    return RepetitionCode.of(groups_of(n, 0), s=0, name="uncoded")
