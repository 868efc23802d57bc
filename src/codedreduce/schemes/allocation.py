"""Three ways to lay a batch over a tree.

All three answer the same questions about a node and a task, in time proportional to the depth of the tree:

- `order(node, parent_task)`: the node's tasks, in order, while its parent works on `parent_task`;
- `pieces(node, task)`: the node's own computation;
- `needs(node, task)`: what it must receive from its children.

The name of a task is an integer; the root's is 0. Ranges are integers throughout: unit i of m is
floor(i d / m) .. floor((i+1) d / m), so units tile the batch and differ from d/m by less than one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from codedreduce.codes.repetition import split_evenly
from codedreduce.errors import PlanError, SchemeError
from codedreduce.schemes.plan import NeededTask, Needs, Piece, Range
from codedreduce.topology import Tree


class Allocation(Protocol):
    """A way to lay a batch over a tree."""

    def group(self, node: int) -> range:
        """The siblings that can do the node's task, including itself."""

    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The node's tasks, in order, while its parent works on `parent_task`."""

    def pieces(self, node: int, task: int) -> tuple[Piece, ...]:
        """The node's own computation for a task."""

    def needs(self, node: int, task: int) -> Needs:
        """What the node must receive from its children for a task."""

    def path(self, task: int) -> tuple[int, ...]:
        """The share index of a task at each level."""

    def size(self, task: int) -> int:
        """The number of samples in a task."""


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


@dataclass(frozen=True)
class _Grouped:
    """The samples of a batch, and the groups of workers that can do each other's tasks."""

    tree: Tree
    stragglers: int
    samples: int

    @cached_property
    def groups(self) -> Groups:
        """The groups of replicas."""
        return Groups(self.tree, self.stragglers)

    def group(self, node: int) -> range:
        """The siblings that can do each other's tasks, or all compute the same unit."""
        return self.groups.place(node)[1]


@dataclass(frozen=True)
class Owned(_Grouped):
    """Every worker owns one unit; a task is the units of a subtree, and its name is the worker at the top.

    Each member of a group can do the task of any member: its own first, then the others in turn. This is the
    progressive order. If no straggler is tolerated, every group is one worker: uncoded.
    """

    capacity: tuple[float, ...] | None = None
    blocks: int = 1

    def __post_init__(self) -> None:
        units = self.tree.workers * self.blocks
        if self.samples < units:
            each = f", each in {self.blocks} blocks" if self.blocks > 1 else ""
            raise PlanError(
                f"{self.samples} samples cannot be shared by {self.tree.workers} workers{each}; "
                f"take at least {units} samples or fewer workers"
            )
        _ = self.groups, self._bounds

    @cached_property
    def _bounds(self) -> tuple[int, ...] | None:
        """The start of each unit, in preorder, if there are capacities."""
        if self.capacity is None:
            return None
        check_capacity(self.capacity, self.tree.workers)
        in_order: list[Fraction] = [Fraction(0)] * self.tree.workers
        for worker, capacity in enumerate(self.capacity, start=1):
            in_order[self.tree.preorder(worker)] = Fraction(capacity)
        total = sum(in_order)
        bounds = tuple(int(part * self.samples / total) for part in accumulate(in_order, initial=Fraction(0)))
        for worker, capacity in enumerate(self.capacity, start=1):
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

    def path(self, task: int) -> tuple[int, ...]:
        """The owner's index within its group, at each level."""
        return tuple(owner - self.groups.place(owner)[1].start for owner in self.tree.ancestors(task))

    def size(self, task: int) -> int:
        """The number of samples that a subtree owns."""
        if task == 0:
            return self.samples
        place = self.tree.preorder(task)
        return self._bound(place + self.tree.subtree_size(task)) - self._bound(place)

    def _bound(self, place: int) -> int:
        return place * self.samples // self.tree.workers if self._bounds is None else self._bounds[place]

    def _unit(self, owner: int) -> tuple[Piece, ...]:
        if owner == 0:
            return ()
        place = self.tree.preorder(owner)
        start, stop = self._bound(place), self._bound(place + 1)
        return tuple(
            (Range(start + part.start, start + part.stop),) for part in split_evenly(stop - start, self.blocks)
        )


@dataclass(frozen=True)
class Replicated(_Grouped):
    """Every group owns one unit, and each of its members computes it at once: eager repetition.

    With each group collapsed into one node, the tree has 1/r of its nodes. A task is the units of a subtree of this
    smaller tree, and its name is the node at the top.
    """

    def __post_init__(self) -> None:
        if not self.tree.is_complete:
            raise SchemeError(
                f"the eager order needs all leaves on the last level, but this tree ({self.tree}) has leaves above it; "
                "use the progressive order or another number of workers"
            )
        if self.samples < self.collapsed.workers:
            raise PlanError(
                f"{self.samples} samples cannot be cut into {self.collapsed.workers} units, one for each group of "
                f"{self.tree.workers} workers; take at least {self.collapsed.workers} samples or fewer workers"
            )

    @cached_property
    def collapsed(self) -> Tree:
        """The tree with every group as one node."""
        sizes = tuple(accumulate(self.groups.counts, lambda size, count: size * count, initial=1))
        return Tree(sizes, sizes[:-1])

    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The one task of the group."""
        return (self.collapsed.children(parent_task)[self.groups.place(node)[0]],)

    def pieces(self, node: int, task: int) -> tuple[Piece, ...]:
        """The group's unit."""
        if task == 0:
            return ()
        place = self.collapsed.preorder(task)
        return ((Range(self._bound(place), self._bound(place + 1)),),)

    def size(self, task: int) -> int:
        """The number of samples that a subtree of groups owns."""
        if task == 0:
            return self.samples
        place = self.collapsed.preorder(task)
        return self._bound(place + self.collapsed.subtree_size(task)) - self._bound(place)

    def _bound(self, place: int) -> int:
        return place * self.samples // self.collapsed.workers

    def needs(self, node: int, task: int) -> Needs:
        """One copy of each group's task."""
        pairs = zip(self.collapsed.children(task), self.groups.under(node), strict=True)
        return Needs(tuple(NeededTask(below, tuple(members)) for below, members in pairs))

    def path(self, task: int) -> tuple[int, ...]:
        """One share at each level."""
        return (0,) * self.collapsed.level(task)


def check_capacity(capacity: Sequence[float], workers: int) -> None:
    """Raise `SchemeError` unless there is one positive capacity for each worker."""
    if len(capacity) != workers:
        raise SchemeError(f"capacity needs one number for each of {workers} workers, got {len(capacity)}")
    for worker, value in enumerate(capacity, start=1):
        if not 0 < value < float("inf"):
            raise SchemeError(f"the capacity of worker {worker} must be a positive number, got {value}")
