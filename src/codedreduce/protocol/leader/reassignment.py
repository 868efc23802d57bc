"""Reassigns the work of late ranks to idle ranks: first that of the late rank that is expected to finish last.

Helpers count as late ranks, too: the next idle rank takes what they have not begun. So no rank is idle while another
has blocks to spare. A rank that wakes up helps with the work that was taken from it.

Reports may get lost, and there may be no rank that can help. So after a while the leader asks all late ranks again, and
repeats that now and then.

The leader takes nothing from a rank that makes progress until it knows how long a vector takes: what is taken travels
as a vector.

Reassigning work that a rank may be doing is a bet, as with the parents of a tree. The leader makes few bets where they
do not pay (`Budget`). Taking work from a rank that has reported its progress is no bet.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from codedreduce.protocol.core.budget import Budget
from codedreduce.protocol.core.events import Actions, Note
from codedreduce.protocol.core.messages import Cut, Do, Message, Tell
from codedreduce.protocol.core.policy import Policy
from codedreduce.protocol.leader.assignments import Assignment, Assignments, Deadlines, WorkOrder
from codedreduce.protocol.leader.pace import NEVER, Links, Pace
from codedreduce.protocol.leader.participation import Participation
from codedreduce.protocol.leader.stragglers import Decision, Helper, Relief, Remedy, Rest, decide, relieve
from codedreduce.schemes import Part, StripedPlan

Say = Callable[[int, Message, float], None]


class Reassignment:
    """The late and the idle ranks of a round."""

    def __init__(
        self, actions: Actions, plan: StripedPlan, policy: Policy, participation: Participation, pace: Pace,
        links: Links, deadlines: Deadlines, say: Say, *, own: int = 0, generation: int = 0,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._plan = plan
        self._policy = policy
        self._own = own
        self._participation = participation
        self._pace = pace
        self._links = links
        self._deadlines = deadlines
        self._say = say
        self.assignments = Assignments()
        self.budget = Budget(len(plan.all_units), policy)
        self.round = 0
        self._generation = generation
        self.is_acting = False
        self._idle: dict[int, None] = {}  # in the order in which they became idle
        self._catch_up: list[tuple[float, int, int]] = []  # late ranks: expected end (negative), rank, stamp
        self._noted: set[int] = set()  # the ranks in `_catch_up`
        self._bets: dict[int, bool] = {}  # units with a bet in this round, and whether the budget counted it
        self.failed: dict[int, dict[int, str]] = {}  # by unit: the ranks that failed at it in this round, and why
        self._late: set[int] = set()  # ranks that were late in this round
        self._silent: dict[int, str] = {}  # ranks to replace as reducers, and why, since the last `take_silent`
        self._began = 0.0
        self._ask_again_at = self._far_too_late = float("inf")

    def begin(self, round_: int, now: float) -> None:
        """Begin a new round."""
        self.round = round_
        self._began = now
        self._ask_again_at = self._far_too_late = float("inf")
        self.assignments.clear()
        self.failed = {}
        self._idle = {}
        self._catch_up = []
        self._noted = set()
        self._bets = {}
        self._silent = {}
        self._late = set()

    def first_look(self) -> float:
        """All ranks have their assignments: when to check on them, even if none of them ever reports."""
        silent = self._policy.stuck_silent
        due = (self._deadlines.at(assignment, silent) for assignment in self.assignments.all() if assignment.each)
        self._ask_again_at = max(due, default=float("inf"))
        self._far_too_late = self._began + self._policy.bets_unlimited * (self._ask_again_at - self._began)
        return self._next_look()

    def was_late(self, rank: int) -> None:
        """Others did work of a rank, or it delivered nothing that is of use."""
        self._late.add(rank)

    def late(self) -> tuple[int, ...]:
        """The ranks that were late in this round."""
        return tuple(sorted(self._late))

    def take_silent(self) -> dict[int, str]:
        """The late ranks that did not answer since the last call, with the reason to replace them as reducers."""
        silent, self._silent = self._silent, {}
        return silent

    def give(self, rank: int, parts: Iterable[Part], now: float) -> None:
        """Assign parts to a rank at the start of a round."""
        assignment = self.assignments.give(rank, [WorkOrder(part, now) for part in parts])
        lag = self._pace.lag(rank)
        self._deadlines.expect(assignment, now, lag if lag < NEVER else 0.0)

    def help(self, rank: int, parts: tuple[Part, ...], now: float) -> None:
        """Have a rank compute parts in place of another."""
        assignment = self.assignments.give(rank, [WorkOrder(part, now, helps=True) for part in parts])
        self._idle.pop(rank, None)
        self._deadlines.expect(assignment, now)
        self._note(assignment, now)
        self._say(rank, Do(generation=self._generation, round=self.round, parts=parts), now)

    def hand_out(self, unit: int, blocks: Iterable[int], now: float) -> None:
        """Assign those of these blocks of a unit that no rank does: a rank did less than its assignment, or is back."""
        covered = {
            block for _, order in self.assignments.holding(unit) if not order.is_relieved and not order.is_trial
            for block in range(order.part.first, order.part.last)
        }  # fmt: skip
        missing = [block for block in blocks if block not in covered]
        if missing and (helper := self._least_busy(unit)) is not None:
            first = next((block for block in range(self._plan.blocks) if block not in missing), self._plan.blocks)
            parts = [Part(unit, 0, first)] if first else []
            parts += [Part(unit, block, block + 1) for block in missing if block >= first]
            self.help(helper, tuple(parts), now)

    def _least_busy(self, unit: int) -> int | None:
        assignments, participation = self.assignments, self._participation
        group = [rank for rank in self._plan.readers(unit) if not self.has_failed(rank, unit)]
        able = [rank for rank in group if participation.can_help(rank)]
        able = able or [rank for rank in group if participation.can_compute(rank)]
        return min(
            able, key=lambda rank: (assignments.of(rank).is_stuck, assignments.of(rank).blocks, rank), default=None
        )

    def given_again(self, rank: int, now: float, did: WorkOrder | None = None) -> tuple[Part, ...]:
        """The parts that a returning rank still owes, timed from now on; without the one it has just done."""
        assignment = self.assignments.of(rank)
        owed = [order for order in assignment.orders if order is not did]
        assignment.heard, assignment.asked = None, None
        if owed:
            for order in owed:
                order.given = now
            assignment.done = 0
            self._deadlines.expect(assignment, now)
        return tuple(order.part for order in owed)

    def is_out(self, rank: int) -> None:
        """A rank gets no more work in this round."""
        self._idle.pop(rank, None)

    def has_failed(self, rank: int, unit: int) -> bool:
        """Whether a rank has failed at a unit in this round."""
        return rank in self.failed.get(unit, ())

    def is_idle(self, rank: int) -> None:
        """Note a rank as idle, if it has no work, is not stuck, and can help."""
        assignment = self.assignments.of(rank)
        if not assignment.orders:
            self._noted.discard(rank)
        if not assignment.orders and not assignment.is_stuck and self._participation.can_help(rank):
            self._idle[rank] = None

    def gone(self, rank: int, now: float) -> None:
        """A rank cannot be reached: others must do its work at once."""
        self._idle.pop(rank, None)
        assignment = self.assignments.of(rank)
        assignment.stamp += 1
        self._note(assignment, now)

    def told(self, assignment: Assignment, done: int, now: float) -> None:
        """A rank has reported its progress."""
        was_asked, assignment.asked = assignment.asked is not None, None
        assignment.heard = now
        if assignment.orders:
            done = min(done, assignment.orders[0].part.blocks - 1)
            if done > assignment.done:
                assignment.done, assignment.moved = done, now
            elif not was_asked:
                return  # the report is no answer, and shows no progress
            assignment.stamp += 1
            if was_asked:
                self._note(assignment, now)
            else:
                self._deadlines.look_at(assignment, self._deadlines.at(assignment, self._policy.ask_after))

    def delivered(self, assignment: Assignment, order: WorkOrder | None, now: float) -> None:
        """A rank has delivered a part, with or without an order for it."""
        assignment.delivered += 1
        assignment.asked = None
        assignment.heard = assignment.moved = now
        assignment.is_stuck = False
        if order is not None:
            self.assignments.take(assignment, order)
            if assignment.orders:
                self._deadlines.expect(assignment, now)
                if order.helps:
                    self._note(assignment, now)
        self.is_idle(assignment.rank)

    def cannot(self, assignment: Assignment, unit: int, now: float) -> None:
        """A rank failed at a unit: the leader takes the unit from it, and expects it to go on with its other work."""
        assignment.asked = None
        assignment.heard = assignment.moved = now
        for order in [one for one in assignment.orders if one.part.unit == unit]:
            self.assignments.take(assignment, order)
        if assignment.orders:
            self._deadlines.expect(assignment, now)
        self.is_idle(assignment.rank)

    def complete(self, unit: int, now: float) -> list[tuple[Assignment, WorkOrder, int]]:
        """A unit is done: stop the ranks that still work on it. Return them, with their orders and blocks done."""
        left = []
        for assignment, order in self.assignments.holding(unit):
            left.append((assignment, order, assignment.done if order is assignment.orders[0] else 0))
            self.assignments.take(assignment, order)
            self._say(assignment.rank, Cut(generation=self._generation, round=self.round, unit=unit, end=0), now)
            if assignment.orders:
                self._deadlines.expect(assignment, now)
            self.is_idle(assignment.rank)
        self._settle(unit, any(not order.helps and not order.is_trial for _, order, _ in left))
        return left

    def _settle(self, unit: int, is_late: bool) -> None:
        """Settle the bet on a unit, if there is one."""
        if unit not in self._bets:
            self.budget.on_time(unit)
            return
        counted = self._bets.pop(unit)
        if is_late:
            self.budget.bet_won(unit, counted=counted)
        else:
            self.budget.on_time(unit)

    # -- late and idle ranks

    def look(self, now: float) -> float:
        """Have idle ranks take over what late ones have not done; return when to check again."""
        for assignment in self._deadlines.due(now):
            self._note(assignment, now)
        if not self.is_acting:
            self.is_acting = True
            self._match(now)
            if now >= self._ask_again_at:
                self._ask_again(now)
            self.is_acting = False
        return self._next_look()

    def _next_look(self) -> float:
        return min(self._deadlines.next_look() if self._idle else float("inf"), self._ask_again_at)

    def _ask_again(self, now: float) -> None:
        """Ask all late ranks: their reports may have been lost."""
        for assignment in list(self.assignments.all()):
            if (
                assignment.rank != self._own
                and assignment.orders
                and self._is_alive(assignment)
                and self._deadlines.at(assignment, self._policy.stuck_silent) <= now
            ):
                self._say(assignment.rank, Tell(generation=self._generation, round=self.round), now)
        self._ask_again_at = now + self._policy.retry_elapsed * (now - self._began) + self._deadlines.least

    def _note(self, assignment: Assignment, now: float) -> None:
        """Note a rank with work that others could take."""
        if assignment.to_relieve() is not None:
            if self._is_alive(assignment):
                finish = max(now, assignment.heard or assignment.since) + assignment.blocks * assignment.pace(
                    self._deadlines.slowdown
                )
            else:
                finish = float("inf")
            heapq.heappush(self._catch_up, (-finish, assignment.rank, assignment.stamp))
            self._noted.add(assignment.rank)

    def _is_alive(self, assignment: Assignment) -> bool:
        return assignment.rank in self._participation.present

    def _match(self, now: float) -> None:
        while self._idle and self._catch_up:
            _, rank, stamp = self._catch_up[0]
            assignment = self.assignments.of(rank)
            if stamp != assignment.stamp:
                heapq.heappop(self._catch_up)
                continue
            when = self._consider(assignment, now)
            if when is None:
                break  # no more bets for now
            if self._catch_up and self._catch_up[0][1:] == (rank, stamp):
                heapq.heappop(self._catch_up)
                self._noted.discard(rank)
            if when > now:
                self._deadlines.look_at(assignment, when)
            elif stamp != assignment.stamp:
                self._note(assignment, now)

    def _consider(self, assignment: Assignment, now: float) -> float | None:
        """Do what is decided about a rank; return when to check it again, or None if no bet is possible now."""
        rank = assignment.rank
        view = self._deadlines.view(
            assignment, is_present=self._is_alive(assignment), is_current=self._participation.is_current(rank)
        )
        decision = decide(view, now, self._policy)
        match decision.remedy:
            case Remedy.WAIT:
                return decision.until
            case Remedy.ASK:
                assignment.asked = now
                self._say(rank, Tell(generation=self._generation, round=self.round), now)
                return decision.until if assignment.asked is not None else now
            case Remedy.REPLACE:
                self._silent[rank] = decision.reason
        return self._relieve(assignment, decision, now)

    def _relieve(self, assignment: Assignment, decision: Decision, now: float) -> float | None:
        """Have idle ranks take over as much as pays; return when to check the rank again."""
        order, is_stuck = assignment.to_relieve(), decision.remedy is not Remedy.TAKE_REST
        retry = self._policy.retry_elapsed * (now - assignment.since)
        if order is None:
            return float("inf")
        if not is_stuck and not self._links.is_known:  # the cost of blocks that travel alone is unknown
            return now + retry + self._deadlines.least
        rest = self._rest(assignment, order, now, is_stuck=is_stuck)
        view = self._deadlines.view(assignment)
        later = max(now + assignment.blocks * view.pace + self._policy.stuck_not_begun * view.margin, now + retry)
        helpers = self._helpers(order.part.unit, now)
        vector = self._links.vector or self._pace.usual() or 0.0
        relief = relieve(rest, helpers, vector, self._plan.workers, self._policy.least_saving) if helpers else None
        if relief is None:
            return later
        is_begun = is_stuck and (assignment.asked is not None or order is assignment.orders[0])
        is_twice = is_begun and self._is_alive(assignment) and relief.end == order.part.first
        if is_twice and not self._may_bet(order.part.unit, now):
            return None
        if is_stuck and not is_begun:  # the rank has not begun this part, and need not do it
            relief = replace(relief, end=order.part.first)
        self._report(assignment.rank, order, relief, decision)
        self._hand_over(assignment, order, relief, now, is_begun=is_begun)
        assignment.is_stuck = assignment.is_stuck or is_stuck
        return now

    def _report(self, rank: int, order: WorkOrder, relief: Relief, decision: Decision) -> None:
        """Report that others do work of a rank, and why."""
        helpers = tuple(helper for helper, _ in relief.parts)
        blocks = sum(part.blocks for _, parts in relief.parts for part in parts)
        names = f"rank{'s' if len(helpers) > 1 else ''} {', '.join(map(str, helpers))}"
        words = f"round {self.round}: {decision.reason}: {names} must do {blocks} blocks of unit {order.part.unit}"
        self._actions.append(Note(kind="reassigned", reason=words, round=self.round, nodes=(rank, *helpers)))

    def _rest(self, assignment: Assignment, order: WorkOrder, now: float, *, is_stuck: bool) -> Rest:
        """The rest of an order."""
        if is_stuck:
            return Rest(part=order.part, pace=float("inf"))
        pace = assignment.pace(self._deadlines.slowdown)
        under_way = min(pace, now - assignment.moved)
        if order is assignment.orders[0]:
            return Rest(part=order.part, pace=pace, done=assignment.done, begun=assignment.done + 1, ahead=-under_way)
        return Rest(part=order.part, pace=pace, ahead=assignment.before(order) * pace - under_way)

    def _may_bet(self, unit: int, now: float) -> bool:
        """Whether to risk computing a unit twice: if it was needed last time, or within the budget."""
        if unit not in self._bets and not self.budget.is_needy(unit) and now < self._far_too_late:
            if not self.budget.may_bet(len(self._bets)):
                return False
            self.budget.bet_made()
            self._bets[unit] = True
        self._bets.setdefault(unit, False)
        return True

    def _helpers(self, unit: int, now: float) -> list[Helper]:
        """Ranks that can do a unit, of those idle longest, the quickest first; at most as many as per late rank."""
        most = min(self._plan.blocks, max(1, len(self._idle) // max(1, len(self._noted))))
        usual = self._pace.usual() or 0.0
        group = [rank for rank in self._plan.readers(unit) if not self.has_failed(rank, unit)]
        ranks = [
            rank for rank in islice(self._idle, self._policy.idle_searched)
            if rank in group and (self.assignments.of(rank).delivered or self._pace.lag(rank) <= usual)
        ]  # fmt: skip
        if not ranks:  # then also ranks that are excluded, or were not heard from
            ranks = [
                rank for rank in group if self._participation.can_compute(rank) and not self.assignments.of(rank).orders
            ]
        able = [
            Helper(rank=rank, block=self._pace.block(rank) or usual, link=max(0.0, self._links.free_at(rank) - now))
            for rank in ranks
        ]
        return sorted(able, key=lambda one: (one.link + one.block, one.rank))[:most]

    def _hand_over(
        self,
        assignment: Assignment,
        order: WorkOrder,
        relief: Relief,
        now: float,
        *,
        is_begun: bool,
    ) -> None:
        """Assign parts to the helpers, and less to the owner. It may still finish first what it may have begun."""
        if not self._is_alive(assignment):
            self.assignments.take(assignment, order)
        elif is_begun:
            assignment.stamp += 1
            order.is_relieved = True
        if self._is_alive(assignment):
            self._cut(assignment, order, relief.end, now)
        for helper, parts in relief.parts:
            self.help(helper, parts, now)

    def _cut(self, assignment: Assignment, order: WorkOrder, end: int, now: float) -> None:
        """Have a rank do less of a part, or nothing of it."""
        unit, first, last = order.part
        if order.is_relieved and end <= first:
            return  # it may still finish first
        others = (one.part.first for one in assignment.orders if one is not order and one.part.unit == unit)
        if not any(other >= end for other in others):
            self._say(assignment.rank, Cut(generation=self._generation, round=self.round, unit=unit, end=end), now)
        if end > first:
            order.part = Part(unit, first, end)
            assignment.stamp += 1
        else:
            self.assignments.take(assignment, order)
        assignment.expected -= (last - max(first, end)) * assignment.each
