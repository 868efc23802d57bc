"""The assignment of each rank in a round: parts that it has not delivered, and its known progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
