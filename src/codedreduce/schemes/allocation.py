"""Three ways to lay a batch over a tree: two with groups of siblings that can do the same tasks, and one by a code.

Ranges are integers throughout: unit i of m is floor(i d / m) .. floor((i+1) d / m), so units tile the batch and differ
from d/m by less than one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from codedreduce.codes import GradientCode
from codedreduce.codes.repetition import split_evenly
from codedreduce.errors import PlanError, SchemeError
from codedreduce.schemes.plan import NeededTask, Needs, Piece, Range, samples_in
from codedreduce.schemes.tree_plan import TreePlan
from codedreduce.topology import Tree

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import TreeScheme


@dataclass(frozen=True)
class Groups:
    """The siblings of a tree in groups of replicas: the same number of groups under every parent of a level.

    So corresponding groups under two replicas hold the same work, cut the same way. This makes a sum bit-identical
    for any replica that delivers it.
    """

    tree: Tree
    stragglers: int

    def __post_init__(self) -> None:
        for level, (inner, below) in enumerate(zip(self.tree.inner, self.tree.sizes[1:], strict=True)):
            if below // inner < self.stragglers + 1:
                raise SchemeError(
                    f"tolerating {self.stragglers} stragglers takes at least {self.stragglers + 1} children under each "
                    f"parent, but a parent on level {level} of this tree has only {below // inner}"
                )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of groups under each parent, by the parent's level."""
        levels = zip(self.tree.inner, self.tree.sizes[1:], strict=True)
        return tuple(below // inner // (self.stragglers + 1) for inner, below in levels)

    def under(self, node: int) -> tuple[range, ...]:
        """The groups of a node's children."""
        children = self.tree.children(node)
        if not children:
            return ()
        # without redundancy there are no replicas with cuts that must agree, and every child is a group
        count = self.counts[self.tree.level(node)] if self.stragglers else len(children)
        return tuple(children[part.start : part.stop] for part in split_evenly(len(children), count))

    def place(self, node: int) -> tuple[int, range]:
        """A worker's group: its index under the parent, and its members."""
        for index, members in enumerate(self.under(self.tree.parent(node))):
            if node in members:
                return index, members
        raise AssertionError(f"node {node} is in no group")  # groups tile the children


class _Grouped(TreePlan):
    """The part that is the same for both: any member of a group can do its task, also without `stragglers` siblings."""

    def __init__(self, scheme: TreeScheme, samples: int, stragglers: int) -> None:
        super().__init__(scheme, samples)
        self._stragglers = stragglers

    @cached_property
    def groups(self) -> Groups:
        """The groups of replicas."""
        return Groups(self.tree, self._stragglers)

    @property
    def owners(self) -> Tree:
        """The tree whose nodes own one unit each."""
        return self.tree

    def group(self, node: int) -> range:
        """The siblings that can do each other's tasks."""
        return self.groups.place(node)[1]

    def size(self, task: int) -> int:
        """The number of samples that a subtree owns."""
        if task == 0:
            return self.samples
        place = self.owners.preorder(task)
        return self._bound(place + self.owners.subtree_size(task)) - self._bound(place)

    def _bound(self, place: int) -> int:
        """The first sample of the unit that is at this place in preorder."""
        return place * self.samples // self.owners.workers


class Owned(_Grouped):
    """Every worker owns one unit; a task is the units of a subtree, and its name is the worker at the top.

    Each member of a group can do the task of any member: its own first, then the others in turn. This is the
    progressive order. If no straggler is tolerated, every group is one worker: uncoded.
    """

    def __init__(
        self, scheme: TreeScheme, samples: int, stragglers: int, capacity: Sequence[float] | None = None,
        blocks: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(scheme, samples, stragglers)
        self._capacity = capacity
        self._blocks = blocks
        units = self.tree.workers * blocks
        if samples < units:
            each = f", each in {blocks} blocks" if blocks > 1 else ""
            raise PlanError(
                f"{self.samples} samples cannot be shared by {self.tree.workers} workers{each}; "
                f"take at least {units} samples or fewer workers"
            )
        _ = self.groups, self._bounds

    @cached_property
    def _bounds(self) -> tuple[int, ...] | None:
        """The start of each unit, in preorder, if there are capacities."""
        if self._capacity is None:
            return None
        check_capacity(self._capacity, self.tree.workers)
        in_order: list[Fraction] = [Fraction(0)] * self.tree.workers
        for worker, capacity in enumerate(self._capacity, start=1):
            in_order[self.tree.preorder(worker)] = Fraction(capacity)
        total = sum(in_order)
        bounds = tuple(int(part * self.samples / total) for part in accumulate(in_order, initial=Fraction(0)))
        for worker, capacity in enumerate(self._capacity, start=1):
            place = self.tree.preorder(worker)
            if bounds[place] == bounds[place + 1]:
                raise PlanError(
                    f"worker {worker} with capacity {capacity:g} of {float(total):g} would get none of {self.samples} "
                    "samples; leave it out or take a larger batch"
                )
        return bounds

    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The tasks of the group, the node's own first, then in turn."""
        index, members = self.groups.place(node)
        if not self.tree.children(parent_task):
            return ()  # the parent does the task of a leaf and needs no children
        owners = self.groups.under(parent_task)[index]
        first = (node - members.start) % len(owners)
        return (*owners[first:], *owners[:first])

    def pieces(self, node: int, task: int) -> tuple[Piece, ...]:
        """The owner's own unit; a leaf that does the task of a parent also computes the units of its children."""
        if not self.tree.children(node):
            return tuple(piece for owner in (task, *self.tree.children(task)) for piece in self._unit(owner))
        return self._unit(task)

    def needs(self, node: int, task: int) -> Needs:
        """One copy of each child's task, from any member of the corresponding group."""
        if not self.tree.children(node) or not self.tree.children(task):
            return Needs()
        pairs = zip(self.groups.under(task), self.groups.under(node), strict=True)
        return Needs(tuple(NeededTask(owner, tuple(members)) for owners, members in pairs for owner in owners))

    def _bound(self, place: int) -> int:
        return super()._bound(place) if self._bounds is None else self._bounds[place]

    def _unit(self, owner: int) -> tuple[Piece, ...]:
        if owner == 0:
            return ()
        place = self.tree.preorder(owner)
        start, stop = self._bound(place), self._bound(place + 1)
        return tuple(
            (Range(start + part.start, start + part.stop),) for part in split_evenly(stop - start, self._blocks)
        )


class Replicated(_Grouped):
    """Every group owns one unit, and each of its members computes it at once: eager repetition.

    With each group collapsed into one node, the tree has 1/r of its nodes. A task is the units of a subtree of this
    smaller tree, and its name is the node at the top.
    """

    def __init__(self, scheme: TreeScheme, samples: int, stragglers: int) -> None:
        super().__init__(scheme, samples, stragglers)
        if not self.tree.is_complete:
            raise SchemeError(
                f"the eager order needs all leaves on the last level, but this tree ({self.tree}) has leaves above it; "
                "use the progressive order or another number of workers"
            )
        if self.samples < self.owners.workers:
            raise PlanError(
                f"{self.samples} samples cannot be cut into {self.owners.workers} units, one for each group of "
                f"{self.tree.workers} workers; take at least {self.owners.workers} samples or fewer workers"
            )

    @cached_property
    def owners(self) -> Tree:
        """The tree with every group as one node."""
        sizes = tuple(accumulate(self.groups.counts, lambda size, count: size * count, initial=1))
        return Tree(sizes, sizes[:-1])

    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The one task of the group."""
        return (self.owners.children(parent_task)[self.groups.place(node)[0]],)

    def pieces(self, node: int, task: int) -> tuple[Piece, ...]:
        """The group's unit."""
        if task == 0:
            return ()
        place = self.owners.preorder(task)
        return ((Range(self._bound(place), self._bound(place + 1)),),)

    def needs(self, node: int, task: int) -> Needs:
        """One copy of each group's task."""
        pairs = zip(self.owners.children(task), self.groups.under(node), strict=True)
        return Needs(tuple(NeededTask(below, tuple(members)) for below, members in pairs))


class Coded(TreePlan):
    """The paper's allocation for a code with real weights: a task is a mixture of several parts of the parent's.

    A parent computes its part of its task and cuts the rest by the rows of a code; weights multiply down the tree.

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


def check_capacity(capacity: Sequence[float], workers: int) -> None:
    """Raise `SchemeError` unless there is one positive capacity for each worker."""
    if len(capacity) != workers:
        raise SchemeError(f"capacity needs one number for each of {workers} workers, got {len(capacity)}")
    for worker, value in enumerate(capacity, start=1):
        if not 0 < value < float("inf"):
            raise SchemeError(f"the capacity of worker {worker} must be a positive number, got {value}")
