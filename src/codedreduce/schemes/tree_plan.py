"""A plan over a tree; `allocation` has the three ways to lay a batch over one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from codedreduce.errors import PlanError, TooManyStragglers
from codedreduce.schemes.plan import Array, Gradients, Piece, Plan, Unit, evaluate
from codedreduce.topology import Tree
from codedreduce.vectors import combine, empty_like

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import TreeScheme


class TreePlan(Plan):
    """For each node of a tree: its tasks in their order, its computation, and what it waits for.

    A way to lay a batch over a tree answers the questions about a node and a task (`group`, `order`, `pieces`, `needs`)
    in time proportional to the depth of the tree. The name of a task is an integer; the root's is 0.
    """

    scheme: TreeScheme

    @property
    def tree(self) -> Tree:
        """The tree the plan is laid over."""
        return self.scheme.tree

    @abstractmethod
    def order(self, node: int, parent_task: int) -> tuple[int, ...]:
        """The tasks of a worker, in order, while its parent works on `parent_task`."""

    @abstractmethod
    def pieces(self, node: int, task: int) -> tuple[Piece, ...]:
        """The node's own computation for a task."""

    @abstractmethod
    def size(self, task: int) -> int:
        """The number of samples in a task."""

    @property
    def has_redundancy(self) -> bool:
        """Whether a parent may ask one child for another's share."""
        return self.scheme.order == "progressive" and self.scheme.stragglers > 0

    @property
    def wait_for(self) -> int | None:
        """The number of workers that suffice, if late work counts in the next round; None if every sum is complete."""
        return getattr(self.scheme, "wait_for", None)

    def is_worker(self, node: int) -> bool:
        """Whether a worker has this number."""
        return 1 <= node <= self.workers

    def is_delegated(self, task: int) -> bool:
        """Whether a task is a parent's own unit, which a child computes instead; it then needs no children."""
        return task > self.workers

    def may_be_asked(self, node: int, task: int) -> bool:
        """Whether a worker may have to do a task."""
        if self.is_delegated(task):
            parent = self.tree.parent(node)
            return parent > 0 and self.has_redundancy and task - self.workers in self.tasks(parent)
        return task in self.tasks(node)

    def unit(self, node: int, task: int) -> Unit:
        """The computation of a worker itself for a task, or in place of its parent."""
        if self.is_delegated(task):
            owner = task - self.workers
            return Unit(task, self.pieces(self.tree.parent(node), owner))
        return Unit(task, self.pieces(node, task))

    def delegated(self, task: int) -> int:
        """The name of the owner's own unit of a task, when a child of the owner computes that unit instead.

        A parent can compute slowly and still forward quickly. Then only its own unit is late, and an idle child can
        compute it: in the progressive order every child also holds the samples that its parent may have to compute.
        """
        return self.workers + task

    def tasks(self, node: int) -> Iterator[int]:
        """Every task that a node may have to do, in the order in which it would do them."""
        if node == 0:
            yield 0
            return
        for parent_task in self.tasks(self.tree.parent(node)):
            yield from self.order(node, parent_task)

    def units(self, node: int) -> Iterator[Unit]:
        """A worker's units in the order in which it computes them, one at a time."""
        if node == 0:
            raise PlanError("the root, node 0, has no data and computes nothing; ask for a worker, 1 or above")
        return (self.unit(node, task) for task in self.tasks(node))

    def held(self, node: int) -> Iterator[Unit]:
        """All units that a worker may have to compute: its own, and in the progressive order its parent's."""
        yield from self.units(node)
        parent = self.tree.parent(node)
        if parent and self.has_redundancy:
            for task in self.tasks(parent):
                yield self.unit(node, self.delegated(task))

    def tolerates(self, stragglers: Collection[int]) -> bool:
        """Whether a round ends without these workers."""
        return 0 not in self.cut_off(stragglers)

    def cut_off(self, stragglers: Collection[int]) -> set[int]:
        """The nodes that cannot deliver: stragglers, and parents with too many missing children."""
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
        """The sum that the root gets, evaluated directly: the sum over the batch, in the order of the tree.

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
        terms = [evaluate(gradients, piece) for piece in self.pieces(node, task)]
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
