"""What the coordinator does for all: says who computes what, sees who is late, and has others do what is missing.

A part of the machine of the rank that leads. It is told in small messages what ranks have done, and never holds a
vector.

- Whoever was heard of in the last round takes part (`participation`), and work is shared out by what a block takes
  each rank (`pace`) and a vector on a link (`links`, `round_start`, `distribution`).
- A rank is late when it has had as long as is expected of it, as much longer as the others took in this round, and a
  part of a head start (`stragglers`). What it has not begun then goes to those that are idle; what it may have begun,
  when it seems to be stuck (`reassignment`, `relief`). Whatever is complete first counts.
- A rank that does not answer when it is late keeps nothing for the rest of the round.
- When all units are done and the sum does not come, keepers are asked what they lack (`missing_sums`).

In a calm round every rank says once that it is done, and nothing else is said. What a message costs here does not grow
with the number of ranks, but for logarithms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median

from codedreduce.protocol.core.blocks import SHORTEST, UnitParts
from codedreduce.protocol.core.events import AnyAction, Note, SetTimer, Transmit
from codedreduce.protocol.core.messages import (
    Checked,
    Do,
    Done,
    Go,
    Keep,
    Message,
    Mistaken,
    Status,
    Tell,
    Trouble,
    Unable,
    Want,
)
from codedreduce.protocol.core.mistakes import Mistakes
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.assignments import Assignment, WorkOrder
from codedreduce.protocol.leader.links import Links
from codedreduce.protocol.leader.missing_sums import MORE_PATIENCE, PATIENCE, MissingSums, Redone
from codedreduce.protocol.leader.pace import Deliveries, Pace
from codedreduce.protocol.leader.participation import Participation
from codedreduce.protocol.leader.reassignment import Reassignment
from codedreduce.protocol.leader.round_start import RoundStart
from codedreduce.protocol.leader.stragglers import SILENT, Stragglers
from codedreduce.protocol.leader.verdicts import Verdicts
from codedreduce.schemes import Part, StripedPlan

#: Timers: somebody may be late; the sum should be here; whom a round waits for is to be said.
LATE, TAIL, WAITING = "late", "tail", "waiting"

#: Rounds of which it is remembered how long the sum took when all was computed.
TAILS = 8

#: Seconds that the sum may take at least.
LEAST_PATIENCE = 0.01

#: How much longer whatever is done about a round may take before something else is: as a part of what it has taken,
#: of which so many seconds count at most.
LONGER = 0.1
LONG_ROUND = 600.0

#: Seconds after which what a rank was told at the start of a round is not under way any more, but lost.
UNDER_WAY = 1.0

#: A block that took so many times longer than usual was begun late, if it was the only one.
BEGUN_LATE = 2.0


class Scheduler:
    """The ranks of a run, as their coordinator sees them.

    `own` is the rank it is in, and `tell` how that is told what others are sent.
    """

    def __init__(
        self, plan: StripedPlan, settings: Settings, tell: Callable[[Message, float, list[AnyAction]], None],
        *, own: int = 0, generation: int | None = None, mistakes: Mistakes | None = None,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._own = own
        self._settings = settings
        self._tell_self = tell
        self._mistakes = mistakes if mistakes is not None else Mistakes(settings)
        self._participation = Participation(own, self._mistakes)
        self._pace = Pace(plan.workers)
        self._links = Links(plan.workers, settings.unknown_seconds, own)
        self._deliveries = Deliveries()
        self._lateness = Stragglers(settings, self._pace, self._links)
        self._generation = settings.generation if generation is None else generation
        self._work = Reassignment(
            plan, self._participation, self._pace, self._links, self._lateness, self._say,
            own=own, generation=self._generation,
        )  # fmt: skip
        self._start = RoundStart(plan, settings, self._pace, self._links, own)
        self._audits = Verdicts(
            plan, settings, self._participation, self._pace, self._work.assignments, self._mistakes, self._say,
            own=own, generation=self._generation,
        )  # fmt: skip
        self._sums = MissingSums(own=own)
        self._tails: deque[float] = deque(maxlen=TAILS)
        self.round = settings.after
        self._began = 0.0
        self._units: dict[int, UnitParts[None]] = {}  # those that are not complete
        self._taken: set[int] = set()  # units that nobody computes here, since another rank has the sum
        self._units_done_at: float | None = None
        self._sum_due = 0.0  # when keepers are asked what they lack, if the sum is not there
        self._providers: dict[int, tuple[int, float]] = {}  # who said last that it did some of a unit, and when
        self._did: dict[int, set[int]] = {}  # of which units ranks have done something
        self._late_timer = float("inf")
        self._weights: tuple[tuple[int, int], ...] = ()  # of stripes, as the round began
        self._resent = 0.0  # when stripes that others keep now should be summed
        self.late: set[int] = set()

    # -- who takes part

    @property
    def present(self) -> set[int]:
        """The ranks that can be reached."""
        return self._participation.present

    @property
    def _is_on(self) -> bool:
        """Whether a round is on."""
        return bool(self._units) or self._units_done_at is not None or not self._audits.is_over

    def came(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank is in, or has a new connection: it is told of the round that is on, and must show that it is there."""
        self._participation.came(rank)
        if self.round > self._settings.after:
            self._tell_of_round(rank, now, actions)

    def _tell_of_round(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """Tell a rank that the round is on, and who keeps what."""
        go = Go(generation=self._generation, round=self.round, keepers=self._weights)
        self._say(rank, go, now, actions)
        self._tell_of_keepers(rank, now, actions)

    def _tell_of_keepers(self, rank: int, now: float, actions: list[AnyAction], *, itself: bool = False) -> None:
        """Tell a rank which stripes are kept by another than planned; or which of them by itself."""
        for stripe, keeper in self._sums.replaced():
            if keeper == rank or not itself:
                keep = Keep(generation=self._generation, round=self.round, stripe=stripe, keeper=keeper)
                self._say(rank, keep, now, actions)

    def _hear_of(self, rank: int, now: float, actions: list[AnyAction], did: WorkOrder | None = None) -> None:
        """A rank has shown that it is at the current round, perhaps by what it has done."""
        was_there = self._participation.is_current(rank)
        self._participation.heard(rank, now)
        if not was_there and self._is_on:
            self._is_back(rank, now, actions, did)

    def _is_back(self, rank: int, now: float, actions: list[AnyAction], did: WorkOrder | None) -> None:
        """A rank is at the current round, and was not: what it still owes may not have reached it.

        And what nobody who was there could do may be its to do.
        """
        parts = self._work.given_again(rank, now, did)
        if parts:
            self._say(rank, Do(generation=self._generation, round=self.round, parts=parts), now, actions)
        for unit in list(self._units):
            if rank in self._plan.readers(unit):
                self._hand_out_uncovered(unit, now, actions)

    def must_renew(self, rank: int) -> None:
        """A rank takes another's state, and does nothing until it has it."""
        self._participation.renews(rank)

    def is_elsewhere(self, rank: int) -> None:
        """A rank is in another round, and must show that it has come to the one that is on."""
        self._participation.renews(rank)

    def is_current(self, rank: int) -> bool:
        """Whether a rank is at the round that is on, as far as is known."""
        return self._participation.is_current(rank)

    def current(self) -> list[int]:
        """The ranks that are at the round that is on, as far as is known."""
        return self._participation.current()

    def leaves(self, rank: int) -> None:
        """A rank goes after this round: others do its part of the next."""
        self._participation.leaves(rank)

    def staying(self) -> set[int]:
        """The other ranks that can be reached, and do not go after this round."""
        return self._participation.staying()

    def gone(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank cannot be reached: what it was to do is done by others, at once."""
        if rank not in self.present:
            return
        self._participation.gone(rank)
        self._sums.gone(rank)
        for unit in self._plan.own(rank):
            self._work.budget.on_time(unit)
        if self._is_on:
            self._work.gone(rank, now)
            self._reopen(now, actions)
            self._audits.gone(rank, now, actions)
            self._redo_undelivered(rank, now, actions)
            self.look(now, actions)
            for stripe in self._sums.kept_by(rank):
                self._replace(stripe, now, actions)

    def _redo_undelivered(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """What a rank that is gone said it had done a moment ago may not have arrived."""
        for unit, (provider, when) in list(self._providers.items()):
            recently = now - when <= 0.1 * (when - self._began) + self._links.free_at(rank) - when + self._links.vector
            if provider == rank and recently:
                self._redo(unit, now, actions)

    # -- a round begins

    def begin(self, round_: int, now: float, actions: list[AnyAction]) -> Go:
        """Share out the work of a round, and tell everyone; what its own rank is to do."""
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
        could_begin = max(now, self._links.end(at_all=True), resent)  # the others may not have the last sum yet
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
                generation=self._generation, round=round_, parts=parts, keepers=weights, checks=checks.get(rank, ())
            )  # fmt: skip
            if rank != self._own:
                actions.append(Transmit(to=rank, message=go))
            else:
                own = go
        if not own.parts and not own.checks:
            self._participation.heard(self._own, now)
            self._work.is_idle(self._own)
        self._look_at(self._work.first_look(), now, actions)
        if self._settings.say_waiting_after < float("inf"):
            actions.append(SetTimer(name=WAITING, at=now + self._settings.say_waiting_after))
        return own

    def _trial(self, rank: int, now: float) -> tuple[Part, ...]:
        """Now and then a rank that is too slow to be given anything does a block that another does, too."""
        part = self._start.trial(rank, self.round)
        if part is None:
            return ()
        self._work.assignments.give(rank, [WorkOrder(part, now, is_trial=True)])
        return (part,)

    # -- ranks tell what they have done

    def done(self, rank: int, done: Done, now: float, actions: list[AnyAction]) -> None:
        """A rank has done a part and sends it to the keepers."""
        part = Part(done.unit, done.first, done.last)
        if done.round != self.round or not self._plan.is_part(part) or not self._is_on:
            return
        assignment = self._work.assignments.of(rank)
        order = assignment.find(part)
        self._did.setdefault(rank, set()).add(part.unit)
        self._audits.did(rank, part)
        if order is None and (part.unit not in self._units or self._units[part.unit].has(part)):
            return  # it was said before, or does not matter
        self._hear_of(rank, now, actions, order)
        self._work.budget.save()
        self._links.sends(rank, now)
        self._deliveries.sends(rank, now)
        is_first = self._pace.usual() is None
        if done.block:  # else others did it: it has the sum of the round
            self._learn(assignment, order, part, max(done.block, SHORTEST), now)
        elif rank != self._own:
            self._has_sum(rank)
        self._work.delivered(assignment, order, now)
        if is_first:  # it shows what can be expected of the others
            for other in self._work.assignments.all():
                self._lateness.expect(other, self._began)
            self._work.first_look()
        self._providers[part.unit] = (rank, now)
        if part.unit in self._units:
            self._add(part, order, now, actions)
        self._wait_for_sum(now, actions)
        self.look(now, actions)

    def _wait_for_sum(self, now: float, actions: list[AnyAction]) -> None:
        """If all units are done, so much later the sum should be here."""
        if not self._units and self._units_done_at is None and self._audits.is_over:
            self._units_done_at = now
            self._sum_due = now + self._patience(now)
            actions.append(SetTimer(name=TAIL, at=self._sum_due))

    def is_ahead(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank is through with the round that is on, and has its sum: what nobody can compute any more was done."""
        if not self._is_on:
            return
        self._has_sum(rank)
        is_there = self._audits.is_on and self._sums.are_somewhere
        for unit in list(self._units):
            if is_there or not any(map(self._participation.can_compute, self._plan.readers(unit))):
                self._taken.add(unit)
                self._add(Part(unit, 0, self._plan.blocks), None, now, actions)
        self._wait_for_sum(now, actions)

    def _has_sum(self, rank: int) -> None:
        """In an audited round the others take it from there, and nothing is used that nobody has compared."""
        self._sums.has_sum(rank)
        self._participation.has_sum(rank)
        if self._sums.are_somewhere:
            self._audits.close()

    def has_no_sum(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank was through with the round that is on so long ago that it does not hold its sum any more."""
        self._sums.has_no_sum(rank)
        if self._is_on:
            self._reopen(now, actions)
            self.look(now, actions)

    def _reopen(self, now: float, actions: list[AnyAction]) -> None:
        """If nobody has the sum of an audited round any more, what was to be taken from there is computed."""
        if self._sums.are_somewhere or not self._audits.reopen():
            return
        self._units_done_at = None
        taken, self._taken = self._taken, set()
        for unit in sorted(taken):
            self._units[unit] = UnitParts(self._plan.blocks)
            self._hand_out_uncovered(unit, now, actions)

    def checked(self, rank: int, checked: Checked, now: float, actions: list[AnyAction]) -> None:
        """A rank says what it has of a block that is audited."""
        if self._is_on:
            if checked.round == self.round:
                self._hear_of(rank, now, actions)  # it can be asked, though it was behind a moment ago
            for wrong in self._audits.checked(rank, checked, now, actions):
                self._is_mistaken(wrong, now, actions)
            self._wait_for_sum(now, actions)
            self.look(now, actions)

    def undecided(self) -> tuple[Trouble, ...]:
        """Who has computed different bits, if nobody can decide who was wrong; or all, if every rank was wrong."""
        ranks = self._plan.computing
        if self._is_on and self._participation.are_all_wrong(ranks):
            return tuple((rank, f"was found to be wrong by round {self.round}, and no other is left") for rank in ranks)
        return self._audits.undecided()

    def _is_mistaken(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank computed wrongly: what it did in this round, and was to do, is done by others."""
        if not self._participation.was_wrong(rank):
            return
        times = self._mistakes.again(rank)
        words = self._audits.why(rank)
        if self._mistakes.is_quarantined(rank):
            words += f". It has been found to be wrong {times} times, and is not used any more"
        actions.append(Note(kind="mistaken", reason=words, round=self.round, nodes=(rank,)))
        self.late.add(rank)
        self._work.is_out(rank)
        assignment = self._work.assignments.of(rank)
        units = {order.part.unit for order in assignment.orders} | self._did.pop(rank, set())
        mistaken = Mistaken(generation=self._generation, round=self.round, node=rank, times=times)
        for other in sorted(self.present | {self._own}):
            self._say(other, mistaken, now, actions)
        self._units_done_at = None
        for unit in sorted(units):
            self._work.cannot(assignment, unit, now)
            self._units[unit] = UnitParts(self._plan.blocks)
            self._hand_out_uncovered(unit, now, actions)

    def _learn(self, assignment: Assignment, order: WorkOrder | None, part: Part, block: float, now: float) -> None:
        """What a rank's part shows of its pace."""
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

    def _add(self, part: Part, order: WorkOrder | None, now: float, actions: list[AnyAction]) -> None:
        """A part is done: perhaps its unit is; perhaps nobody does the rest."""
        unit = self._units[part.unit]
        unit.add(part, None)
        if unit.chain() is None:
            self._hand_out_uncovered(part.unit, now, actions)
            return
        del self._units[part.unit]
        for assignment, left, done in self._work.complete(part.unit, now, actions):
            if not left.helps:
                self._pace.held_up(assignment.rank, done, now - left.given)
                if not left.is_trial:
                    self.late.add(assignment.rank)

    def _hand_out_uncovered(self, unit: int, now: float, actions: list[AnyAction]) -> None:
        """What nobody does of a unit is given to somebody: a rank did less than it was given, or is back."""
        covered = {
            block for _, order in self._work.assignments.holding(unit) if not order.is_relieved and not order.is_trial
            for block in range(order.part.first, order.part.last)
        }  # fmt: skip
        missing = [block for block in self._units[unit].missing() if block not in covered]
        if missing and (helper := self._least_busy(unit)) is not None:
            first = next((block for block in range(self._plan.blocks) if block not in missing), self._plan.blocks)
            parts = [Part(unit, 0, first)] if first else []
            parts += [Part(unit, block, block + 1) for block in missing if block >= first]
            self._work.help(helper, tuple(parts), now, actions)

    def _least_busy(self, unit: int) -> int | None:
        assignments, participation = self._work.assignments, self._participation
        group = [rank for rank in self._plan.readers(unit) if not self._work.has_failed(rank, unit)]
        able = [rank for rank in group if participation.can_help(rank)]
        able = able or [rank for rank in group if participation.can_compute(rank)]
        return min(
            able, key=lambda rank: (assignments.of(rank).is_stuck, assignments.of(rank).blocks, rank), default=None
        )

    def failed(self, rank: int, unable: Unable, now: float, actions: list[AnyAction]) -> tuple[Trouble, ...]:
        """A rank failed at a unit: another does what it was to do of it; who failed, if two have or nobody else can."""
        unit = unable.task
        if unable.round != self.round or not self._is_on or unit not in self._plan.all_units:
            return ()
        failed = self._work.failed.setdefault(unit, {})
        if rank in failed:
            return ()  # it was said before
        failed[rank] = why = unable.troubles[0][1] if unable.troubles else "no reason given"
        words = f"rank {rank} failed in round {self.round}: {why}"
        actions.append(Note(kind="failed", reason=words, round=self.round, nodes=(rank,)))
        if unit not in self._units:
            return ()
        self.late.add(rank)
        self._work.cannot(self._work.assignments.of(rank), unit, now)
        if len(failed) > 1 or failed.keys() >= set(self._plan.readers(unit)):
            return tuple(failed.items())
        self._hand_out_uncovered(unit, now, actions)
        self.look(now, actions)
        return ()

    def status(self, rank: int, status: Status, now: float, actions: list[AnyAction]) -> None:
        """A rank says how far it is."""
        is_here = status.round == self.round
        if is_here:
            self._hear_of(rank, now, actions)
        if rank != self._own and status.round <= self.round and now - self._began >= UNDER_WAY:
            self._say_again(rank, status, now, actions)
        if status.round < self.round:  # it keeps its stripe all the same
            self._participation.fell_behind(rank)
        elif status.round > self.round and rank != self._own:
            self.is_ahead(rank, now, actions)
        lacks = tuple(unit for unit in status.lacks if unit in self._plan.all_units)
        self._sums.said(rank, lacks, is_behind=status.round < self.round)
        if self._is_on:
            self._work.told(self._work.assignments.of(rank), status.done if is_here else 0, now)
            self._work.is_idle(rank)
            self.look(now, actions)

    def _say_again(self, rank: int, status: Status, now: float, actions: list[AnyAction]) -> None:
        """What a rank was told may not have reached it: that the round is on, or what it is to do."""
        if status.begun < self.round and self.round > self._settings.after:
            self._tell_of_round(rank, now, actions)
        assignment = self._work.assignments.of(rank)
        if assignment.orders and status.is_idle and status.round == self.round and self._is_on:
            parts = tuple(order.part for order in assignment.orders)
            self._say(rank, Do(generation=self._generation, round=self.round, parts=parts), now, actions)

    def part_came(self, rank: int, part: Part, index: int, now: float) -> None:
        """A chunk of what a rank computed has come to its own rank, which keeps it."""
        is_first = part.unit == self._plan.own(rank).start and part.first == 0
        if is_first and self._is_on and index in self._sums.stripes[self._own]:
            self._links.came(rank, index, now)
            self._deliveries.came(rank, now)

    # -- who is late

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Have the work of late ranks done by those that are idle, and look again when somebody else may be late."""
        if self._work.is_acting:
            return  # its own rank has answered
        if self._late_timer <= now:
            self._late_timer = float("inf")
        was_on = self._is_on
        self._links.look(now)
        self._look_at(self._work.look(now, actions), now, actions)
        self._look_at(self._audits.look(now, actions), now, actions)
        if was_on:
            self._wait_for_sum(now, actions)  # a block may have passed because nobody is left to check it
        for rank in self._work.take_silent():
            for stripe in self._sums.kept_by(rank):
                self._replace(stripe, now, actions)

    def _look_at(self, when: float, now: float, actions: list[AnyAction]) -> None:
        if when < self._late_timer:
            self._late_timer = max(when, now)
            actions.append(SetTimer(name=LATE, at=self._late_timer))

    def _say(self, rank: int, message: Message, now: float, actions: list[AnyAction]) -> None:
        if rank == self._own:
            self._tell_self(message, now, actions)
        elif rank in self.present:
            actions.append(Transmit(to=rank, message=message))  # type: ignore[arg-type]

    # -- when all is computed

    def _usual(self, guess: float) -> float:
        """How long a sum takes when all is computed; in the first round two vectors, if it is known what one takes."""
        if self._tails:
            return median(self._tails)
        return 2 * self._links.vector if self._links.is_known else max(self._settings.unknown_seconds, guess)

    def _patience(self, now: float) -> float:
        """How much longer than now, when all is computed, the sum may take before keepers are asked."""
        settings, so_far = self._settings, now - self._began
        expected = max(self._usual(2 * so_far), self._links.end(at_all=True) - now, self._resent - now)
        return max(PATIENCE * expected, 0.5 * settings.head_start * so_far, settings.least_head_start, LEAST_PATIENCE)

    def _more_patience(self, now: float) -> float:
        """How much longer it may take when something was done about it; the longer, the longer it has taken."""
        settings, so_far = self._settings, min(LONG_ROUND, now - self._began)
        expected = max(self._usual(0.5 * so_far), self._links.end(at_all=True) - now, self._resent - now)
        return max(MORE_PATIENCE * PATIENCE * expected, LONGER * so_far, settings.least_head_start, LEAST_PATIENCE)

    def sum_is_late(self, missing: Iterable[int], own_lacks: list[int], now: float, actions: list[AnyAction]) -> None:
        """All units are done, and chunks of the sum are still missing: find out why, and do something about it."""
        if self._units_done_at is None:
            return  # the timer of a round before
        due = self._units_done_at + self._patience(self._units_done_at)
        if due > max(now, self._sum_due):  # since then chunks have shown how long vectors take
            self._sum_due = due
            actions.append(SetTimer(name=TAIL, at=due))
            return
        actions.append(SetTimer(name=TAIL, at=now + self._more_patience(now)))
        steps = self._sums.steps(missing, own_lacks, self.present)
        for keeper, chunks in steps.want:
            self._say(keeper, Want(generation=self._generation, round=self.round, chunks=chunks), now, actions)
        for keeper in steps.ask:
            self._tell_of_keepers(keeper, now, actions, itself=True)  # it may not have heard
            self._say(keeper, Tell(generation=self._generation, round=self.round), now, actions)
        for unit in steps.redo:
            if unit not in self._units and not self._is_redone(unit, now):
                self._redo(unit, now, actions)
        for stripe in steps.replace:
            if self._sums.keeper(stripe) == stripe:
                self._participation.leave_out(stripe)
            self._replace(stripe, now, actions)

    def _replace(self, stripe: int, now: float, actions: list[AnyAction]) -> None:
        """Have another rank keep a stripe, for the rest of the round."""
        if not self._is_on:
            return
        keeper, participation = self._sums.keeper(stripe), self._participation
        assignments, sums = self._work.assignments, self._sums
        others = [rank for rank in participation.current() if rank != keeper and participation.can_help(rank)]
        if not others or sums.was_kept_by_others(stripe):
            others = [self._own]  # of which at least it is known what has come
        chosen = min(
            others,
            key=lambda rank: (
                assignments.of(rank).is_stuck,
                len(sums.kept_by(rank)),
                assignments.of(rank).blocks,
                rank,
            ),
        )
        self._sums.is_kept_by(stripe, chosen)
        reason = f"round {self.round}: rank {chosen} keeps the stripe of rank {keeper}, which is late"
        actions.append(Note(kind="keeper", reason=reason, round=self.round, nodes=(keeper, chosen)))
        keep = Keep(generation=self._generation, round=self.round, stripe=stripe, keeper=chosen)
        resent = self._links.resent(len(self._sums.stripes[stripe]), self._settings.chunks, now)
        self._resent = max(self._resent, resent)
        for rank in sorted(self.present, key=lambda rank: rank == self._own):  # itself last: the round may be over
            self._say(rank, keep, now, actions)

    def _is_redone(self, unit: int, now: float) -> bool:
        """Whether somebody was asked to do a unit again, and may still be at it, or what it sent on its way."""
        redone = self._sums.redone.get(unit)
        if redone is None:
            return False
        due = max(
            (self._lateness.at(assignment, SILENT) for assignment, _ in self._work.assignments.holding(unit)),
            default=0.0,
        )
        longest = 2 * redone.asked - self._began + self._settings.unknown_seconds
        return now < max(redone.asked + self._more_patience(redone.asked), min(due, longest))

    def _redo(self, unit: int, now: float, actions: list[AnyAction]) -> None:
        """A unit was said to be done, and has not arrived: another rank does it, in the end this one itself."""
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
                self._tell_of_keepers(helper, now, actions)  # it may not have heard
            self._work.help(helper, (Part(unit, 0, self._plan.blocks),), now, actions)

    def _who_redoes(self, unit: int, tried: set[int]) -> int | None:
        """Somebody who has not done a unit; the second time its own rank, of which it is known what it does."""
        assignments, participation = self._work.assignments, self._participation
        able = [rank for rank in self._plan.readers(unit) if participation.can_compute(rank)]
        able = [rank for rank in able if not self._work.has_failed(rank, unit)] or able
        if tried.issuperset(able):
            tried.clear()  # whoever it was: it is all there is
        return min(
            (rank for rank in able if rank not in tried),
            key=lambda rank: (
                len(tried) > 1 and rank != self._own, not participation.can_help(rank), assignments.of(rank).is_stuck,
                assignments.of(rank).blocks, rank,
            ),
            default=None,
        )  # fmt: skip

    def over(self, now: float) -> tuple[int, ...]:
        """The sum is here; who was late."""
        if self._units_done_at is not None and self._sums.is_as_planned:
            self._tails.append(now - self._units_done_at)
            self._links.over(self._units_done_at, now)
        else:
            if self._units_done_at is not None and not self._tails:
                self._tails.append(now - self._units_done_at)  # it took so long with help: at least it may
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
        """The ranks that have not delivered what they were given, or who could; or keep what is missing of the sum."""
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
        return tuple(sorted(late or self._sums.keepers_of(missing)))
