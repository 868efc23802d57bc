"""The assignment of each rank in a round: parts that it has not delivered, and its known progress.

`relief` says how idle ranks take over the work of a late rank: a pure function of its progress and of the idle ranks.

Idle ranks take blocks from the last one backwards, as many as let all finish soonest. The owner keeps what it has
begun, unless it seems to be stuck. Then the idle ranks take all of its blocks, and may repeat some.

A block that travels alone is one more vector on a link. Where vectors are short compared with blocks, helpers take
blocks one by one, last of all the one that the owner may be computing. Where vectors are long, one helper computes as
many blocks as possible into one vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from codedreduce.protocol.core.policy import DEFAULT_POLICY
from codedreduce.schemes import Part


@dataclass(slots=True)
class WorkOrder:
    """A part assigned to a rank. `helps`: in place of another rank. `is_trial`: another rank computes it, too."""

    part: Part
    given: float
    helps: bool = False
    is_trial: bool = False
    is_relieved: bool = False  # other ranks compute it, too


class Assignment:
    """The work orders of one rank, in the sequence in which it computes them."""

    __slots__ = (
        "asked", "delivered", "done", "each", "expected", "heard", "is_stuck", "moved", "orders", "rank", "since",
        "stamp",
    )  # fmt: skip

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.orders: list[WorkOrder] = []
        self.done = 0  # blocks of the first order that are known to be done
        self.delivered = 0  # parts, in this round
        self.since = 0.0  # when the leader assigned these orders, or when the rank last delivered
        self.expected = 0.0  # when the rank should have delivered all of it
        self.each = 0.0  # expected seconds per block
        self.heard: float | None = None  # when the rank last reported its progress
        self.asked: float | None = None  # when the leader asked it, if it has not answered
        self.moved = 0.0  # when it last showed progress
        self.is_stuck = False  # others do its work; it gets no more work until it has delivered something
        self.stamp = 0  # changes with every change of the assignment: notes with an older stamp are void

    @property
    def blocks(self) -> int:
        """The number of blocks left to do, as far as is known."""
        return sum(order.part.blocks for order in self.orders) - self.done

    @property
    def has_begun(self) -> bool:
        """Whether the rank has shown any progress in this round."""
        return self.done > 0 or self.delivered > 0

    @property
    def is_helping(self) -> bool:
        """Whether it does the work of others, block by block: it then reports every block."""
        return bool(self.orders) and all(order.helps and order.part.blocks == 1 for order in self.orders)

    def to_relieve(self) -> WorkOrder | None:
        """The order that others could take over: of the unit that it would do last, the one with the last blocks."""
        orders = [order for order in self.orders if not order.is_relieved and not order.is_trial]
        if not orders:
            return None
        last = orders[-1].part
        return max((one for one in orders if one.part.unit == last.unit), key=lambda one: one.part.first)

    def before(self, order: WorkOrder) -> int:
        """Blocks that the rank does before it begins with an order."""
        position = self.orders.index(order)
        return sum(one.part.blocks for one in self.orders[:position]) - (self.done if position else 0)

    def find(self, part: Part) -> WorkOrder | None:
        """The order that a delivered part belongs to."""
        return next((one for one in self.orders if one.part[:2] == part[:2]), None)

    def pace(self, slowdown: float) -> float:
        """Seconds per block: as expected in this round, or as the rank has shown if that is longer."""
        each = self.each * slowdown
        if self.heard is not None and self.done:
            each = max(each, (self.heard - self.since) / (self.done + 1))
        return each


class Assignments:
    """The assignments of all ranks, and the ranks that have blocks of each unit."""

    def __init__(self) -> None:
        self._assignments: dict[int, Assignment] = {}
        self._holders: dict[int, set[int]] = {}

    def clear(self) -> None:
        """Begin a new round."""
        self._assignments = {}
        self._holders = {}

    def of(self, rank: int) -> Assignment:
        """A rank's assignment."""
        if rank not in self._assignments:
            self._assignments[rank] = Assignment(rank)
        return self._assignments[rank]

    def all(self) -> Iterable[Assignment]:
        """The assignments of this round."""
        return self._assignments.values()

    def give(self, rank: int, orders: Iterable[WorkOrder]) -> Assignment:
        """Add orders to a rank's assignment."""
        assignment = self.of(rank)
        assignment.stamp += 1
        for order in orders:
            assignment.orders.append(order)
            self._holders.setdefault(order.part.unit, set()).add(rank)
        return assignment

    def take(self, assignment: Assignment, order: WorkOrder) -> None:
        """Remove an order from an assignment: the rank has done it, or others do it."""
        if order is assignment.orders[0]:
            assignment.done = 0
        assignment.orders.remove(order)
        assignment.stamp += 1
        if all(one.part.unit != order.part.unit for one in assignment.orders):
            self._holders[order.part.unit].discard(assignment.rank)

    def holding(self, unit: int) -> list[tuple[Assignment, WorkOrder]]:
        """The assignments that include parts of a unit, with these orders."""
        return [
            (self._assignments[rank], order)
            for rank in sorted(self._holders.get(unit, ()))
            for order in self._assignments[rank].orders
            if order.part.unit == unit
        ]


