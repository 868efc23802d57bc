"""The leader's reaction when all units are computed but the sum does not arrive, or a reducer failed or is silent.

The leader asks the reducers of missing chunks which units they lack. Another rank computes such a unit again, since the
first one cannot deliver it; then yet another, if that does not arrive either. The leader replaces a reducer for the
round in three cases:

- The reducer lacks nothing and does not deliver.
- It does not answer.
- It is at an earlier round and lacks a unit that was computed again.

Every sender still has its vectors, and sends that stripe to the new reducer. A reducer that was asked or replaced may
have sent the sum, and the network lost it: the leader requests it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from codedreduce.protocol.core.events import Actions, Note, SetTimer
from codedreduce.protocol.core.messages import NewReducer, Tell, Want
from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.leader.assignments import Deadlines
from codedreduce.protocol.leader.pace import Links
from codedreduce.protocol.leader.participation import Participation
from codedreduce.protocol.leader.reassignment import Reassignment, Say
from codedreduce.protocol.leader.stragglers import Decision, Remedy
from codedreduce.schemes import Part, StripedPlan

#: Chunks in one message that requests chunks.
WANTED_AT_ONCE = 1024


@dataclass
class Redone:
    """A unit that is computed again: the ranks that tried, and when the last one was asked."""

    tried: set[int] = field(default_factory=set)
    asked: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What to do about missing chunks: request chunks (`want`), ask reducers what they lack (`ask`), reassign stripes
    (`replace`) and compute units again (`redo`), both with the reason.
    """

    want: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ask: tuple[int, ...] = ()
    replace: tuple[tuple[int, str], ...] = ()
    redo: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducerView:
    """What the leader knows of the reducer of a stripe that misses chunks, at its n-th check (`checks`) of a round."""

    reducer: int
    checks: int
    units: int  # number of units in a sum
    lacks: tuple[int, ...] | None = None  # units that its stripes lack; None: it has not reported since it was asked
    is_own: bool = False  # it is the leader
    is_present: bool = True
    has_sent: bool = False  # chunks have arrived since the last check
    was_asked: bool = False
    was_served: bool = False  # it lacks units at an earlier round, and all of them were computed again
    vector_is_known: bool = True


