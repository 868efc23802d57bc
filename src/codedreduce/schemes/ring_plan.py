"""A plan over a ring: reduce-scatter, then all-gather."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from codedreduce.codes.repetition import split_evenly
from codedreduce.errors import PlanError, TooManyStragglers
from codedreduce.schemes.plan import Array, Gradients, NeededTask, Needs, Plan, Range, Unit, evaluate

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import RingAllReduce


class RingPlan(Plan):
    """N workers, N equal ranges, N segments of the vector.

    In each of steps 0..N-2 a worker adds its part to a segment and passes the segment on. In the next N-1 steps the
    finished segments go round. Segment c starts at worker c+1 and is finished at worker c.

    >>> from codedreduce import RingAllReduce
    >>> plan = RingAllReduce(4).plan(samples=4)
    >>> plan.next(4), plan.previous(1)
    (1, 4)
    """

    scheme: RingAllReduce
    first_node: ClassVar[int] = 1

    def next(self, node: int) -> int:
        """The worker that receives from `node`."""
        return node % self.workers + 1

    def previous(self, node: int) -> int:
        """The worker that sends to `node`."""
        return (node - 2) % self.workers + 1

    def group(self, node: int) -> range:
        """Only the node itself: no worker can do the task of another."""
        return range(node, node + 1)

    def units(self, node: int) -> Iterator[Unit]:
        """A worker's one unit."""
        if not 1 <= node <= self.workers:
            raise PlanError(f"node {node} is not a worker of this ring: they are 1..{self.workers}")
        return iter((self.unit(node),))

    def unit(self, node: int) -> Unit:
        """The computation of a worker: the node-th of N equal ranges."""
        start, stop = ((place * self.samples) // self.workers for place in (node - 1, node))
        return Unit(node, ((Range(start, stop),),))

    def needs(self, node: int, task: int) -> Needs:
        """Every worker receives from the one before it."""
        return Needs((NeededTask(task, (self.previous(node),)),))

    def segments(self, length: int) -> tuple[range, ...]:
        """The segments of a vector; workers c+1, c+2, ..., c (as 1..N) reduce segment c in this order."""
        return split_evenly(length, self.workers)

    def tolerates(self, stragglers: Collection[int]) -> bool:
        """True only without stragglers: a ring waits for all workers."""
        return not stragglers

    def reference(self, gradients: Gradients, stragglers: Collection[int] = ()) -> Array:
        """The sum over the batch; each segment is added in the order in which it goes round the ring."""
        if stragglers:
            raise TooManyStragglers(missing=stragglers, tolerance=0, among="workers")
        parts = [evaluate(gradients, self.unit(node).pieces[0]) for node in range(1, self.workers + 1)]
        total = np.empty_like(parts[0])
        for index, segment in enumerate(self.segments(len(total))):
            here = slice(segment.start, segment.stop)
            total[here] = parts[index][here]
            for step in range(1, self.workers):
                total[here] += parts[(index + step) % self.workers][here]
        return total
