"""The interface of every plan, and its data types: ranges, pieces, tasks, needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from codedreduce.codes import GradientCode

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import Scheme


@dataclass(frozen=True, slots=True)
class Range:
    """Samples start..stop-1 of the batch, all with the same weight."""

    start: int
    stop: int
    weight: float = 1.0

    def __len__(self) -> int:
        return self.stop - self.start


#: One pass over the model: the weighted gradient sum over these ranges, in this order.
Piece = tuple[Range, ...]


def samples_in(pieces: Sequence[Piece]) -> int:
    """The number of samples in all pieces."""
    return sum(len(part) for piece in pieces for part in piece)


@dataclass(frozen=True, slots=True)
class NeededTask:
    """A task of which a parent needs one copy, and the children that can deliver it."""

    task: int
    providers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a node must receive for a task before it can send.

    Without a code: one copy of every share, added in this order. With a code: the messages of enough children,
    weighted by the code's decoding vector; share i is then child i's message.
    """

    shares: tuple[NeededTask, ...] = ()
    code: GradientCode | None = None


Array = npt.NDArray[Any]

#: Either one gradient per sample (d x p), or a function from a piece to the sum of its weighted gradients.
Gradients = Array | Callable[[Piece], Array]


@dataclass(frozen=True, slots=True)
class Unit:
    """One task of a node: its name, and the pieces that the node computes."""

    task: int
    pieces: tuple[Piece, ...]

    @property
    def samples(self) -> int:
        """The number of samples that the node itself computes."""
        return samples_in(self.pieces)


class Copies(NamedTuple):
    """The number of workers that hold a sample: the minimum over all samples, the mean, the maximum."""

    least: int
    mean: float
    most: int


class Plan(ABC):
    """A scheme laid over its workers and d samples: what each node computes, and what the root gets. Immutable.

    `first_node` is the number of the first node of a run: 0 for the root or rank 0, 1 for the first worker of a ring.
    """

    first_node: ClassVar[int] = 0

    def __init__(self, scheme: Scheme, samples: int) -> None:
        self.scheme = scheme
        self.samples = samples

    @property
    def workers(self) -> int:
        """N."""
        return self.scheme.workers

    @property
    def computing(self) -> range:
        """The nodes that compute."""
        return range(1, self.workers + 1)

    @property
    def nodes(self) -> range:
        """All nodes of a run."""
        return range(self.first_node, self.computing.stop)

    @abstractmethod
    def group(self, node: int) -> range:
        """The workers that can do the node's task, including itself."""

    @abstractmethod
    def units(self, node: int) -> Iterator[Unit]:
        """A worker's units in the order in which it computes them."""

    def calm_units(self, node: int) -> Iterator[Unit]:
        """The units that a worker computes in a fault-free round."""
        return islice(self.units(node), 1)

    def held(self, node: int) -> Iterator[Unit]:
        """All units that a worker may have to compute."""
        return self.units(node)

    def holds(self, node: int) -> list[range]:
        """The samples that a worker may have to compute, in order."""
        parts = sorted({(part.start, part.stop) for unit in self.held(node) for piece in unit.pieces for part in piece})
        merged: list[range] = []
        for start, stop in parts:
            if merged and start <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(stop, merged[-1].stop))
            else:
                merged.append(range(start, stop))
        return merged

    def copies(self) -> Copies:
        """The number of workers that hold a sample, and so can compute it. Visits the data of all workers.

        >>> from codedreduce import CodedReduce, Tree
        >>> CodedReduce(Tree.regular(fanout=4, depth=2), stragglers=1).plan(samples=6300).copies()
        Copies(least=4, mean=5.2, most=10)
        """
        changes: Counter[int] = Counter({0: 0, self.samples: 0})
        for node in self.computing:
            for one in self.holds(node):
                changes[one.start] += 1
                changes[one.stop] -= 1
        places = sorted(changes)
        holders = list(accumulate(changes[place] for place in places))[:-1]
        total = sum(count * (stop - start) for count, (start, stop) in zip(holders, pairwise(places), strict=True))
        return Copies(min(holders), total / self.samples, max(holders))

    @abstractmethod
    def needs(self, node: int, task: int) -> Needs:
        """What a node must receive for a task before it can send."""

    @abstractmethod
    def tolerates(self, stragglers: Collection[int]) -> bool:
        """Whether a round ends without these workers."""

    @abstractmethod
    def reference(self, gradients: Gradients, stragglers: Collection[int] = ()) -> Array:
        """The sum that the root gets, evaluated directly."""

    def calm_load(self, node: int) -> int:
        """The number of samples that a worker computes in a fault-free round."""
        return sum(unit.samples for unit in self.calm_units(node))

    def load(self, node: int) -> int:
        """The largest number of samples that a worker computes."""
        return sum(unit.samples for unit in self.units(node))


def evaluate(gradients: Gradients, piece: Piece) -> Array:
    """The sum of the weighted gradients of a piece."""
    if callable(gradients):
        return gradients(piece)
    total = np.zeros(gradients.shape[1:], dtype=gradients.dtype)
    for part in piece:
        rows = gradients[part.start : part.stop]
        total += rows.sum(axis=0) if part.weight == 1 else (gradients.dtype.type(part.weight) * rows).sum(axis=0)
    return total
