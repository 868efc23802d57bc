"""What each rank has in hand in a round: parts it has not delivered, and what is known of its progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from codedreduce.schemes import Part


@dataclass(slots=True)
class WorkOrder:
    """A part that a rank was given. `helps`: in another's place. `is_trial`: another does it, too."""

    part: Part
    given: float
    helps: bool = False
    is_trial: bool = False
    is_relieved: bool = False  # others do it, too


class Assignment:
    """The orders of one rank, in the order in which it does them."""

    __slots__ = (
        "asked", "delivered", "done", "each", "expected", "heard", "is_stuck", "moved", "orders", "rank", "since",
        "stamp",
    )  # fmt: skip

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.orders: list[WorkOrder] = []
        self.done = 0  # blocks of the first order that are known to be done
        self.delivered = 0  # parts, in this round
        self.since = 0.0  # when it was given what it has, or delivered last
        self.expected = 0.0  # when all of it should be delivered
        self.each = 0.0  # seconds that a block is expected to take
        self.heard: float | None = None  # when it last said how far it is
        self.asked: float | None = None  # when it was asked, if it has not answered
        self.moved = 0.0  # when it was last seen to have done something
        self.is_stuck = False  # others do its work; it is given none until it has delivered something
        self.stamp = 0  # another one with every change: what was noted of the hand before is void

    @property
    def blocks(self) -> int:
        """How many blocks are left to do, as far as is known."""
        return sum(order.part.blocks for order in self.orders) - self.done

    @property
    def has_begun(self) -> bool:
        """Whether it has shown any progress in this round."""
        return self.done > 0 or self.delivered > 0

    @property
    def is_helping(self) -> bool:
        """Whether it does others' work, in blocks: each one that is done is heard of."""
        return bool(self.orders) and all(order.helps and order.part.blocks == 1 for order in self.orders)

    def to_relieve(self) -> WorkOrder | None:
        """What others could take over: of what it would do last, the last block."""
        orders = [order for order in self.orders if not order.is_relieved and not order.is_trial]
        if not orders:
            return None
        last = orders[-1].part
        return max((one for one in orders if one.part.unit == last.unit), key=lambda one: one.part.first)

    def before(self, order: WorkOrder) -> int:
        """Blocks that it does before it begins with an order."""
        position = self.orders.index(order)
        return sum(one.part.blocks for one in self.orders[:position]) - (self.done if position else 0)

    def find(self, part: Part) -> WorkOrder | None:
        """The order that a delivered part is of."""
        return next((one for one in self.orders if one.part[:2] == part[:2]), None)

    def pace(self, slowdown: float) -> float:
        """Seconds for a block: what is expected in this round, or what it has shown if that is worse."""
        each = self.each * slowdown
        if self.heard is not None and self.done:
            each = max(each, (self.heard - self.since) / (self.done + 1))
        return each


class Assignments:
    """The hands of all ranks, and who has blocks of which unit."""

    def __init__(self) -> None:
        self._assignments: dict[int, Assignment] = {}
        self._holders: dict[int, set[int]] = {}

    def clear(self) -> None:
        """A new round."""
        self._assignments = {}
        self._holders = {}

    def of(self, rank: int) -> Assignment:
        """A rank's hand."""
        if rank not in self._assignments:
            self._assignments[rank] = Assignment(rank)
        return self._assignments[rank]

    def all(self) -> Iterable[Assignment]:
        """Those that were given something in this round."""
        return self._assignments.values()

    def give(self, rank: int, orders: Iterable[WorkOrder]) -> Assignment:
        """A rank is given orders."""
        assignment = self.of(rank)
        assignment.stamp += 1
        for order in orders:
            assignment.orders.append(order)
            self._holders.setdefault(order.part.unit, set()).add(rank)
        return assignment

    def take(self, assignment: Assignment, order: WorkOrder) -> None:
        """A rank no longer has an order: it is done, or others do it."""
        if order is assignment.orders[0]:
            assignment.done = 0
        assignment.orders.remove(order)
        assignment.stamp += 1
        if all(one.part.unit != order.part.unit for one in assignment.orders):
            self._holders[order.part.unit].discard(assignment.rank)

    def holding(self, unit: int) -> list[tuple[Assignment, WorkOrder]]:
        """Who has parts of a unit, and which."""
        return [
            (self._assignments[rank], order)
            for rank in sorted(self._holders.get(unit, ()))
            for order in self._assignments[rank].orders
            if order.part.unit == unit
        ]