Dealt = tuple[tuple[int, tuple[Part, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Helper:
    """An idle rank: its seconds per block, and how long its link is still busy."""

    rank: int
    block: float
    link: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The rest of a part: `done` blocks of it are done, `begun` are begun. Each takes the owner `pace` seconds, from
    `ahead` seconds on. An infinite pace: the owner does nothing.
    """

    part: Part
    pace: float
    done: int = 0
    begun: int = 0
    ahead: float = 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether the owner seems to do nothing."""
        return self.pace == float("inf")

    def through(self, end: int, vector: float) -> float:
        """When the owner finishes the blocks before `end`."""
        left = end - self.part.first - self.done
        return self.ahead + left * self.pace + vector if left > 0 else max(0.0, self.ahead)


@dataclass(frozen=True, kw_only=True)
class Relief:
    """The block before which the owner stops, and the parts of each helper."""

    end: int
    parts: Dealt


def relieve(
    rest: Rest, helpers: Sequence[Helper], vector: float, ranks: int, least_saving: float = DEFAULT_POLICY.least_saving
) -> Relief | None:
    """The work that helpers, the best ones first, take over; None if that saves too little (see `Policy`).

    >>> idle = [Helper(rank=0, block=1.0), Helper(rank=1, block=1.0)]
    >>> relieve(Rest(part=Part(3, 0, 8), pace=1.0, done=4, begun=5), idle, 0.0, 6)
    Relief(end=6, parts=((0, (Part(unit=3, first=6, last=7), Part(unit=3, first=7, last=8))),))
    >>> stuck = Rest(part=Part(3, 0, 4), pace=float("inf"))
    >>> relieve(stuck, idle, 9.0, 6)
    Relief(end=0, parts=((0, (Part(unit=3, first=0, last=4),)),))
    >>> relieve(stuck, idle[:1], 0.0, 6).parts[0][1][-1]
    Part(unit=3, first=0, last=1)
    """
    best: tuple[float, Relief] | None = None
    for relief in _ways(rest, helpers, vector):
        time = _time(rest, relief, helpers, vector, ranks)
        if best is None or time < best[0]:
            best = (time, relief)
    if best is None or best[0] > rest.through(rest.part.last, vector) - least_saving * helpers[0].block:
        return None
    return best[1]


def _ways(rest: Rest, helpers: Sequence[Helper], vector: float) -> Iterator[Relief]:
    part = rest.part
    if rest.is_stuck:
        for count in range(1, min(len(helpers), part.blocks) + 1):
            some = helpers[:count]
            if part.first == 0 and vector * part.blocks > some[0].block:
                yield Relief(end=0, parts=_in_one_go(part, some))
            elif part.first == 0:
                yield Relief(end=1, parts=_one_by_one(part, some))
            else:
                yield Relief(end=part.first, parts=_one_by_one(part, some))
        return
    for end in range(part.last - 1, part.first + rest.begun - 1, -1):
        taken = Part(part.unit, end, part.last)
        for count in range(1, min(len(helpers), taken.blocks) + 1):
            deal = _in_one_go if end == 0 else _one_by_one
            yield Relief(end=end, parts=deal(taken, helpers[:count]))


def _time(rest: Rest, relief: Relief, helpers: Sequence[Helper], vector: float, ranks: int) -> float:
    """When all would finish."""
    theirs = max(
        max(sum(part.blocks for part in parts) * helper.block + vector, helper.link + len(parts) * vector)
        for helper, (_, parts) in zip(helpers, relief.parts, strict=False)
    )
    vectors = sum(len(parts) for _, parts in relief.parts)
    own = 0.0 if rest.is_stuck else rest.through(relief.end, vector)
    return max(own, theirs) + vectors * vector / ranks


def _in_one_go(part: Part, helpers: Sequence[Helper]) -> Dealt:
    """The first helper computes the first blocks of a unit as one sum, the others compute single blocks."""
    end = -(-part.blocks // len(helpers))
    first = (helpers[0].rank, (Part(part.unit, 0, end),))
    return (first, *_one_by_one(Part(part.unit, end, part.last), helpers[1:])) if end < part.last else (first,)


def _one_by_one(part: Part, helpers: Sequence[Helper]) -> Dealt:
    """Deal out single blocks. Each helper does the later ones later, and a unit's first one last of all."""
    shares: list[list[Part]] = [[] for _ in helpers]
    for position, block in enumerate(range(part.last - 1, part.first - 1, -1)):
        shares[position % len(helpers)].append(Part(part.unit, block, block + 1))
    ordered = (sorted(share, key=lambda one: one.first or part.last) for share in shares)
    return tuple((helper.rank, tuple(share)) for helper, share in zip(helpers, ordered, strict=True) if share)
