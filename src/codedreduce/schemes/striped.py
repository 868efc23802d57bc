"""A plan without a root: every rank computes, keeps a stripe of the sum, and steps a replica of the model.

The samples are cut into *units*, as many as there are ranks unless another number is said, and a unit into *blocks*.
The sum is one fixed expression: units in order, and within a unit blocks in order, each added to the sum so far. So a
unit is its first blocks' sum, by whoever did them in one go, plus the others one by one, by whoever did these: the bits
are the same. They are also the same for any number of ranks that have as many units between them.

The vector is cut into *stripes* of whole chunks, one for each keeper. Who keeps how much may change from round to
round, and does not change bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from codedreduce.codes.repetition import split_evenly
from codedreduce.errors import PlanError, TooManyStragglers
from codedreduce.schemes.plan import Array, Gradients, Plan, Unit, evaluate
from codedreduce.schemes.work import NeededTask, Needs, Piece, Range

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import Striped

#: Bytes that a link carries while a node handles a message: 1 Gbit/s, 50 microseconds.
BYTES_A_MESSAGE = 125e6 * 50e-6

#: Blocks of a unit, by the samples it has at least: small blocks are handed out finely, and computed less efficiently.
MANY_BLOCKS, FEW_BLOCKS = 8, 4
SAMPLES_FOR_MANY = 128

#: What a rank's stripe weighs when nothing is said of it.
FULL_WEIGHT = 16


class Costs(NamedTuple):
    """What the number of keepers follows from.

    Bytes that are carried, or added up, while a node handles a message; and how many keepers can be at work at a time.
    """

    message_bytes: float
    most_keepers: int


OVER_A_NETWORK = Costs(BYTES_A_MESSAGE, sys.maxsize)


class Part(NamedTuple):
    """Blocks first..last-1 of a unit: a sum that one rank computes and sends as one vector.

    What follows a unit's first blocks is added one by one, so a part has one block unless it begins with the first.
    """

    unit: int
    first: int
    last: int

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return self.last - self.first


class StripedPlan(Plan):
    """N ranks, numbered from 0; N units or more, of `blocks` blocks each. A rank's own units follow one another.

    >>> from codedreduce import Striped
    >>> plan = Striped(4, units=6).plan(samples=60)
    >>> [list(plan.own(rank)) for rank in plan.computing]
    [[0, 1], [2], [3, 4], [5]]
    """

    scheme: Striped
    first_node: ClassVar[int] = 0

    def __init__(self, scheme: Striped, samples: int) -> None:
        super().__init__(scheme, samples)
        self.all_units = range(scheme.units or scheme.ranks)
        self.blocks = _blocks(scheme, samples)
        self._groups = _groups(scheme)
        self._group_of = tuple(group for group in self._groups for _ in group)

    @property
    def computing(self) -> range:
        """All ranks compute."""
        return range(self.workers)

    def group(self, node: int) -> range:
        """The ranks that can read a rank's samples."""
        return self._group_of[node]

    def owner(self, unit: int) -> int:
        """Whose a unit is: that rank computes it, unless another is quicker."""
        return unit * self.workers // len(self.all_units)

    def own(self, rank: int) -> range:
        """The numbers of a rank's own units."""
        start, stop = (-(-place * len(self.all_units) // self.workers) for place in (rank, rank + 1))
        return range(start, stop)

    def readers(self, unit: int) -> range:
        """The ranks that can read a unit's samples."""
        return self._group_of[self.owner(unit)]

    def units(self, node: int) -> Iterator[Unit]:
        """A rank's own units."""
        if node not in self.computing:
            raise PlanError(f"node {node} is not a rank of this plan: they are 0..{self.workers - 1}")
        return (self.unit(unit) for unit in self.own(node))

    def calm_units(self, node: int) -> Iterator[Unit]:
        """All of its own."""
        return self.units(node)

    def unit(self, number: int) -> Unit:
        """One of as many equal ranges, block by block."""
        if number not in self.all_units:
            raise PlanError(f"there is no unit {number} in this plan: they are 0..{len(self.all_units) - 1}")
        start, stop = ((place * self.samples) // len(self.all_units) for place in (number, number + 1))
        blocks = split_evenly(stop - start, self.blocks)
        return Unit(number, (0,), tuple((Range(start + one.start, start + one.stop),) for one in blocks))

    def held(self, node: int) -> Iterator[Unit]:
        """Its own units, and those it may be asked for."""
        return (self.unit(unit) for other in self.group(node) for unit in self.own(other))

    def pieces(self, part: Part) -> tuple[Piece, ...]:
        """What is computed for a part, piece by piece."""
        return self.unit(part.unit).pieces[part.first : part.last]

    def is_part(self, part: Part) -> bool:
        """Whether there is such a part."""
        first, last = part.first, part.last
        return part.unit in self.all_units and 0 <= first < last <= self.blocks and (first == 0 or last == first + 1)

    def needs(self, node: int, task: int) -> Needs:
        """A keeper needs every unit, from whoever computed it."""
        return Needs(tuple(NeededTask(unit, tuple(self.readers(unit))) for unit in self.all_units))

    def tolerates(self, stragglers: Collection[int]) -> bool:
        """Of those that can read a unit's samples one must be there; whoever leads can be another."""
        return all(any(one not in stragglers for one in group) for group in self._groups)

    def reference(self, gradients: Gradients, stragglers: Collection[int] = ()) -> Array:
        """Units in order, and blocks in order within a unit."""
        if not self.tolerates(stragglers):
            raise TooManyStragglers(missing=stragglers, tolerance=len(self._groups[0]) - 1, among="ranks")
        total: Array | None = None
        for number in self.all_units:
            first, *others = self.unit(number).pieces
            unit = evaluate(gradients, first)
            for piece in others:
                unit += evaluate(gradients, piece)
            if total is None:
                total = unit
            else:
                total += unit
        assert total is not None
        return total

    # -- stripes

    def keepers(self, length: int, itemsize: int, costs: Costs = OVER_A_NETWORK) -> int:
        """How many ranks keep a stripe: all of them, unless stripes would be so short that messages cost more.

        With k keepers a keeper's link carries N V / k each way, and everyone handles k messages each way; the sum of
        both is least at k = sqrt(N V / b), where b bytes take as long as a message.

        >>> from codedreduce import Striped
        >>> plan = Striped(84).plan(samples=8400)
        >>> plan.keepers(2_000_000, 4), plan.keepers(5_800, 4), plan.keepers(10, 4)
        (84, 18, 1)
        """
        if self.scheme.stripes is not None:
            return self.scheme.stripes
        best = math.ceil(math.sqrt(self.workers * length * itemsize / costs.message_bytes))
        return max(1, min(self.workers, costs.most_keepers, best, length))

    def chunk(self, length: int, itemsize: int, about: float, costs: Costs = OVER_A_NETWORK) -> int:
        """Numbers in a chunk of about so many bytes, such that stripes of one weight have as many chunks each."""
        keepers = self.keepers(length, itemsize, costs)
        each = max(1, round(length * itemsize / keepers / about))
        return -(-length // (keepers * each))

    def weights(self, keepers: int, exceptions: Mapping[int, int]) -> list[int]:
        """What each rank's stripe weighs: 0 for those that keep none, as said or in between."""
        weights = [0] * self.workers
        for place in range(keepers):
            weights[place * self.workers // keepers] = FULL_WEIGHT
        for rank, weight in exceptions.items():
            if 0 <= rank < self.workers:
                weights[rank] = weight
        return weights

    def stripes(self, chunks: int, weights: list[int]) -> tuple[range, ...]:
        """Which chunks each rank keeps; rank 0, which learns from them how long vectors take, no fewer than others.

        >>> from codedreduce import Striped
        >>> plan = Striped(4).plan(samples=400)
        >>> plan.stripes(8, [16, 16, 0, 32])
        (range(0, 2), range(2, 4), range(4, 4), range(4, 8))
        """
        total = sum(weights) or 1
        bounds = [0, *(-(-reached * chunks // total) for reached in accumulate(weights))]
        if not sum(weights):
            bounds = [0] + [chunks] * self.workers  # somebody must
        return tuple(range(one, other) for one, other in pairwise(bounds))


def _blocks(scheme: Striped, samples: int) -> int:
    units = scheme.units or scheme.ranks
    least = samples // units
    if scheme.blocks is None:
        return MANY_BLOCKS if least >= SAMPLES_FOR_MANY else max(1, min(FEW_BLOCKS, least))
    if scheme.blocks > least:
        raise PlanError(
            f"{samples} samples in {units} units are {least} for each, which cannot be cut into "
            f"{scheme.blocks} blocks; take at most {least}"
        )
    return scheme.blocks


def _groups(scheme: Striped) -> tuple[range, ...]:
    if scheme.reach == "all":
        return (range(scheme.workers),)
    return split_evenly(scheme.workers, max(1, scheme.workers // scheme.reach))
