"""The root in the place of workers that are missing: what it computes, in which order it is added, unit by unit.

A share of the root's is a worker's own unit and what it would receive from its children, which are sums themselves. The
root has nobody to receive them from, and goes through all units of the share in the order in which the plan adds them;
the result has the bits that any worker would deliver.
"""

from __future__ import annotations

from collections.abc import Iterator

from codedreduce.schemes import Piece, TreePlan
from codedreduce.vectors import Vector


def can_stand_in(plan: TreePlan) -> bool:
    """Whether the root can compute a share by itself: sums that are plain, without a code's weights."""
    return plan.needs(0, 0).code is None and plan.wait_for is None


class StandIn:
    """A share that the root computes: units in preorder, each with its depth, and the sums that are not complete."""

    def __init__(self, plan: TreePlan, task: int, provider: int) -> None:
        self.task = task
        self._steps = list(_units(plan, task, provider, 0))
        self._sums: list[Vector] = []  # of the unit at each depth, with what was added to it
        self._done = 0

    def next(self) -> tuple[Piece, ...] | None:
        """What to compute next; None when all is."""
        return self._steps[self._done][1] if self._done < len(self._steps) else None

    def computed(self, vector: Vector) -> None:
        """A unit is computed: what is complete by now is added to what it is a part of."""
        depth = self._steps[self._done][0]
        self._fold(depth)
        self._sums.append(vector.copy())
        self._done += 1

    def result(self) -> Vector:
        """The sum of the share."""
        self._fold(1)
        return self._sums[0]

    def _fold(self, depth: int) -> None:
        while len(self._sums) > depth:
            part = self._sums.pop()
            self._sums[-1] += part


def _units(plan: TreePlan, task: int, provider: int, depth: int) -> Iterator[tuple[int, tuple[Piece, ...]]]:
    yield depth, plan.unit(provider, task).pieces
    for share in plan.needs(provider, task).shares:
        yield from _units(plan, share.task, share.providers[0], depth + 1)