def decide_on_reducer(view: ReducerView, policy: Policy = DEFAULT_POLICY) -> Decision:
    """What to do about a reducer, all units being computed.

    >>> decide_on_reducer(ReducerView(reducer=2, checks=9, units=4, was_asked=True, lacks=(3,)))
    Decision(remedy=<Remedy.REDO: 6>, reason='rank 2 lacks unit 3', until=0.0)
    """
    name, lacks = f"rank {view.reducer}", view.lacks or ()
    if view.has_sent and not view.is_own:  # a reducer that sends, however slowly, is not late
        return Decision(remedy=Remedy.WAIT, reason=f"{name} sends")
    checks = policy.slow_checks if view.vector_is_known else policy.unknown_slow_checks
    if view.checks <= checks and len(lacks) > max(1, view.units // 3):
        return Decision(remedy=Remedy.WAIT, reason=f"{name} lacks {len(lacks)} units: vectors are slow, not lost")
    units = f"{name} lacks unit{'s' if len(lacks) > 1 else ''} {', '.join(map(str, lacks))}"
    if view.is_own:
        return Decision(remedy=Remedy.REDO, reason=units)
    if not view.is_present:
        return Decision(remedy=Remedy.REPLACE, reason=f"{name} cannot be reached")
    if not view.was_asked:
        return Decision(remedy=Remedy.ASK, reason=f"the sums of {name} do not arrive")
    if lacks and not view.was_served:
        return Decision(remedy=Remedy.REDO, reason=units)
    if view.lacks is None:
        return Decision(remedy=Remedy.REPLACE, reason=f"{name} does not answer")
    if lacks:
        return Decision(remedy=Remedy.REPLACE, reason=f"{units}, which others have computed again")
    return Decision(remedy=Remedy.REPLACE, reason=f"{name} lacks nothing, and its sums do not arrive")


@dataclass
class MissingSums:
    """The reducer of each stripe in this round, and the units that reducers have reported they lack."""

    stripes: Sequence[range] = ()
    units: int = 0  # number of units in a sum; by default the number of stripes
    _reducer: dict[int, int] = field(default_factory=dict)  # of stripes with another reducer than planned
    _asked: set[int] = field(default_factory=set)
    _lacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    redone: dict[int, Redone] = field(default_factory=dict)  # by unit
    _having: set[int] = field(default_factory=set)  # ranks that have the whole sum
    _had: set[int] = field(default_factory=set)  # ranks that had it, and hold later ones
    _before: dict[int, set[int]] = field(default_factory=dict)  # earlier reducers of a stripe
    vector_is_known: bool = True
    own: int = 0  # the leader's rank
    policy: Policy = DEFAULT_POLICY
    _looks: int = 0  # number of checks in this round
    _left: dict[int, int] = field(default_factory=dict)  # missing chunks by stripe, at the last check
    _catch_up: set[int] = field(default_factory=set)  # reducers at an earlier round when they reported what they lack

    def reducer(self, stripe: int) -> int:
        """The reducer of a stripe."""
        return self._reducer.get(stripe, stripe)

    def reduced_by(self, rank: int) -> list[int]:
        """The stripes that a rank reduces."""
        taken = [stripe for stripe, reducer in self._reducer.items() if reducer == rank]
        own = rank < len(self.stripes) and len(self.stripes[rank]) > 0 and rank not in self._reducer
        return [rank, *taken] if own else taken

    def is_reduced_by(self, stripe: int, rank: int) -> None:
        """Another rank reduces a stripe from now on."""
        self._before.setdefault(stripe, set()).add(self.reducer(stripe))
        self._reducer[stripe] = rank

    def has_sum(self, rank: int) -> None:
        """A rank has reported that it has the whole sum."""
        if rank not in self._had:
            self._having.add(rank)

    def has_no_sum(self, rank: int) -> None:
        """A rank that had the whole sum does not hold it any more."""
        self._having.discard(rank)
        self._had.add(rank)

    def gone(self, rank: int) -> None:
        """A rank cannot be reached; if it comes back it reports what it has, or is a new process."""
        self._having.discard(rank)
        self._had.discard(rank)

    @property
    def are_somewhere(self) -> bool:
        """Whether a rank has the whole sum."""
        return bool(self._having)

    def was_reduced_by_others(self, stripe: int) -> bool:
        """Whether the stripe was reassigned in this round already."""
        return stripe in self._reducer

    @property
    def is_as_planned(self) -> bool:
        """Whether the leader has neither reassigned a stripe nor repeated a unit in this round."""
        return not self._reducer and not self.redone

    def said(self, rank: int, lacks: tuple[int, ...], *, is_behind: bool = False) -> None:
        """A rank has reported the units that its stripes lack; one at an earlier round may not know of this one."""
        self._lacks[rank] = lacks
        (self._catch_up.add if is_behind else self._catch_up.discard)(rank)

    def steps(self, missing: Iterable[int], own_lacks: Sequence[int], present: set[int]) -> Steps:
        """What to do about these missing chunks; `own_lacks` are the units that the leader itself lacks as a reducer.

        >>> sums = MissingSums(stripes=(range(0, 2), range(2, 4), range(4, 6)))
        >>> sums.steps([2, 4, 5], [], {0, 1, 2})
        Steps(want=(), ask=(1, 2), replace=(), redo=())
        >>> sums.said(1, (2,)); steps = sums.steps([2, 4, 5], [], {0, 1, 2})
        >>> steps.replace, steps.redo
        (((2, 'rank 2 does not answer'),), ((2, 'rank 1 lacks unit 2'),))
        """
        missing = list(missing)
        want = self._want_again(missing)
        ask: list[int] = []
        replace: list[tuple[int, str]] = []
        redo: dict[int, str] = {}
        self._looks += 1
        for stripe, has_sent in self._stripes_of(missing):
            view = self._view(self.reducer(stripe), own_lacks, has_sent=has_sent, present=present)
            decision, reducer = decide_on_reducer(view, self.policy), view.reducer
            match decision.remedy:
                case Remedy.WAIT:
                    self._asked.discard(reducer)
                case Remedy.ASK:
                    self._asked.add(reducer)
                    self._lacks.pop(reducer, None)
                    ask.append(reducer)
                case Remedy.REDO:
                    redo = dict.fromkeys(view.lacks or (), decision.reason) | redo
                    self._asked.discard(reducer)
                case Remedy.REPLACE:
                    replace.append((stripe, decision.reason))
        return Steps(want=want, ask=tuple(ask), replace=tuple(replace), redo=tuple(sorted(redo.items())))

    def _view(self, reducer: int, own_lacks: Sequence[int], *, has_sent: bool, present: set[int]) -> ReducerView:
        """What is known of a reducer."""
        is_own = reducer == self.own
        lacks = tuple(own_lacks) if is_own else self._lacks.get(reducer)
        return ReducerView(
            reducer=reducer, checks=self._looks, units=self.units or len(self.stripes), lacks=lacks, is_own=is_own,
            is_present=reducer in present, has_sent=has_sent, was_asked=reducer in self._asked,
            was_served=bool(lacks) and reducer in self._catch_up and self.redone.keys() >= set(lacks or ()),
            vector_is_known=self.vector_is_known,
        )  # fmt: skip

    def _want_again(self, missing: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Ranks that may have sent missing chunks, and the chunks to request: reducers asked or replaced, and ranks
        with the whole sum.
        """
        want = []
        for stripe, chunks in enumerate(self.stripes):
            before = self._before.get(stripe, set())
            reducers = before | self._having
            if before or self.reducer(stripe) in self._asked:
                reducers.add(self.reducer(stripe))
            reducers.discard(self.own)
            wanted = tuple(index for index in missing if index in chunks)[:WANTED_AT_ONCE]
            want += [(reducer, wanted) for reducer in sorted(reducers) if wanted]
        return tuple(want)

    def replaced(self) -> list[tuple[int, int]]:
        """Stripes with another reducer than planned, and that reducer."""
        return sorted(self._reducer.items())

    def reducers_of(self, chunks: Iterable[int]) -> set[int]:
        """The reducers of these chunks."""
        wanted = set(chunks)
        stripes = (stripe for stripe, one in enumerate(self.stripes) if not wanted.isdisjoint(one))
        return {self.reducer(stripe) for stripe in stripes}

    def _stripes_of(self, chunks: Iterable[int]) -> list[tuple[int, bool]]:
        """The stripes that chunks are in, and whether fewer of them are missing than at the last check."""
        wanted = set(chunks)
        left = {stripe: len(wanted.intersection(one)) for stripe, one in enumerate(self.stripes)}
        found = [(stripe, count < self._left.get(stripe, count)) for stripe, count in left.items() if count]
        self._left = left
        return found


class SumPhase:
    """The last part of a round: all units are computed, and their sum is under way, or does not arrive."""

    def __init__(
        self, actions: Actions, plan: StripedPlan, settings: Settings, participation: Participation, links: Links,
        deadlines: Deadlines, work: Reassignment, say: Say, *, own: int, generation: int,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._plan = plan
        self._settings = settings
        self._policy = settings.policy
        self._participation = participation
        self._links = links
        self._deadlines = deadlines
        self._work = work
        self._say = say
        self._own = own
        self._generation = generation
        self._round = 0
        self._began = 0.0
        self._is_over = True
        self.missing = MissingSums(own=own, policy=self._policy)
        self._tails: deque[float] = deque(maxlen=self._policy.sums_timed)  # seconds from the last unit to the sum
        self._units_done_at: float | None = None
        self._due = 0.0  # when to ask reducers what they lack, if the sum has not arrived
        self._providers: dict[int, tuple[int, float]] = {}  # by unit: the rank of the last report, and when
        self.resent = 0.0  # when reassigned stripes should be summed

    def begin(self, round_: int, stripes: Sequence[range], now: float) -> None:
        """A round begins, in which the ranks reduce these chunks of the vector."""
        self._round = round_
        self._began = now
        self._is_over = False
        self._units_done_at = None
        self._providers.clear()
        self.resent = 0.0
        self.missing = MissingSums(
            stripes=stripes, units=len(self._plan.all_units), vector_is_known=self._links.is_known, own=self._own,
            policy=self._policy,
        )  # fmt: skip

    def reported(self, unit: int, rank: int, now: float) -> None:
        """A rank has reported a part of a unit as done."""
        self._providers[unit] = (rank, now)

    def units_are_done(self, now: float) -> None:
        """All units are done: set the timeout for the sum, unless it is set."""
        if self._units_done_at is None:
            self._units_done_at = now
            self._due = now + self._patience(now)
            self._actions.append(SetTimer(name=Timer.SUM_LATE, at=self._due))

    @property
    def is_due(self) -> bool:
        """Whether all units are done, and the sum has not arrived."""
        return self._units_done_at is not None

    def reopen(self) -> None:
        """Units must be computed again."""
        self._units_done_at = None

    def over(self, now: float) -> None:
        """The sum has arrived: learn how long it takes."""
        self._is_over = True
        if self._units_done_at is not None and self.missing.is_as_planned:
            self._tails.append(now - self._units_done_at)
            self._links.over(self._units_done_at, now)
        else:
            if self._units_done_at is not None and not self._tails:
                self._tails.append(now - self._units_done_at)  # with help it took this long: a sum may take as long
            self._links.over_with_help()
        self._units_done_at = None

    def replace_reducer(self, rank: int, why: str, now: float) -> None:
        """Have other ranks reduce the stripes of a rank."""
        for stripe in self.missing.reduced_by(rank):
            self._replace(stripe, why, now)

    def tell_reducers(self, rank: int, now: float, *, itself: bool = False) -> None:
        """Send a rank the stripes with another reducer than planned; or only those that it reduces `itself`."""
        for stripe, reducer in self.missing.replaced():
            if reducer == rank or not itself:
                keep = NewReducer(generation=self._generation, round=self._round, stripe=stripe, reducer=reducer)
                self._say(rank, keep, now)

    def redo_undelivered(self, rank: int, why: str, now: float) -> None:
        """Redo the units that an unreachable rank has just reported: its partial sums may not have arrived."""
        for unit, (provider, when) in list(self._providers.items()):
            elapsed = self._policy.just_reported * (when - self._began)
            recently = now - when <= elapsed + self._links.free_at(rank) - when + self._links.vector
            if provider == rank and recently:
                self._redo(unit, why, now)

    def _usual(self, guess: float) -> float:
        """How long a sum takes when all is computed; in the first round two vectors, if a vector's time is known."""
        if self._tails:
            return median(self._tails)
        return 2 * self._links.vector if self._links.is_known else max(self._settings.unknown_seconds, guess)

    def _patience(self, now: float) -> float:
        """How long the sum may take, now that all is computed, before the leader asks reducers."""
        settings, policy, so_far = self._settings, self._policy, now - self._began
        expected = max(self._usual(2 * so_far), self._links.end(at_all=True) - now, self.resent - now)
        head_start = max(policy.head_start_of_sum * settings.head_start * so_far, settings.least_head_start)
        return max(policy.sum_timeout * expected, head_start, policy.least_sum_timeout)

    def _more_patience(self, now: float) -> float:
        """How much longer the sum may take after an intervention; it grows with the time taken so far."""
        policy = self._policy
        so_far = min(policy.longest_elapsed, now - self._began)
        expected = max(self._usual(0.5 * so_far), self._links.end(at_all=True) - now, self.resent - now)
        least = max(self._settings.least_head_start, policy.least_sum_timeout)
        return max(policy.sum_retry * policy.sum_timeout * expected, policy.sum_retry_elapsed * so_far, least)

    def look(self, missing: Iterable[int], own_lacks: list[int], now: float) -> None:
        """All units are done, and chunks of the sum are still missing: find out why, and intervene."""
        if self._units_done_at is None:
            return  # the timer of an earlier round
        due = self._units_done_at + self._patience(self._units_done_at)
        if due > max(now, self._due):  # since then chunks have shown how long vectors take
            self._due = due
            self._actions.append(SetTimer(name=Timer.SUM_LATE, at=due))
            return
        self._actions.append(SetTimer(name=Timer.SUM_LATE, at=now + self._more_patience(now)))
        steps = self.missing.steps(missing, own_lacks, self._participation.present)
        for reducer, chunks in steps.want:
            self._say(reducer, Want(generation=self._generation, round=self._round, chunks=chunks), now)
        for reducer in steps.ask:
            self.tell_reducers(reducer, now, itself=True)  # the message may have been lost
            self._say(reducer, Tell(generation=self._generation, round=self._round), now)
        for unit, why in steps.redo:
            if not self._is_redone(unit, now):
                self._redo(unit, why, now)
        for stripe, why in steps.replace:
            if self.missing.reducer(stripe) == stripe:
                self._participation.leave_out(stripe)
            self._replace(stripe, why, now)

    def _replace(self, stripe: int, why: str, now: float) -> None:
        """Have another rank reduce a stripe, for the rest of the round."""
        if self._is_over:
            return
        reducer, participation = self.missing.reducer(stripe), self._participation
        assignments, sums = self._work.assignments, self.missing
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
        self.missing.is_reduced_by(stripe, chosen)
        reason = f"round {self._round}: {why}: rank {chosen} reduces a stripe in place of rank {reducer}"
        self._actions.append(Note(kind="reducer", reason=reason, round=self._round, nodes=(reducer, chosen)))
        keep = NewReducer(generation=self._generation, round=self._round, stripe=stripe, reducer=chosen)
        resent = self._links.resent(len(self.missing.stripes[stripe]), self._settings.chunks, now)
        self.resent = max(self.resent, resent)
        ranks = sorted(self._participation.present, key=lambda rank: rank == self._own)
        for rank in ranks:  # itself last: that may end the round
            self._say(rank, keep, now)

    def _is_redone(self, unit: int, now: float) -> bool:
        """Whether a rank was asked to redo a unit, and may still compute it, or its partial sum may be on its way."""
        redone = self.missing.redone.get(unit)
        if redone is None:
            return False
        silent = self._policy.stuck_silent
        holding = self._work.assignments.holding(unit)
        due = max((self._deadlines.at(assignment, silent) for assignment, _ in holding), default=0.0)
        longest = 2 * redone.asked - self._began + self._settings.unknown_seconds
        return now < max(redone.asked + self._more_patience(redone.asked), min(due, longest))

    def _redo(self, unit: int, why: str, now: float) -> None:
        """A unit was reported as done but has not arrived: another rank does it, in the end the leader itself."""
        redone = self.missing.redone.setdefault(unit, Redone())
        provider, _ = self._providers.get(unit, (self._plan.owner(unit), 0.0))
        redone.tried.add(provider)
        redone.asked = now
        if provider in self._participation.present:
            self._participation.leave_out(provider)
        helper = self._who_redoes(unit, redone.tried)
        if helper is not None:
            self._work.was_late(provider)
            self._providers[unit] = (helper, now)
            reason = f"round {self._round}: {why}: rank {helper} must compute unit {unit} again"
            self._actions.append(Note(kind="reassigned", reason=reason, round=self._round, nodes=(provider, helper)))
            if helper != self._own:
                self.tell_reducers(helper, now)  # the message may have been lost
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
