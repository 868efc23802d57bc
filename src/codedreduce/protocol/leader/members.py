"""The members of a run, as its leader knows them: who is in, who drifts, who gives its state, who is through.

And the office of the leader: what a rank has while it leads, and how it speaks to the leader if it does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from codedreduce.protocol.core.events import AnyAction, EveryoneIn, Note, Transmit
from codedreduce.protocol.core.membership import Roster, run_name
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Done,
    Give,
    Hello,
    Late,
    Leaving,
    Refuse,
    Renew,
    Status,
    Voters,
)
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.drift import DriftDetector
from codedreduce.protocol.leader.scheduler import Scheduler
from codedreduce.schemes import StripedPlan

#: Ranks that give their state to one that wants it, each some of it.
GIVERS = 3


class Members:
    """The other ranks of a run, as the one that leads them (`own`) in a generation knows them."""

    def __init__(
        self, plan: StripedPlan, settings: Settings, coordinating: Scheduler, *, own: int, generation: int
    ) -> None:
        self._coordinating = coordinating
        self._own = own
        self._roster = Roster([rank for rank in plan.computing if rank != own], run_name(plan, settings))
        self._drift = DriftDetector(plan.workers, settings.after + 1, own)
        self._generation = generation
        self._is_first = generation == settings.generation
        self._first = settings.after + 1  # the first round
        self._least = settings.least
        self._lost: set[int] = set()  # ranks that cannot be reached
        self._has_said = False  # that everyone is in
        self._met: set[int] = set()  # ranks that were ever let in
        self._through: set[int] = set()  # with the last round
        self._spoke: set[int] = set()  # those of whom something was heard since somebody last looked
        self._odd: set[int] = set()  # ranks whose state nobody should take
        self._is_odd = False  # its own, and it is known what is right
        self._taking: set[int] = set()  # ranks to whom others were asked to give their state

    # -- who is in

    def greet(self, rank: int, hello: Hello, position: RankPosition, voters: Voters, actions: list[AnyAction]) -> bool:
        """Answer a hello, and say which round is over; whether the rank is in."""
        is_late = rank in self._met or position.go.round > 0
        answer = self._roster.answer(rank, hello, self._generation, position.through, is_late=is_late, voters=voters)
        actions.append(Transmit(to=rank, message=answer))
        if isinstance(answer, Refuse):
            actions.append(Note(kind="refused", reason=answer.reason, round=position.round, nodes=(rank,)))
            return False
        self._through.discard(rank)
        self._lost.discard(rank)
        self._met.add(rank)
        return True

    def take_over(self, positions: Mapping[int, int], now: float, actions: list[AnyAction]) -> None:
        """Lead those that follow, in whatever round each is; all of them were in before."""
        for rank, position in positions.items():
            if rank != self._own:
                self._roster.take(rank)
                self._met.add(rank)
                self._coordinating.came(rank, now, actions)
                if position != positions[self._own]:
                    self._coordinating.is_elsewhere(rank)
                if position > positions[self._own]:
                    self._coordinating.is_ahead(rank, now, actions)

    def has_met(self, rank: int) -> bool:
        """Whether a rank was ever let in."""
        return rank in self._met

    def met(self) -> frozenset[int]:
        """The ranks that were ever let in."""
        return frozenset(self._met)

    @property
    def all_ready(self) -> bool:
        """Whether everyone who is in has begun the first round."""
        return self._roster.all_ready

    def lacking(self) -> list[int]:
        """The ranks that are not in."""
        return self._roster.lacking()

    def on_leaving(self, message: Leaving, rank: int, actions: list[AnyAction]) -> None:
        """A rank goes after this round, and is not counted on in the next."""
        if rank in self._coordinating.staying():
            reason = f"rank {rank} leaves after round {message.round}: {message.reason}"
            actions.append(Note(kind="leaving", reason=reason, round=message.round, nodes=(rank,)))
            self._coordinating.leaves(rank)

    def staying(self) -> set[int]:
        """The other ranks that are there, and do not go after this round."""
        return self._coordinating.staying()

    def gone(self, rank: int) -> None:
        """A rank cannot be reached, or has left."""
        self._lost.add(rank)
        self._roster.gone(rank)

    def tell_all(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        """Say something to everyone who is in."""
        actions.extend(Transmit(to=rank, message=message) for rank in self._roster.present())

    def through(self, rank: int) -> None:
        """A rank has had its last round."""
        self._through.add(rank)

    @property
    def all_through(self) -> bool:
        """Whether everyone who is in has had its last round."""
        return set(self._roster.present()) <= self._through

    def hear_of(self, rank: int) -> None:
        """A rank is there, and does something."""
        self._spoke.add(rank)

    def some_catch_up(self) -> bool:
        """Whether somebody is not through, and something was heard of it since this was last asked."""
        spoke, self._spoke = self._spoke, set()
        return not spoke.isdisjoint(set(self._roster.present()) - self._through)

    # -- what they say

    def on_status(self, message: Status, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank says how far it is; everyone is in when all have begun the first round."""
        self.hear_of(rank)
        lead = self._coordinating
        is_first = message.round == self._first > lead.round
        if is_first and self._roster.ready(rank):
            self.begin_if_enough(actions)
        lead.status(rank, message, now, actions)
        if lead.is_current(rank):
            self._taking.discard(rank)
        if message.digest:
            self.compare(rank, message.round, message.digest, actions)

    def begin_if_enough(self, actions: list[AnyAction]) -> None:
        """Say that everyone is in, when all are who can be reached, and enough."""
        lacking = self._roster.lacking()
        count = len(self._roster.children) + 1 - len(lacking)
        may_begin = not lacking or (0 < self._least <= count and self._lost.issuperset(lacking))
        if may_begin and self._is_first and not self._has_said:
            self._has_said = True
            actions.append(EveryoneIn())

    def on_done(self, message: Done, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank has done a part."""
        self._coordinating.done(rank, message, now, actions)
        if message.digest:
            self.compare(rank, message.round, message.digest, actions)

    def on_late(self, message: Late, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank was late."""
        self.hear_of(rank)
        actions.append(was_late(message, rank))

    def compare(self, rank: int, round_: int, digest: str, actions: list[AnyAction]) -> None:
        """Look whether a rank's model is the others', and have it take their state if not."""
        lead = self._coordinating
        if round_ not in (lead.round, lead.round + 1):
            return
        for odd in self._drift.hear(rank, round_, digest, lead.current()):
            reason = f"rank {odd} has another model than the others in round {round_}"
            if odd == self._own and self._drift.has_majority:
                reason += "; it takes their state"
                self._is_odd = True
            if odd != self._own:
                reason += "; it takes their state"
                self._odd.add(odd)
                lead.must_renew(odd)
                actions.append(Transmit(to=odd, message=Renew(generation=self._generation, round=round_)))
            if round_ > self._first:  # before it the coordinator's counts, and others may differ
                reason += ". Do all ranks take the same steps, with the same optimizer?"
            kind = "drift" if round_ > self._first else "renewed"
            actions.append(Note(kind=kind, reason=reason, round=round_, nodes=(odd,)))

    def takes_state(self, round_: int, actions: list[AnyAction]) -> bool:
        """Whether this rank must take the state of others before this round; those that have it are asked."""
        if not self._is_odd:
            return False
        self._is_odd = self._ask(self._own, round_, actions)
        return self._is_odd

    def must_take_state(self) -> None:
        """This rank's script has not what the others have."""
        self._is_odd = True

    def has_state(self) -> None:
        """This rank has taken the state of others."""
        self._is_odd = False

    def find_givers(self, rank: int, round_: int, actions: list[AnyAction]) -> bool:
        """Ask others to give their state to one that wants it, not always the same; whether some were asked.

        If there are none, or it was in vain, the coordinator gives its own.
        """
        self._odd.discard(rank)
        self._coordinating.must_renew(rank)
        if round_ <= self._first or rank in self._taking or not self._ask(rank, round_, actions):
            self._taking.discard(rank)
            return False
        self._taking.add(rank)
        return True

    def _ask(self, rank: int, round_: int, actions: list[AnyAction]) -> bool:
        """Ask some that are current to give a rank their state as it is before a round; whether there are any."""
        current = [one for one in self._coordinating.current() if one not in (self._own, rank) and one not in self._odd]
        give = Give(generation=self._generation, round=round_, to=rank)
        for step in range(min(GIVERS, len(current))):
            actions.append(Transmit(to=current[(rank + round_ + step) % len(current)], message=give))
        return bool(current)


def was_late(message: Late, rank: int) -> Note:
    """What is to be told of a rank that was late."""
    reason = f"rank {rank} was {message.seconds:.3g} s late in round {message.round}"
    return Note(kind="late", reason=reason, round=message.round, nodes=(rank,), seconds=message.seconds)


class Office:
    """The coordinator's part of a rank's machine: there while the rank leads, empty otherwise."""

    def __init__(self, position: RankPosition) -> None:
        self._position = position
        self.lead: Scheduler | None = None
        self.leading: Members | None = None

    def take(self, lead: Scheduler, leading: Members) -> None:
        """This rank leads from now on."""
        self.lead, self.leading = lead, leading

    def leave(self) -> None:
        """Another leads, or nobody."""
        self.lead = self.leading = None

    @property
    def is_held(self) -> bool:
        """Whether this rank leads."""
        return self.lead is not None

    def tell_leader(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        """Say something to the one that leads, if that is another.

        A rank that would lead and does not yet has nobody to tell: what counts is said again, or begun again, when it
        is known who leads.
        """
        if self._position.coordinator != self._position.node:
            actions.append(Transmit(to=self._position.coordinator, message=message))
