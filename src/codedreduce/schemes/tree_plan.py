"""A plan over a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from codedreduce.errors import PlanError, TooManyStragglers
from codedreduce.schemes.allocation import Allocation
from codedreduce.schemes.plan import Array, Gradients, Plan, Unit, evaluate
from codedreduce.schemes.work import Needs
from codedreduce.topology import Tree
from codedreduce.vectors import combine, empty_like

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import TreeScheme


class TreePlan(Plan):
    """Who computes what on a tree, which tasks in which order, and what each parent waits for."""

    scheme: TreeScheme

    def __init__(self, scheme: TreeScheme, samples: int, allocation: Allocation) -> None:
        super().__init__(scheme, samples)
        self.allocation = allocation

    @property
    def tree(self) -> Tree:
        """The tree the plan is laid over."""
        return self.scheme.tree

    def group(self, node: int) -> range:
        """The siblings any one of which can stand in for the node, itself among them."""
        return self.allocation.group(node)

    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The tasks a worker goes through while its parent works on `parent_task`."""
        return self.allocation.order(node, parent_task)

    @property
    def has_redundancy(self) -> bool:
        """Whether a parent may ask one child for another's share."""
        return self.scheme.order == "progressive" and self.scheme.stragglers > 0

    @property
    def wait_for(self) -> int | None:
        """How many workers are enough, if late ones join the next round; None if every round is whole."""
        return getattr(self.scheme, "wait_for", None)

    def is_worker(self, node: int) -> bool:
        """Whether there is a worker of this number."""
        return 1 <= node <= self.workers

    def is_delegated(self, task: int) -> bool:
        """Whether a task is the one unit of a parent, done by a child in its place, and so needs nobody below."""
        return task > self.workers

    def may_be_asked(self, node: int, task: int) -> bool:
        """Whether a worker can be asked for a task."""
        if self.is_delegated(task):
            parent = self.tree.parent(node)
            return parent > 0 and self.has_redundancy and task - self.workers in self.tasks(parent)
        return task in self.tasks(node)

    def unit(self, node: int, task: int) -> Unit:
        """What a worker itself computes for a task, or for its parent in place of the parent."""
        if self.is_delegated(task):
            owner = task - self.workers
            return Unit(task, self.allocation.path(owner), self.allocation.pieces(self.tree.parent(node), owner))
        return Unit(task, self.allocation.path(task), self.allocation.pieces(node, task))

    def delegated(self, task: int) -> int:
        """The name of the one unit that the owner of a task computes itself, when a child computes it instead.

        A parent can be slow at computing and yet quick at passing on. Then its own unit alone is late, and an idle
        child can do it: in the progressive order every child also holds what its parent may have to compute.
        """
        return self.workers + task

    def needs(self, node: int, task: int) -> Needs:
        """What a node must receive for a task before it can send."""
        return self.allocation.needs(node, task)

    def size(self, task: int) -> int:
        """How many samples a task holds."""
        return self.allocation.size(task)

    def tasks(self, node: int) -> Iterator[int]:
        """Every task a node may be asked for, in the order it would come to them."""
        if node == 0:
            yield 0
            return
        for parent_task in self.tasks(self.tree.parent(node)):
            yield from self.order(node, parent_task)

    def units(self, node: int) -> Iterator[Unit]:
        """A worker's units in the order it works through them, one at a time."""
        if node == 0:
            raise PlanError("the root, node 0, has no data and computes nothing; ask for a worker, 1 or above")
        return (self.unit(node, task) for task in self.tasks(node))

    def held(self, node: int) -> Iterator[Unit]:
        """Everything a worker may be asked to compute: its units, and in the progressive order its parent's."""
        yield from self.units(node)
        parent = self.tree.parent(node)
        if parent and self.has_redundancy:
            for task in self.tasks(parent):
                yield self.unit(node, self.delegated(task))

    def tolerates(self, stragglers: Collection[int]) -> bool:
        """Whether a round ends without these workers."""
        return 0 not in self.cut_off(stragglers)

    def cut_off(self, stragglers: Collection[int]) -> set[int]:
        """The nodes that cannot deliver: stragglers, and parents that miss too many children."""
        silent = set(stragglers)
        strangers = sorted(node for node in silent if not 1 <= node <= self.workers)
        if strangers:
            raise PlanError(f"stragglers must be workers, 1..{self.workers}; got {strangers}")
        for level in range(self.tree.depth, 0, -1):
            nodes = self.tree.on_level(level)
            for parent in {self.tree.parent(node) for node in silent if node in nodes}:
                if not self.scheme.suffices(self, parent, silent):
                    silent.add(parent)
        return silent

    def reference(self, gradients: Gradients, stragglers: Collection[int] = ()) -> Array:
        """What the root gets, evaluated directly: the sum over the batch, in the order the tree takes it.

        >>> from codedreduce import CodedReduce, Tree
        >>> plan = CodedReduce(Tree.regular(fanout=2, depth=2), stragglers=1).plan(samples=12)
        >>> plan.reference(np.ones((12, 1)), stragglers={1, 5})
        array([12.])
        """
        silent = self.cut_off(stragglers)
        if 0 in silent:
            raise TooManyStragglers(missing=stragglers, tolerance=self.scheme.stragglers, among="workers")
        return self.scheme.scale(self, self._value(0, 0, gradients, silent), silent)

    def _value(self, node: int, task: int, gradients: Gradients, silent: set[int]) -> Array:
        terms = [evaluate(gradients, piece) for piece in self.allocation.pieces(node, task)]
        weights = [1.0] * len(terms)
        needs = self.needs(node, task)
        providers = [next((one for one in share.providers if one not in silent), None) for share in needs.shares]
        here = [
            (index, provider, needs.shares[index].task)
            for index, provider in enumerate(providers)
            if provider is not None
        ]
        decoding = needs.code.decode(index for index, _, _ in here) if needs.code else np.ones(len(providers))
        for index, provider, below in here:
            if decoding[index]:
                terms.append(self._value(provider, below, gradients, silent))
                weights.append(float(decoding[index]))
        return combine(terms, weights, empty_like(terms[0]))
