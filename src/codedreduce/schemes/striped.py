"""A plan without a root: every rank computes, reduces a stripe of the sum, and steps a replica of the model.

The samples are cut into *units*, one for each rank by default, and a unit into *blocks*. The sum is one fixed
expression: units in order, and within a unit blocks in order, each added to the sum so far. One rank may compute the
sum of a unit's first blocks at once; any ranks may compute the others, which are added one by one. The result is
bit-identical. It is also bit-identical for any number of ranks with the same number of units.

The vector is cut into *stripes* of whole chunks, one for each reducer. The sizes of the stripes may change from round
to round; they do not change bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from codedreduce.codes.repetition import split_evenly
from codedreduce.errors import PlanError, TooManyStragglers
from codedreduce.schemes.plan import Array, Gradients, NeededTask, Needs, Piece, Plan, Range, Unit, evaluate

if TYPE_CHECKING:
    from codedreduce.schemes.scheme import Striped

#: Bytes that a link carries while a rank handles a message: 1 Gbit/s, 50 microseconds.
BYTES_A_MESSAGE = 125e6 * 50e-6

#: Blocks of a unit with at least `SAMPLES_FOR_MANY` samples, and of a smaller unit. Small blocks balance the load
#: better, but ranks compute them less efficiently.
MANY_BLOCKS, FEW_BLOCKS = 8, 4
SAMPLES_FOR_MANY = 128

#: The default weight of a rank's stripe.
FULL_WEIGHT = 16


class Costs(NamedTuple):
    """The costs that determine the number of reducers.

    `message_bytes`: bytes that a rank sends, or adds, in the time of one message. `most_reducers`: the largest number
    of reducers that can work at the same time.
    """

    message_bytes: float
    most_reducers: int


OVER_A_NETWORK = Costs(BYTES_A_MESSAGE, sys.maxsize)


class Part(NamedTuple):
    """Blocks first..last-1 of a unit: a partial sum that one rank computes and sends as one vector.

    The blocks after a unit's first ones are added one by one, so a part has one block unless it begins with the first.
    """

    unit: int
    first: int
    last: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
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
        """The rank that computes a unit, unless another is quicker."""
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
        """All of the rank's own units."""
        return self.units(node)

    def unit(self, number: int) -> Unit:
        """A unit: one of the equal ranges of the batch, block by block."""
        if number not in self.all_units:
            raise PlanError(f"there is no unit {number} in this plan: they are 0..{len(self.all_units) - 1}")
        start, stop = ((place * self.samples) // len(self.all_units) for place in (number, number + 1))
        blocks = split_evenly(stop - start, self.blocks)
        return Unit(number, tuple((Range(start + one.start, start + one.stop),) for one in blocks))

    def held(self, node: int) -> Iterator[Unit]:
        """The units of all ranks in the rank's group: its own, and those it may have to compute."""
        return (self.unit(unit) for other in self.group(node) for unit in self.own(other))

    def pieces(self, part: Part) -> tuple[Piece, ...]:
        """The pieces of a part."""
        return self.unit(part.unit).pieces[part.first : part.last]

    def is_part(self, part: Part) -> bool:
        """Whether a part with these bounds exists in this plan."""
        first, last = part.first, part.last
        return part.unit in self.all_units and 0 <= first < last <= self.blocks and (first == 0 or last == first + 1)

    def needs(self, node: int, task: int) -> Needs:
        """A reducer needs every unit, from any rank that can read its samples."""
        return Needs(tuple(NeededTask(unit, tuple(self.readers(unit))) for unit in self.all_units))

    def tolerates(self, stragglers: Collection[int]) -> bool:
        """Whether at least one rank of each group is left; any rank can be the leader."""
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

    def reducers(self, length: int, itemsize: int, costs: Costs = OVER_A_NETWORK) -> int:
        """The number of reducers: all ranks, unless stripes would be so short that messages cost more than bytes.

        With k reducers, a reducer's link carries N V / k each way, and every rank handles k messages each way. The sum
        of both is smallest at k = sqrt(N V / b), where b bytes take as long as a message.

        >>> from codedreduce import Striped
        >>> plan = Striped(84).plan(samples=8400)
        >>> plan.reducers(2_000_000, 4), plan.reducers(5_800, 4), plan.reducers(10, 4)
        (84, 18, 1)
        """
        if self.scheme.stripes is not None:
            return self.scheme.stripes
        best = math.ceil(math.sqrt(self.workers * length * itemsize / costs.message_bytes))
        return max(1, min(self.workers, costs.most_reducers, best, length))

    def chunk(self, length: int, itemsize: int, about: float, costs: Costs = OVER_A_NETWORK) -> int:
        """Numbers in a chunk of about this many bytes, such that stripes of equal weight have equally many chunks."""
        reducers = self.reducers(length, itemsize, costs)
        each = max(1, round(length * itemsize / reducers / about))
        return -(-length // (reducers * each))

    def weights(self, reducers: int, exceptions: Mapping[int, int]) -> list[int]:
        """The weight of each rank's stripe: from `exceptions`, else the default for reducers, 0 for other ranks."""
        weights = [0] * self.workers
        for place in range(reducers):
            weights[place * self.workers // reducers] = FULL_WEIGHT
        for rank, weight in exceptions.items():
            if 0 <= rank < self.workers:
                weights[rank] = weight
        return weights

    def stripes(self, chunks: int, weights: list[int]) -> tuple[range, ...]:
        """The chunks of each rank's stripe. Rank 0 measures transfer times on its chunks, so rounding favors it.

        >>> from codedreduce import Striped
        >>> plan = Striped(4).plan(samples=400)
        >>> plan.stripes(8, [16, 16, 0, 32])
        (range(0, 2), range(2, 4), range(4, 4), range(4, 8))
        """
        total = sum(weights) or 1
        bounds = [0, *(-(-reached * chunks // total) for reached in accumulate(weights))]
        if not sum(weights):
            bounds = [0] + [chunks] * self.workers  # one rank must reduce: rank 0
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
