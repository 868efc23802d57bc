"""The members of a run, as the leader knows them: membership, drift, state transfer, ranks that are done.

Drift: ranks report digests of their models now and then; the leader names ranks that differ from most.

Also `Leadership`: whether a rank leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from codedreduce.protocol.core.events import Actions, EveryoneIn, Note, Transmit
from codedreduce.protocol.core.membership import Roster, run_name
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Checked,
    Done,
    End,
    Give,
    Hello,
    Late,
    Leaving,
    Refuse,
    Renew,
    Status,
    Voters,
    Welcome,
)
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.scheduler import Scheduler
from codedreduce.schemes import StripedPlan


class DriftDetector:
    """Digests of one round at a time."""

    def __init__(self, ranks: int, first: int = 1, own: int = 0) -> None:
        self._first = first
        self._own = own
        self._ranks = ranks
        self._round = 0
        self._digests: dict[int, str] = {}
        self._named: set[int] = set()
        self.has_majority = False  # whether more than half of the reported models equal the one that counts

    def hear(self, rank: int, round_: int, digest: str, present: Collection[int]) -> list[int]:
        """Note a rank's digest; return the ranks now known to differ from the digest that counts, each once.

        Before the first round the leader's digest counts. Later that of the majority counts; in a tie, the leader's if
        it is one of the tied digests.
        """
        if round_ < self._round:
            return []
        if round_ > self._round:
            self._round = round_
            self._digests.clear()
            self._named.clear()
        self._digests[rank] = digest
        if self._own not in self._digests:
            return []
        right = self._digests[self._own]
        if round_ > self._first:
            if len(self._digests) < len(present):
                return []
            counts = Counter(self._digests.values())
            most = max(counts.values())
            right = right if counts[right] == most else counts.most_common(1)[0][0]
            self.has_majority = 2 * counts[right] > len(self._digests)
        odd = [one for one, told in self._digests.items() if told != right and one not in self._named]
        self._named.update(odd)
        return sorted(odd)


#: Ranks that transfer their state to one that needs it, each a part.
GIVERS = 3


class Members:
    """The other ranks of a run, as the leader of a generation knows them."""

    def __init__(
        self,
        actions: Actions,
        position: RankPosition,
        plan: StripedPlan,
        settings: Settings,
        scheduler: Scheduler,
    ) -> None:
        self._actions = actions
        self._position = position
        self.scheduler = scheduler
        self._own = own = position.node
        self._roster = Roster([rank for rank in plan.computing if rank != own], run_name(plan, settings))
        self._drift = DriftDetector(plan.workers, settings.after + 1, own)
        self._is_first = position.generation == settings.generation
        self._first = settings.after + 1  # the first round
        self._least = settings.least
        self._lost: set[int] = set()  # ranks that cannot be reached
        self._has_said = False  # whether `EveryoneIn` was issued
        self._met: set[int] = set()  # ranks that were ever admitted
        self._through: set[int] = set()  # ranks that have done the last round
        self._spoke: set[int] = set()  # ranks heard from since `some_catch_up` was last called
        self._odd: set[int] = set()  # ranks with a state that no other rank should take
        self._is_odd = False  # the leader's own state differs, and the right one is known
        self._taking: set[int] = set()  # ranks to which others were asked to transfer their state

    # -- membership

    def greet(self, rank: int, hello: Hello, voters: Voters) -> bool:
        """Answer a hello, with the last round that is over; return whether the rank is admitted."""
        position = self._position
        is_late = rank in self._met or position.go.round > 0
        answer = self._roster.answer(rank, hello, position.generation, position.through, is_late=is_late, voters=voters)
        self._actions.append(Transmit(to=rank, message=answer))
        if isinstance(answer, Refuse):
            self._actions.append(Note(kind="refused", reason=answer.reason, round=position.round, nodes=(rank,)))
            return False
        self._through.discard(rank)
        self._lost.discard(rank)
        self._met.add(rank)
        return True

    def welcome(self, rank: int, voters: Voters) -> None:
        """Admit a rank that follows, or report the last round that is over to it."""
        position = self._position
        welcome = Welcome(generation=position.generation, round=position.through, voters=voters)
        self._actions.append(Transmit(to=rank, message=welcome))
        self.tell_of_end(rank)

    def tell_of_end(self, rank: int) -> None:
        """Report to a rank that joins or returns that the run is over, if it is."""
        position = self._position
        if position.end is not None:
            end = End(generation=position.generation, round=position.end)
            self._actions.append(Transmit(to=rank, message=end))

    def take_over(self, positions: Mapping[int, int], now: float) -> None:
        """Lead the followers, whatever round each is in; all of them were members before."""
        for rank, position in positions.items():
            if rank != self._own:
                self._roster.take(rank)
                self._met.add(rank)
                self.scheduler.came(rank, now)
                if position != positions[self._own]:
                    self.scheduler.is_elsewhere(rank)
                if position > positions[self._own]:
                    self.scheduler.is_ahead(rank, now)

    def has_met(self, rank: int) -> bool:
        """Whether a rank was ever admitted."""
        return rank in self._met

    def met(self) -> frozenset[int]:
        """The ranks that were ever admitted."""
        return frozenset(self._met)

    @property
    def may_begin(self) -> bool:
        """Whether a round may begin.

        A leader that takes over before the first round waits until all ranks have reported their model.
        """
        return self._is_first or self._position.go.round > 0 or self._roster.all_ready

    def lacking(self) -> list[int]:
        """The ranks that have not joined or not reported ready."""
        return self._roster.lacking()

    def on_leaving(self, message: Leaving, rank: int, now: float) -> None:
        """A rank leaves after this round: the leader does not use it in the next."""
        if rank in self.scheduler.staying():
            reason = f"rank {rank} leaves after round {message.round}: {message.reason}"
            self._actions.append(Note(kind="leaving", reason=reason, round=message.round, nodes=(rank,)))
            self.scheduler.leaves(rank)

    def staying(self) -> set[int]:
        """The other ranks that are present, and do not leave after this round."""
        return self.scheduler.staying()

    def gone(self, rank: int) -> None:
        """A rank cannot be reached, or has left."""
        self._lost.add(rank)
        self._roster.gone(rank)

    def tell_all(self, message: AnyMessage) -> None:
        """Send a message to all members."""
        self._actions.extend(Transmit(to=rank, message=message) for rank in self._roster.present())

    def through(self, rank: int) -> None:
        """A rank has done its last round."""
        self._through.add(rank)

    @property
    def all_through(self) -> bool:
        """Whether all members have done their last round."""
        return set(self._roster.present()) <= self._through

    def hear_of(self, rank: int) -> None:
        """A rank is alive, and active."""
        self._spoke.add(rank)

    def some_catch_up(self) -> bool:
        """Whether a member has not done its last round, and was heard from since the last call."""
        spoke, self._spoke = self._spoke, set()
        return not spoke.isdisjoint(set(self._roster.present()) - self._through)

    # -- their reports

    def on_status(self, message: Status, rank: int, now: float) -> None:
        """A rank reports its progress. The run begins when all members have begun the first round."""
        self.hear_of(rank)
        lead = self.scheduler
        is_first = message.round == self._first > lead.round
        if is_first and self._roster.ready(rank):
            self.begin_if_enough()
        lead.status(rank, message, now)
        if lead.is_current(rank):
            self._taking.discard(rank)
        self._compare_told(rank, message)

    def begin_if_enough(self) -> None:
        """Issue `EveryoneIn` once all ranks are ready, or at least `least` are and no other can be reached."""
        lacking = self._roster.lacking()
        count = len(self._roster.children) + 1 - len(lacking)
        may_begin = not lacking or (self._least is not None and self._least <= count and self._lost.issuperset(lacking))
        if may_begin and self._is_first and not self._has_said:
            self._has_said = True
            self._actions.append(EveryoneIn())

    def on_done(self, message: Done, rank: int, now: float) -> None:
        """A rank has done a part."""
        self.scheduler.done(rank, message, now)
        self._compare_told(rank, message)

    def on_checked(self, message: Checked, rank: int, now: float) -> None:
        """A rank has computed an audited block."""
        self.scheduler.checked(rank, message, now)

    def on_late(self, message: Late, rank: int, now: float) -> None:
        """A rank was late."""
        self.hear_of(rank)
        reason = f"rank {rank} was {message.seconds:.3g} s late in round {message.round}"
        self._actions.append(
            Note(kind="late", reason=reason, round=message.round, nodes=(rank,), seconds=message.seconds)
        )

    def _compare_told(self, rank: int, message: Status | Done) -> None:
        """Compare a reported digest. That of the leader's own model was compared when its round began."""
        if message.digest and rank != self._own:
            self.compare(rank, message.round, message.digest)

    def compare(self, rank: int, round_: int, digest: str) -> None:
        """Compare a rank's model with the others'; if it differs, the rank must take their state."""
        lead = self.scheduler
        if round_ not in (lead.round, lead.round + 1):
            return
        for odd in self._drift.hear(rank, round_, digest, lead.current()):
            reason = f"rank {odd} has a different model from the others in round {round_}"
            if odd == self._own and self._drift.has_majority:
                reason += "; it takes their state"
                self._is_odd = True
            if odd != self._own:
                reason += "; it takes their state"
                self._odd.add(odd)
                lead.is_elsewhere(odd)
                renew = Renew(generation=self._position.generation, round=round_)
                self._actions.append(Transmit(to=odd, message=renew))
            if round_ > self._first:  # before it the leader's counts, and others may differ
                reason += ". Do all ranks take the same steps, with the same optimizer?"
            kind = "drift" if round_ > self._first else "renewed"
            self._actions.append(Note(kind=kind, reason=reason, round=round_, nodes=(odd,)))

    def takes_state(self, round_: int) -> bool:
        """Whether this rank must take the state of others before this round; ask those that have it."""
        if not self._is_odd:
            return False
        self._is_odd = self._ask(self._own, round_)
        return self._is_odd

    def must_take_state(self) -> None:
        """This rank's script does not have the state that the others have."""
        self._is_odd = True

    def has_state(self) -> None:
        """This rank has taken the state of others."""
        self._is_odd = False

    def find_givers(self, rank: int, round_: int) -> bool:
        """Ask other ranks, not always the same, to transfer their state to one that needs it; whether some were asked.

        If there are none, or the transfer failed, the leader transfers its own.
        """
        self._odd.discard(rank)
        self.scheduler.is_elsewhere(rank)
        if round_ <= self._first or rank in self._taking or not self._ask(rank, round_):
            self._taking.discard(rank)
            return False
        self._taking.add(rank)
        return True

    def _ask(self, rank: int, round_: int) -> bool:
        """Ask some current ranks to transfer to a rank their state before a round; return whether there are any."""
        current = [one for one in self.scheduler.current() if one not in (self._own, rank) and one not in self._odd]
        give = Give(generation=self._position.generation, round=round_, to=rank)
        for step in range(min(GIVERS, len(current))):
            self._actions.append(Transmit(to=current[(rank + round_ + step) % len(current)], message=give))
        return bool(current)


@dataclass(slots=True)
class Leadership:
    """Whether a rank leads: it has the members of its run while it does, and none while another rank leads."""

    members: Members | None = None

    @property
    def is_held(self) -> bool:
        """Whether this rank leads."""
        return self.members is not None

    def leave(self) -> None:
        """Another rank leads, or none."""
        self.members = None
