"""The paper's allocation for a code with real weights: a child's task is a mixture of several parts of its parent's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from codedreduce.codes import GradientCode
from codedreduce.codes.repetition import split_evenly
from codedreduce.errors import PlanError, SchemeError
from codedreduce.schemes.plan import NeededTask, Needs, Piece, Range, samples_in
from codedreduce.schemes.tree_plan import TreePlan

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import TreeScheme


class Coded(TreePlan):
    """A parent computes its part of its task and cuts the rest by the rows of a code; weights multiply down the tree.

    Each worker has a single task, which has the number of the worker.
    """

    def __init__(self, scheme: TreeScheme, samples: int, code: Callable[[int, int], GradientCode]) -> None:
        super().__init__(scheme, samples)
        self._stragglers = scheme.stragglers
        self._code = code
        self._splits: dict[int, tuple[Piece, Piece]] = {}
        least = min(below // inner for inner, below in zip(self.tree.inner, self.tree.sizes[1:], strict=True))
        if least <= self._stragglers:
            raise SchemeError(
                f"tolerating {self._stragglers} stragglers takes at least {self._stragglers + 1} children under each "
                f"parent; this tree ({self.tree}) has a parent with {least}"
            )
        units = -int(-self._weight(0) * (self._stragglers + 1) // 1)
        if self.samples < units:
            raise PlanError(
                f"{self.samples} samples cannot be cut into the {units} parts of a cyclic code over "
                f"{self.tree.workers} workers; take at least {units} samples or fewer workers"
            )

    def group(self, node: int) -> range:
        """Only the node itself: each child's message is a different mixture, which no other child can send."""
        return range(node, node + 1)

    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The node's one task."""
        return (node,)

    def pieces(self, node: int, task: int) -> tuple[Piece, ...]:
        """The node's own part of its task, in one weighted pass."""
        return (self._split(node)[0],) if node else ()

    def needs(self, node: int, task: int) -> Needs:
        """The messages of enough children for the code to decode."""
        children = self.tree.children(node)
        if not children:
            return Needs()
        shares = tuple(NeededTask(child, (child,)) for child in children)
        return Needs(shares, self._code(len(children), self._stragglers))

    def size(self, task: int) -> int:
        """The number of samples in a task."""
        return samples_in((self.task(task),))

    def _weight(self, node: int) -> Fraction:
        """The capacity of a subtree, in loads of one worker: 1 for its top, and the children's weights over s+1."""
        children = self.tree.children(node)
        below = self._equal_weight(self.tree.level(node) + 1) * len(children) if children else Fraction(0)
        return (1 if node else 0) + below / (self._stragglers + 1)

    def _equal_weight(self, level: int) -> Fraction:
        """The weight of a subtree of a level, if each of its parents has the average number of children."""
        weight = Fraction(1)
        for above in range(self.tree.depth - 1, level - 1, -1):
            weight = 1 + weight * Fraction(self.tree.sizes[above + 1], self.tree.sizes[above]) / (self._stragglers + 1)
        return weight

    def _split(self, node: int) -> tuple[Piece, Piece]:
        """The two parts of a node's task: its own, and the rest."""
        if node not in self._splits:
            task = self.task(node)
            total = samples_in((task,))
            own = round(total / self._weight(node)) if node else 0
            self._splits[node] = cut(task, 0, own), cut(task, own, total)
        return self._splits[node]

    def task(self, node: int) -> Piece:
        """The weighted ranges of the gradient sum that the node's subtree must deliver."""
        if node == 0:
            return (Range(0, self.samples),)
        parent = self.tree.parent(node)
        rest = self._split(parent)[1]
        siblings = self.tree.children(parent)
        code = self._code(len(siblings), self._stragglers)
        bounds = split_evenly(samples_in((rest,)), code.k)
        return tuple(
            Range(part.start, part.stop, part.weight * weight)
            for index, weight in code.parts(node - siblings.start)
            for part in cut(rest, bounds[index].start, bounds[index].stop)
        )


def cut(piece: Sequence[Range], start: int, stop: int) -> Piece:
    """Samples start..stop-1 of the ranges laid end to end.

    >>> cut((Range(0, 10), Range(50, 60, 2.0)), 8, 13)
    (Range(start=8, stop=10, weight=1.0), Range(start=50, stop=53, weight=2.0))
    """
    parts = []
    passed = 0
    for part in piece:
        low, high = max(start - passed, 0), min(stop - passed, len(part))
        if low < high:
            parts.append(Range(part.start + low, part.start + high, part.weight))
        passed += len(part)
    return tuple(parts)
