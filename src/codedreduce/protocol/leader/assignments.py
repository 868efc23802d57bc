"""The assignment of each rank in a round: parts that it has not delivered, its known progress, and its deadlines."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.pace import Links, Pace
from codedreduce.protocol.leader.stragglers import RankView
from codedreduce.schemes import Part

#: Entries of the agenda above which the void ones are removed.
MOST_VOID = 64


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


class Deadlines:
    """The expected times of ranks in this round; and an agenda: which ranks to check, and when."""

    def __init__(self, settings: Settings, pace: Pace, links: Links, *, shows_progress: bool) -> None:
        self._settings = settings
        self._policy = policy = settings.policy
        self._pace = pace
        self._links = links
        self._shows_progress = shows_progress  # a unit of one block shows none before it is done
        self._rounds: deque[float] = deque(maxlen=policy.rounds_timed)
        self._round = 0.0
        self._slower: list[float] = []  # block times of ranks that have finished, as multiples of the expected ones
        self._later: list[float] = []  # seconds by which these ranks began later than expected
        self.slowdown = 1.0
        self._delay = 0.0
        self._most = MOST_VOID
        self._agenda: list[
            tuple[float, int, int, Assignment]
        ] = []  # when to check which rank; void if the stamp differs

    def begin(self) -> None:
        """Begin a new round."""
        self._round = median(self._rounds) if self._rounds else 0.0
        self._slower = []
        self._later = []
        self.slowdown = 1.0
        self._delay = 0.0
        self._agenda = []

    def over(self, seconds: float) -> None:
        """A round is over, after `seconds`."""
        self._rounds.append(seconds)

    def expect(self, assignment: Assignment, now: float, lag: float = 0.0) -> None:
        """A rank has work from now on: note when it should be done, and when to check."""
        each = self._pace.block(assignment.rank) or self._pace.usual()
        if each is None:
            return  # no rank's pace is known
        assignment.each = each
        assignment.since = assignment.moved = now
        assignment.expected = now + lag + assignment.blocks * each
        self.look_at(assignment, self.at(assignment, self._policy.ask_after))

    def through(self, assignment: Assignment, block: float, now: float) -> None:
        """A rank has finished its assignment: update how much slower and later all ranks are in this round."""
        expected = assignment.expected - assignment.since
        if expected > 0:
            slower = max(1.0, block / assignment.each)
            insort(self._slower, slower)
            insort(self._later, max(0.0, now - assignment.since - slower * expected))
            self._pace.ended(max(0.0, (now - assignment.since) / expected - 1))
            self.slowdown = self._slower[len(self._slower) // 3]
            self._delay = self._later[len(self._later) // 3]

    def view(self, assignment: Assignment, *, is_present: bool = True, is_current: bool = True) -> RankView:
        """What is known of a rank with work."""
        settings, policy = self._settings, self._policy
        expected = self.slowdown * (assignment.expected - assignment.since)
        if settings.head_start:
            known = self._pace.block(assignment.rank) is not None
            fraction = settings.head_start if known else max(policy.unknown_margin, settings.head_start)
            of_a_round = policy.round_margin * settings.head_start * self._round
            margin = max(fraction * expected, of_a_round, self.least)
        else:
            margin = settings.least_head_start
        return RankView(
            rank=assignment.rank, since=assignment.since, expected=expected, margin=margin,
            pace=assignment.pace(self.slowdown), moved=assignment.moved, heard=assignment.heard, asked=assignment.asked,
            is_present=is_present, is_current=is_current, is_helping=assignment.is_helping,
            has_begun=assignment.has_begun, shows_progress=self._shows_progress, vector=self._links.vector,
            spread=self._pace.spread() * expected, delay=0.0 if assignment.delivered else self._delay,
            round=self._round, least_timeout=self.least,
        )  # fmt: skip

    def at(self, assignment: Assignment, part: float) -> float:
        """When this fraction of a rank's margin has passed."""
        return self.view(assignment).late_at(part, self._policy)

    @property
    def least(self) -> float:
        """The least timeout for an answer."""
        return max(self._settings.least_head_start, self._held_up())

    def _held_up(self) -> float:
        """How long a small message may wait behind vectors on a link."""
        unknown = 0.0 if self._links.is_known else self._settings.unknown_seconds
        return self._policy.vector_queue * max(self._links.vector, unknown)

    # -- the agenda

    def look_at(self, assignment: Assignment, when: float) -> None:
        """Check a rank at that time, unless its assignment has changed."""
        heapq.heappush(self._agenda, (when, assignment.rank, assignment.stamp, assignment))
        if len(self._agenda) > self._most:  # mostly void: a rank reports its progress often
            self._agenda = [one for one in self._agenda if one[2] == one[3].stamp]
            heapq.heapify(self._agenda)
            self._most = max(MOST_VOID, 2 * len(self._agenda))

    def next_look(self) -> float:
        """The time of the next check."""
        while self._agenda and self._agenda[0][2] != self._agenda[0][3].stamp:
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else float("inf")

    def due(self, now: float) -> list[Assignment]:
        """The assignments to check now."""
        assignments = []
        while self.next_look() <= now:
            assignments.append(heapq.heappop(self._agenda)[3])
        return assignments
