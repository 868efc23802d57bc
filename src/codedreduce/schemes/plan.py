"""What every plan can be asked, whatever it is laid over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from codedreduce.schemes.work import Needs, Piece, samples_in

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import Scheme

Array = npt.NDArray[Any]

#: Either one gradient per sample (d x p), or a function from a piece to the sum of its weighted gradients.
Gradients = Array | Callable[[Piece], Array]


@dataclass(frozen=True, slots=True)
class Unit:
    """One task of a node: its name, its path (share index at each level) and what the node itself computes for it."""

    task: int
    path: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def samples(self) -> int:
        """How many samples the node itself computes."""
        return samples_in(self.pieces)


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Everything a plan says of one worker."""

    node: int
    group: range
    units: tuple[Unit, ...]
    needs: tuple[Needs, ...]
    calm_load: int
    load: int


class Copies(NamedTuple):
    """How many workers hold a sample: the least held one, the mean, the most held."""

    least: int
    mean: float
    most: int


class Plan(ABC):
    """A scheme laid over its workers and d samples. Immutable; says who computes what, and what the root gets.

    `first_node` is the number of the node that a run begins with: the root or rank 0, or on a ring the first worker, 1.
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
        """The workers any one of which can stand in for the node, itself among them."""

    @abstractmethod
    def units(self, node: int) -> Iterator[Unit]:
        """A worker's units in the order it works through them."""

    def calm_units(self, node: int) -> Iterator[Unit]:
        """What a calm round asks of a worker."""
        return islice(self.units(node), 1)

    def held(self, node: int) -> Iterator[Unit]:
        """Everything a worker may be asked to compute."""
        return self.units(node)

    def holds(self, node: int) -> list[range]:
        """The samples a worker may be asked to compute, in order."""
        parts = sorted({(part.start, part.stop) for unit in self.held(node) for piece in unit.pieces for part in piece})
        merged: list[range] = []
        for start, stop in parts:
            if merged and start <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(stop, merged[-1].stop))
            else:
                merged.append(range(start, stop))
        return merged

    def copies(self) -> Copies:
        """How many workers hold a sample, and so can be asked for it. Goes through everything all workers hold.

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
        """What the root gets, evaluated directly."""

    def work(self, node: int) -> NodeWork:
        """All that concerns one worker."""
        units = tuple(self.units(node))
        return NodeWork(
            node=node,
            group=self.group(node),
            units=units,
            needs=tuple(self.needs(node, unit.task) for unit in units),
            calm_load=self.calm_load(node),
            load=sum(unit.samples for unit in units),
        )

    def calm_load(self, node: int) -> int:
        """Samples a worker computes when nobody straggles."""
        return sum(unit.samples for unit in self.calm_units(node))

    def load(self, node: int) -> int:
        """Samples a worker computes at most."""
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
