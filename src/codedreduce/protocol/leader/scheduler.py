"""The leader's work for all ranks: it assigns blocks, detects late ranks, and reassigns what is missing.

A part of the machine of the rank that leads. Ranks report their progress in small messages; the scheduler never holds
a vector.

- Ranks heard from in the last round take part (`participation`). Work is distributed by the time that each rank needs
  for a block (`pace`), and a link for a vector (`round_start`, `distribution`).
- A rank is late after its expected time, extended as the others took longer in this round, plus a part of a head start
  (`stragglers`). The leader then reassigns what the rank has not begun to idle ranks. It reassigns what the rank may
  have begun when the rank seems to be stuck (`reassignment`). The result that is complete first counts.
- A late rank that does not answer reduces nothing for the rest of the round.
- When all units are done and the sum does not arrive, the leader asks reducers what they lack (`missing_sums`).

In a fault-free round every rank reports once that it is done, and sends no other message. The cost of a message here
does not grow with the number of ranks, except for logarithms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median

from codedreduce.protocol.core.audits import Mistakes
from codedreduce.protocol.core.blocks import SHORTEST, UnitParts
from codedreduce.protocol.core.events import Actions, Note, SetTimer, Transmit
from codedreduce.protocol.core.messages import (
    Checked,
    Do,
    Done,
    Go,
    Message,
    Mistaken,
    NewReducer,
    Status,
    Tell,
    Trouble,
    Unable,
    Want,
)
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.leader.assignments import Assignment, WorkOrder
from codedreduce.protocol.leader.missing_sums import MORE_PATIENCE, PATIENCE, MissingSums, Redone
from codedreduce.protocol.leader.pace import Deliveries, Links, Pace
from codedreduce.protocol.leader.participation import Participation
from codedreduce.protocol.leader.reassignment import Reassignment
from codedreduce.protocol.leader.round_start import RoundStart
from codedreduce.protocol.leader.stragglers import SILENT, Stragglers
from codedreduce.protocol.leader.verdicts import Verdicts
from codedreduce.schemes import Part, StripedPlan

#: Number of rounds for which the time from the last unit to the sum is remembered.
TAILS = 8

#: How long an intervention may take before the next one, as a fraction of the round so far.
LONGER = 0.1

#: A single block that took this many times longer than usual was begun late.
BEGUN_LATE = 2.0


class Scheduler:
    """The ranks of a run, as their leader sees them.

    `own` is the leader's rank. `tell` delivers to it the messages that other ranks receive by the network.
    """

    def __init__(
        self, actions: Actions, plan: StripedPlan, settings: Settings, tell: Callable[[Message, float], None],
        *, own: int = 0, generation: int | None = None, mistakes: Mistakes | None = None,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._plan = plan
        self._own = own
        self._settings = settings
        self._timing = settings.timing
        self._tell_self = tell
        self._mistakes = mistakes if mistakes is not None else Mistakes(settings.audit)
        self._participation = Participation(own, self._mistakes)
        self._pace = Pace(plan.workers)
        self._links = Links(plan.workers, settings.unknown_seconds, own)
        self._deliveries = Deliveries()
        self._lateness = Stragglers(settings, self._pace, self._links)
        self._generation = settings.generation if generation is None else generation
        self._work = Reassignment(
            self._actions, plan, self._participation, self._pace, self._links, self._lateness, self._say,
            own=own, generation=self._generation,
        )  # fmt: skip
        self._start = RoundStart(plan, settings, self._pace, self._links, own)
        self._audits = Verdicts(
            self._actions, plan, settings, self._participation, self._pace, self._work.assignments, self._mistakes,
            self._say, own=own, generation=self._generation,
        )  # fmt: skip
        self._sums = MissingSums(own=own)
        self._tails: deque[float] = deque(maxlen=TAILS)
        self.round = settings.after
        self._began = 0.0
        self._units: dict[int, UnitParts[None]] = {}  # units that are not complete
        self._taken: set[int] = set()  # units that no rank computes, since a rank has the sum
        self._units_done_at: float | None = None
        self._sum_due = 0.0  # when to ask reducers what they lack, if the sum has not arrived
        self._providers: dict[int, tuple[int, float]] = {}  # by unit: the rank of the last report, and when
        self._did: dict[int, set[int]] = {}  # by rank: units that it has done a part of
        self._late_timer = float("inf")
        self._weights: tuple[tuple[int, int], ...] = ()  # of stripes, as the round began
        self._resent = 0.0  # when reassigned stripes should be summed
        self.late: set[int] = set()

    # -- participation

    @property
    def present(self) -> set[int]:
        """The ranks that can be reached."""
        return self._participation.present

    @property
    def _is_on(self) -> bool:
        """Whether a round is on."""
        return bool(self._units) or self._units_done_at is not None or not self._audits.is_over

    def came(self, rank: int, now: float) -> None:
        """A rank joined or reconnected: send it the current round. The rank must show that it is at that round."""
        self._participation.came(rank)
        if self.round > self._settings.after:
            self._tell_of_round(rank, now)

    def _tell_of_round(self, rank: int, now: float) -> None:
        """Send a rank the current round and its reducers."""
        go = Go(generation=self._generation, round=self.round, reducers=self._weights)
        self._say(rank, go, now)
        self._tell_of_reducers(rank, now)

    def _tell_of_reducers(self, rank: int, now: float, *, itself: bool = False) -> None:
        """Send a rank the stripes with another reducer than planned; or only those that it reduces `itself`."""
        for stripe, reducer in self._sums.replaced():
            if reducer == rank or not itself:
                keep = NewReducer(generation=self._generation, round=self.round, stripe=stripe, reducer=reducer)
                self._say(rank, keep, now)

    def _hear_of(self, rank: int, now: float, did: WorkOrder | None = None) -> None:
        """A rank has shown that it is at the current round, perhaps by what it has done."""
        was_there = self._participation.is_current(rank)
        self._participation.heard(rank, now)
        if not was_there and self._is_on:
            self._is_back(rank, now, did)

    def _is_back(self, rank: int, now: float, did: WorkOrder | None) -> None:
        """A rank has arrived at the current round: send it again the work that it owes, as it may not have that.

        Also give it work that no rank at the round could do.
        """
        parts = self._work.given_again(rank, now, did)
        if parts:
            self._say(rank, Do(generation=self._generation, round=self.round, parts=parts), now)
        for unit in list(self._units):
            if rank in self._plan.readers(unit):
                self._hand_out_uncovered(unit, now)

    def must_renew(self, rank: int) -> None:
        """A rank takes the state of another, and does nothing until it has it."""
        self._participation.renews(rank)

    def is_elsewhere(self, rank: int) -> None:
        """A rank is in another round, and must show that it has reached the current one."""
        self._participation.renews(rank)

    def is_current(self, rank: int) -> bool:
        """Whether a rank is at the current round, as far as is known."""
        return self._participation.is_current(rank)

    def current(self) -> list[int]:
        """The ranks that are at the current round, as far as is known."""
        return self._participation.current()

    def leaves(self, rank: int) -> None:
        """A rank leaves after this round: others do its part of the next."""
        self._participation.leaves(rank)

    def staying(self) -> set[int]:
        """The other ranks that can be reached, and do not leave after this round."""
        return self._participation.staying()

    def gone(self, rank: int, now: float) -> None:
        """A rank cannot be reached: others do its work at once."""
        if rank not in self.present:
            return
        self._participation.gone(rank)
        self._sums.gone(rank)
        for unit in self._plan.own(rank):
            self._work.budget.on_time(unit)
        if self._is_on:
            self._work.gone(rank, now)
            self._reopen(now)
            self._audits.gone(rank, now)
            self._redo_undelivered(rank, now)
            self.look(now)
            for stripe in self._sums.reduced_by(rank):
                self._replace(stripe, now)

    def _redo_undelivered(self, rank: int, now: float) -> None:
        """Redo the units that an unreachable rank has just reported: its partial sums may not have arrived."""
        for unit, (provider, when) in list(self._providers.items()):
            recently = now - when <= 0.1 * (when - self._began) + self._links.free_at(rank) - when + self._links.vector
            if provider == rank and recently:
                self._redo(unit, now)

    # -- a round begins

    def begin(self, round_: int, now: float) -> Go:
        """Distribute the work of a round, and send it to all; return the work of the leader's own rank."""
        self.round = round_
        self._began = now
        self._participation.begin(round_, now)
        self._pace.refresh()
        self._lateness.begin()
        self._work.begin(round_, now)
        self._units = {unit: UnitParts(self._plan.blocks) for unit in self._plan.all_units}
        self._taken = set()
        self._units_done_at = None
        self._providers.clear()
        self._did = {}
        self._late_timer = float("inf")
        self.late = set()
        self._resent, resent = 0.0, self._resent
        could_begin = max(now, self._links.end(at_all=True), resent)  # other ranks may not have the last sum yet
        able = {rank for rank in self.present if not self._participation.is_wrong(rank)}
        loads = self._start.share_out(self._participation.taking_part(), able)
        checks = self._audits.begin(round_, loads, could_begin)
        self._weights = weights = self._start.weights(loads)
        self._sums = MissingSums(
            stripes=self._start.stripes(weights), units=len(self._plan.all_units),
            vector_is_known=self._links.is_known, own=self._own,
        )  # fmt: skip
        self._links.begin(self._sums.stripes)
        self._deliveries.begin()
        own = Go()
        for rank in sorted(self.present):
            parts = tuple(loads[rank].parts()) if rank in loads else ()
            if parts:
                begins = could_begin if rank != self._own else now
                self._work.give(rank, parts, begins + self._audits.ahead(rank, checks))
            parts = parts or self._trial(rank, now)
            go = Go(
                generation=self._generation, round=round_, parts=parts, reducers=weights, checks=checks.get(rank, ())
            )  # fmt: skip
            if rank != self._own:
                self._actions.append(Transmit(to=rank, message=go))
            else:
                own = go
        if not own.parts and not own.checks:
            self._participation.heard(self._own, now)
            self._work.is_idle(self._own)
        self._look_at(self._work.first_look(), now)
        if self._settings.say_waiting_after < float("inf"):
            self._actions.append(SetTimer(name=Timer.WAITING, at=now + self._settings.say_waiting_after))
        return own

    def _trial(self, rank: int, now: float) -> tuple[Part, ...]:
        """Now and then give a rank without work a trial: a block that another rank computes, too."""
        part = self._start.trial(rank, self.round)
        if part is None:
            return ()
        self._work.assignments.give(rank, [WorkOrder(part, now, is_trial=True)])
        return (part,)

    # -- reports of ranks

    def done(self, rank: int, done: Done, now: float) -> None:
        """A rank has done a part and sends its partial sum to the reducers."""
        part = Part(done.unit, done.first, done.last)
        if done.round != self.round or not self._plan.is_part(part) or not self._is_on:
            return
        assignment = self._work.assignments.of(rank)
        order = assignment.find(part)
        self._did.setdefault(rank, set()).add(part.unit)
        self._audits.did(rank, part)
        if order is None and (part.unit not in self._units or self._units[part.unit].has(part)):
            return  # a repeated report, or one that does not matter
        self._hear_of(rank, now, order)
        self._work.budget.save()
        self._links.sends(rank, now)
        self._deliveries.sends(rank, now)
        is_first = self._pace.usual() is None
        if done.block:  # else others did the part: this rank has the sum of the round
            self._learn(assignment, order, part, max(done.block, SHORTEST), now)
        elif rank != self._own:
            self._has_sum(rank)
        self._work.delivered(assignment, order, now)
        if is_first:  # it shows what to expect of the others
            for other in self._work.assignments.all():
                self._lateness.expect(other, self._began)
            self._work.first_look()
        self._providers[part.unit] = (rank, now)
        if part.unit in self._units:
            self._add(part, order, now)
        self._wait_for_sum(now)
        self.look(now)

    def _wait_for_sum(self, now: float) -> None:
        """If all units are done, set the timeout for the sum."""
        if not self._units and self._units_done_at is None and self._audits.is_over:
            self._units_done_at = now
            self._sum_due = now + self._patience(now)
            self._actions.append(SetTimer(name=Timer.SUM_LATE, at=self._sum_due))

    def is_ahead(self, rank: int, now: float) -> None:
        """A rank has done the current round, and has its sum: units that no rank can compute any more were done."""
        if not self._is_on:
            return
        self._has_sum(rank)
        is_there = self._audits.is_on and self._sums.are_somewhere
        for unit in list(self._units):
            if is_there or not any(map(self._participation.can_compute, self._plan.readers(unit))):
                self._taken.add(unit)
                self._add(Part(unit, 0, self._plan.blocks), None, now)
        self._wait_for_sum(now)

    def _has_sum(self, rank: int) -> None:
        """Note that a rank has the sum. In an audited round the others take it from there: no unchecked sum is used."""
        self._sums.has_sum(rank)
        self._participation.has_sum(rank)
        if self._sums.are_somewhere:
            self._audits.close()

    def has_no_sum(self, rank: int, now: float) -> None:
        """A rank did the current round so long ago that it does not hold its sum any more."""
        self._sums.has_no_sum(rank)
        if self._is_on:
            self._reopen(now)
            self.look(now)

    def _reopen(self, now: float) -> None:
        """If no rank has the sum of an audited round any more, have the units computed that relied on it."""
        if self._sums.are_somewhere or not self._audits.reopen():
            return
        self._units_done_at = None
        taken, self._taken = self._taken, set()
        for unit in sorted(taken):
            self._units[unit] = UnitParts(self._plan.blocks)
            self._hand_out_uncovered(unit, now)

    def checked(self, rank: int, checked: Checked, now: float) -> None:
        """A rank reports its digest of an audited block."""
        if self._is_on:
            if checked.round == self.round:
                self._hear_of(rank, now)  # it can take work now, though it was at an earlier round
            for wrong in self._audits.checked(rank, checked, now):
                self._is_mistaken(wrong, now)
            self._wait_for_sum(now)
            self.look(now)

    def undecided(self) -> tuple[Trouble, ...]:
        """The ranks with different results, if no rank can decide which are wrong; or all, if every rank was wrong."""
        ranks = self._plan.computing
        if self._is_on and self._participation.are_all_wrong(ranks):
            return tuple((rank, f"was found to be wrong by round {self.round}; no other is left") for rank in ranks)
        return self._audits.undecided()

    def _is_mistaken(self, rank: int, now: float) -> None:
        """A rank computed wrongly: others do all its work of this round, done and not done."""
        if not self._participation.was_wrong(rank):
            return
        times = self._mistakes.again(rank)
        words = self._audits.why(rank)
        if self._mistakes.is_quarantined(rank):
            words += f". It has been wrong {times} times: it is quarantined, and not used any more"
        self._actions.append(Note(kind="mistaken", reason=words, round=self.round, nodes=(rank,)))
        self.late.add(rank)
        self._work.is_out(rank)
        assignment = self._work.assignments.of(rank)
        units = {order.part.unit for order in assignment.orders} | self._did.pop(rank, set())
        mistaken = Mistaken(generation=self._generation, round=self.round, node=rank, times=times)
        for other in sorted(self.present | {self._own}):
            self._say(other, mistaken, now)
        self._units_done_at = None
        for unit in sorted(units):
            self._work.cannot(assignment, unit, now)
            self._units[unit] = UnitParts(self._plan.blocks)
            self._hand_out_uncovered(unit, now)

    def _learn(self, assignment: Assignment, order: WorkOrder | None, part: Part, block: float, now: float) -> None:
        """Learn a rank's pace from a part that it has done."""
        rank, known = assignment.rank, self._pace.block(assignment.rank)
        if order is None or order.helps or assignment.delivered:
            self._pace.did(rank, block, part.blocks)
        elif part.blocks == 1 and known is not None and block > BEGUN_LATE * known:
            self._pace.began(rank, block - known)
        else:
            self._pace.did(rank, block, part.blocks)
            self._pace.began(rank, now - order.given - part.blocks * block)
        if order is not None and not order.helps and not order.is_trial and len(assignment.orders) == 1:
            self._lateness.through(assignment, block, now)

    def _add(self, part: Part, order: WorkOrder | None, now: float) -> None:
        """A part is done: complete its unit, or hand out the rest of it that no rank does."""
        unit = self._units[part.unit]
        unit.add(part, None)
        if unit.chain() is None:
            self._hand_out_uncovered(part.unit, now)
            return
        del self._units[part.unit]
        for assignment, left, done in self._work.complete(part.unit, now):
            if not left.helps:
                self._pace.held_up(assignment.rank, done, now - left.given)
                if not left.is_trial:
                    self.late.add(assignment.rank)

    def _hand_out_uncovered(self, unit: int, now: float) -> None:
        """Assign the blocks of a unit that no rank does: a rank did less than its assignment, or is back."""
        covered = {
            block for _, order in self._work.assignments.holding(unit) if not order.is_relieved and not order.is_trial
            for block in range(order.part.first, order.part.last)
        }  # fmt: skip
        missing = [block for block in self._units[unit].missing() if block not in covered]
        if missing and (helper := self._least_busy(unit)) is not None:
            first = next((block for block in range(self._plan.blocks) if block not in missing), self._plan.blocks)
            parts = [Part(unit, 0, first)] if first else []
            parts += [Part(unit, block, block + 1) for block in missing if block >= first]
            self._work.help(helper, tuple(parts), now)

    def _least_busy(self, unit: int) -> int | None:
        assignments, participation = self._work.assignments, self._participation
        group = [rank for rank in self._plan.readers(unit) if not self._work.has_failed(rank, unit)]
        able = [rank for rank in group if participation.can_help(rank)]
        able = able or [rank for rank in group if participation.can_compute(rank)]
        return min(
            able, key=lambda rank: (assignments.of(rank).is_stuck, assignments.of(rank).blocks, rank), default=None
        )

    def failed(self, rank: int, unable: Unable, now: float) -> tuple[Trouble, ...]:
        """A rank failed at a unit: another does its part. Return the ranks that failed, if two have or no other can."""
        unit = unable.task
        if unable.round != self.round or not self._is_on or unit not in self._plan.all_units:
            return ()
        failed = self._work.failed.setdefault(unit, {})
        if rank in failed:
            return ()  # a repeated report
        failed[rank] = why = unable.troubles[0][1] if unable.troubles else "no reason given"
        words = f"rank {rank} failed in round {self.round}: {why}"
        self._actions.append(Note(kind="failed", reason=words, round=self.round, nodes=(rank,)))
        if unit not in self._units:
            return ()
        self.late.add(rank)
        self._work.cannot(self._work.assignments.of(rank), unit, now)
        if len(failed) > 1 or failed.keys() >= set(self._plan.readers(unit)):
            return tuple(failed.items())
        self._hand_out_uncovered(unit, now)
        self.look(now)
        return ()

    def status(self, rank: int, status: Status, now: float) -> None:
        """A rank reports its progress."""
        is_here = status.round == self.round
        if is_here:
            self._hear_of(rank, now)
        if rank != self._own and status.round <= self.round and now - self._began >= self._timing.message_lost:
            self._say_again(rank, status, now)
        if status.round < self.round:  # it still reduces its stripe
            self._participation.fell_behind(rank)
        elif status.round > self.round and rank != self._own:
            self.is_ahead(rank, now)
        lacks = tuple(unit for unit in status.lacks if unit in self._plan.all_units)
        self._sums.said(rank, lacks, is_behind=status.round < self.round)
        if self._is_on:
            self._work.told(self._work.assignments.of(rank), status.done if is_here else 0, now)
            self._work.is_idle(rank)
            self.look(now)

    def _say_again(self, rank: int, status: Status, now: float) -> None:
        """Send a rank again what it may not have received: the current round, or its work."""
        if status.begun < self.round and self.round > self._settings.after:
            self._tell_of_round(rank, now)
        assignment = self._work.assignments.of(rank)
        if assignment.orders and status.is_idle and status.round == self.round and self._is_on:
            parts = tuple(order.part for order in assignment.orders)
            self._say(rank, Do(generation=self._generation, round=self.round, parts=parts), now)

    def has_missed_the_end(self, status: Status, now: float) -> bool:
        """True if a rank still waits for the sum of a round that is over, and no later round tells it so."""
        return status.round == self.round and not self._is_on and now - self._began >= self._timing.message_lost

    def part_came(self, rank: int, part: Part, index: int, now: float) -> None:
        """A chunk of a rank's partial sum has arrived at the leader's own rank, which reduces it."""
        is_first = part.unit == self._plan.own(rank).start and part.first == 0
        if is_first and self._is_on and index in self._sums.stripes[self._own]:
            self._links.came(rank, index, now)
            self._deliveries.came(rank, now)

    # -- late ranks

    def look(self, now: float) -> None:
        """Reassign the work of late ranks to idle ones, and check again when another rank may be late."""
        if self._work.is_acting:
            return  # the leader's own rank has answered
        if self._late_timer <= now:
            self._late_timer = float("inf")
        was_on = self._is_on
        self._links.look(now)
        self._look_at(self._work.look(now), now)
        self._look_at(self._audits.look(now), now)
        if was_on:
            self._wait_for_sum(now)  # a block may have passed because no rank is left to check it
        for rank in self._work.take_silent():
            for stripe in self._sums.reduced_by(rank):
                self._replace(stripe, now)

    def _look_at(self, when: float, now: float) -> None:
        if when < self._late_timer:
            self._late_timer = max(when, now)
            self._actions.append(SetTimer(name=Timer.LATE, at=self._late_timer))

    def _say(self, rank: int, message: Message, now: float) -> None:
        if rank == self._own:
            self._tell_self(message, now)
        elif rank in self.present:
            self._actions.append(Transmit(to=rank, message=message))  # type: ignore[arg-type]

    # -- when all units are computed

    def _usual(self, guess: float) -> float:
        """How long a sum takes when all is computed; in the first round two vectors, if a vector's time is known."""
        if self._tails:
            return median(self._tails)
        return 2 * self._links.vector if self._links.is_known else max(self._settings.unknown_seconds, guess)

    def _patience(self, now: float) -> float:
        """How long the sum may take, now that all is computed, before the leader asks reducers."""
        settings, so_far = self._settings, now - self._began
        expected = max(self._usual(2 * so_far), self._links.end(at_all=True) - now, self._resent - now)
        least = max(settings.least_head_start, self._timing.sum_timeout)
        return max(PATIENCE * expected, 0.5 * settings.head_start * so_far, least)

    def _more_patience(self, now: float) -> float:
        """How much longer the sum may take after an intervention; it grows with the time taken so far."""
        settings, so_far = self._settings, min(self._timing.long_round, now - self._began)
        expected = max(self._usual(0.5 * so_far), self._links.end(at_all=True) - now, self._resent - now)
        least = max(settings.least_head_start, self._timing.sum_timeout)
        return max(MORE_PATIENCE * PATIENCE * expected, LONGER * so_far, least)

    def sum_is_late(self, missing: Iterable[int], own_lacks: list[int], now: float) -> None:
        """All units are done, and chunks of the sum are still missing: find out why, and intervene."""
        if self._units_done_at is None:
            return  # the timer of an earlier round
        due = self._units_done_at + self._patience(self._units_done_at)
        if due > max(now, self._sum_due):  # since then chunks have shown how long vectors take
            self._sum_due = due
            self._actions.append(SetTimer(name=Timer.SUM_LATE, at=due))
            return
        self._actions.append(SetTimer(name=Timer.SUM_LATE, at=now + self._more_patience(now)))
        steps = self._sums.steps(missing, own_lacks, self.present)
        for reducer, chunks in steps.want:
            self._say(reducer, Want(generation=self._generation, round=self.round, chunks=chunks), now)
        for reducer in steps.ask:
            self._tell_of_reducers(reducer, now, itself=True)  # the message may have been lost
            self._say(reducer, Tell(generation=self._generation, round=self.round), now)
        for unit in steps.redo:
            if unit not in self._units and not self._is_redone(unit, now):
                self._redo(unit, now)
        for stripe in steps.replace:
            if self._sums.reducer(stripe) == stripe:
                self._participation.leave_out(stripe)
            self._replace(stripe, now)

    def _replace(self, stripe: int, now: float) -> None:
        """Have another rank reduce a stripe, for the rest of the round."""
        if not self._is_on:
            return
        reducer, participation = self._sums.reducer(stripe), self._participation
        assignments, sums = self._work.assignments, self._sums
        others = [rank for rank in participation.current() if rank != reducer and participation.can_help(rank)]
        if not others or sums.was_reduced_by_others(stripe):
            others = [self._own]  # the leader knows at least which chunks it has itself
        chosen = min(
            others,
            key=lambda rank: (
                assignments.of(rank).is_stuck,
                len(sums.reduced_by(rank)),
                assignments.of(rank).blocks,
                rank,
            ),
        )
        self._sums.is_reduced_by(stripe, chosen)
        reason = f"round {self.round}: rank {chosen} reduces a stripe in place of rank {reducer}, which is late"
        self._actions.append(Note(kind="reducer", reason=reason, round=self.round, nodes=(reducer, chosen)))
        keep = NewReducer(generation=self._generation, round=self.round, stripe=stripe, reducer=chosen)
        resent = self._links.resent(len(self._sums.stripes[stripe]), self._settings.chunks, now)
        self._resent = max(self._resent, resent)
        for rank in sorted(self.present, key=lambda rank: rank == self._own):  # itself last: that may end the round
            self._say(rank, keep, now)

    def _is_redone(self, unit: int, now: float) -> bool:
        """Whether a rank was asked to redo a unit, and may still compute it, or its partial sum may be on its way."""
        redone = self._sums.redone.get(unit)
        if redone is None:
            return False
        due = max(
            (self._lateness.at(assignment, SILENT) for assignment, _ in self._work.assignments.holding(unit)),
            default=0.0,
        )
        longest = 2 * redone.asked - self._began + self._settings.unknown_seconds
        return now < max(redone.asked + self._more_patience(redone.asked), min(due, longest))

    def _redo(self, unit: int, now: float) -> None:
        """A unit was reported as done but has not arrived: another rank does it, in the end the leader itself."""
        redone = self._sums.redone.setdefault(unit, Redone())
        provider, _ = self._providers.get(unit, (self._plan.owner(unit), 0.0))
        redone.tried.add(provider)
        redone.asked = now
        if provider in self.present:
            self._participation.leave_out(provider)
        helper = self._who_redoes(unit, redone.tried)
        if helper is not None:
            self.late.add(provider)
            self._providers[unit] = (helper, now)
            if helper != self._own:
                self._tell_of_reducers(helper, now)  # the message may have been lost
            self._work.help(helper, (Part(unit, 0, self._plan.blocks),), now)

    def _who_redoes(self, unit: int, tried: set[int]) -> int | None:
        """A rank that has not done a unit; the second time the leader's own rank, as its state is known."""
        assignments, participation = self._work.assignments, self._participation
        able = [rank for rank in self._plan.readers(unit) if participation.can_compute(rank)]
        able = [rank for rank in able if not self._work.has_failed(rank, unit)] or able
        if tried.issuperset(able):
            tried.clear()  # there are no other ranks: try the same ones again
        return min(
            (rank for rank in able if rank not in tried),
            key=lambda rank: (
                len(tried) > 1 and rank != self._own, not participation.can_help(rank), assignments.of(rank).is_stuck,
                assignments.of(rank).blocks, rank,
            ),
            default=None,
        )  # fmt: skip

    def over(self, now: float) -> tuple[int, ...]:
        """The sum has arrived; return the ranks that were late."""
        if self._units_done_at is not None and self._sums.is_as_planned:
            self._tails.append(now - self._units_done_at)
            self._links.over(self._units_done_at, now)
        else:
            if self._units_done_at is not None and not self._tails:
                self._tails.append(now - self._units_done_at)  # with help it took this long: a sum may take as long
            self._links.over_with_help()
        for assignment in self._work.assignments.all():
            for order in assignment.orders:
                if not order.helps and not order.is_trial:
                    self.late.add(assignment.rank)
                    self._pace.held_up(assignment.rank, assignment.done, now - order.given)
        for rank in self._deliveries.over(now - self._began):
            self._participation.leave_out(rank)
        self._lateness.over(now - self._began)
        self._work.begin(self.round, now)
        self._audits.close()
        self._units = {}
        self._units_done_at = None
        return tuple(sorted(self.late))

    def waiting_for(self, missing: Iterable[int]) -> tuple[int, ...]:
        """The ranks that have not delivered their work, or could do it; or the reducers of what the sum lacks."""
        late = {
            assignment.rank
            for assignment in self._work.assignments.all()
            for order in assignment.orders
            if order.part.unit in self._units
        }
        late.update(self._audits.ranks())
        for unit in self._units:
            group = self._plan.readers(unit)
            if late.isdisjoint(group):
                late.update(rank for rank in group if not self.is_current(rank))
        return tuple(sorted(late or self._sums.reducers_of(missing)))
