"""The election of a new leader after the leader failed.

A term is a generation. Generation g belongs to rank g modulo N, so two ranks can never lead the same one. A rank that
lost its leader reports that to all ranks, with its progress (*stand*). When more than half of the voters have done so,
a candidate offers to lead the next generation of its own (*lead*). The candidate is the rank with the most progress,
and of those the first. A rank votes for the candidate (*follow*) if it lost its own leader and has no more progress.
From then on it obeys nothing of an earlier generation. With more than half of the votes the candidate leads: it begins
its round again, in its generation.

Voters are the processes that the run began with, except those that left or are known to be dead. Processes that joined
later are voters once all voters know of them (`voters`). If exactly half are present, the half that includes the first
voter counts as the larger one. So of two partitions that cannot reach each other, at most one goes on. A single rank
goes on alone when the others were killed.

If an election fails, all ranks retry, each after a delay of its own that doubles each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from codedreduce.protocol.core.events import Actions, Note, SetTimer, Transmit
from codedreduce.protocol.core.messages import Follow, Lead, Message, Stand, Voters, Welcome
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, JOINING, LEFT, READY, RENEWING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.election.leader_liveness import LeaderLiveness
from codedreduce.protocol.election.voters import Voting
from codedreduce.protocol.leader.members import Leadership
from codedreduce.schemes import StripedPlan


class Election:
    """A rank's part in elections, and in the membership of the ranks that follow it."""

    def __init__(
        self, actions: Actions, position: RankPosition, plan: StripedPlan, settings: Settings, links: Outboxes,
        leadership: Leadership,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._position = position
        self._plan = plan
        self._links = links
        self._leadership = leadership
        self._say_waiting_after = settings.excess.say_waiting_after
        self._timing = position.timing
        self._voting = Voting(position.node, position.process, plan.computing)
        self._silence = LeaderLiveness(position.timing)
        self.is_lost = False  # this rank has no leader
        self._standing: dict[int, int] = {}  # progress of the other ranks that lost their leader
        self._followers: dict[int, int] | None = None  # if this rank is a candidate: progress of each follower
        self._is_to_raise = False  # this rank leads, and others have no leader in a later generation
        self._latest = 0  # the latest generation heard of
        self._wait = settings.timing.election_retry / 2  # seconds until the next retry

    # -- voters

    def voters(self) -> set[int]:
        """The ranks that vote."""
        return self._voting.living()

    @property
    def has_say(self) -> bool:
        """Whether this rank is a voter."""
        return self._voting.has_say

    def is_enough(self, ranks: Iterable[int]) -> bool:
        """Whether these are more than half of the voters, or half of them with the first one."""
        return self._voting.is_enough(ranks)

    @property
    def has_enough(self) -> bool:
        """Whether this rank reaches enough others to lead."""
        return self.is_enough(set(self._plan.computing) - self._links.lost())

    def say_unreached(self, now: float) -> None:
        """On the leader: log the voters that this rank cannot reach, and again after a while."""
        rank, missing = self._position.node, tuple(sorted(self.voters() & self._links.lost()))
        reason = f"rank {rank} cannot reach ranks {list(missing)}: it goes on only if it reaches more than half"
        self._actions.append(Note(kind="waiting", reason=reason, round=self._position.round, nodes=missing))
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self._say_waiting_after))

    def let_begin(self, now: float) -> None:
        """On the leader: begin the round of its script, if it reaches enough other ranks."""
        members = self._leadership.members
        assert members is not None
        if not self.has_enough:
            self.say_unreached(now)
        elif members.may_begin:
            self.ask_unaware()
            members.scheduler.begin(self._position.round, now)

    def go_on(self, now: float) -> None:
        """On the leader: begin a round that waited for other ranks."""
        position = self._position
        if self._leadership.is_held and position.state is READY and not position.is_past_end:
            self.let_begin(now)

    def go_on_soon(self, now: float) -> None:
        """On the leader: schedule another try, since a rank is back or is lost for good."""
        if self._leadership.is_held and self._position.state is not LEFT:
            self._actions.append(SetTimer(name=Timer.GO_ON, at=now))

    def note_lost(self, rank: int, *, is_dead: bool) -> None:
        """A rank cannot be reached. If its process is dead, or has left, no rank waits for its vote."""
        self._standing.pop(rank, None)
        if is_dead:
            self._voting.died(rank)

    def peer_lost(self, rank: int, now: float, *, is_dead: bool) -> None:
        """A rank cannot be reached: if it is the leader, the ranks elect another."""
        self.note_lost(rank, is_dead=is_dead)
        self.look_at_voters()
        if rank == self._position.leader and not self._leadership.is_held:
            self.lose(now)
        elif self.is_lost:
            self._propose(now)
            self._lead_if_enough(now)

    def is_new(self, rank: int, process: int, now: float) -> None:
        """A rank's process is new and no member: the process that was a member is dead, which may not be known."""
        voters = self.voters()
        self._voting.is_there(rank, process)
        if voters != self.voters():
            self._standing.pop(rank, None)
            if rank == self._position.leader and not self._leadership.is_held:
                self.lose(now)
            elif self.is_lost:
                self._propose(now)
                self._lead_if_enough(now)

    def begin_with(self, ranks: Iterable[int]) -> None:
        """On the leader: the run begins with these ranks. The others have no vote until they join."""
        self._voting.begin(self._position.generation, ranks)
        self._tell_all(self._stand(asks=True))

    def let_in(self, rank: int, process: int) -> None:
        """On the leader: a process is a member, and will be a voter if it is none."""
        self._voting.let_in(rank, process)

    def look_at_voters(self) -> None:
        """On the leader: go on to later voters if it is time, and send them to all."""
        if self._leadership.is_held and self._voting.advance(self._position.generation):
            self._tell_all(self._stand(asks=True))

    def ask_unaware(self) -> None:
        """On the leader: ask the voters again that have not confirmed the processes that are coming."""
        stand = self._stand(asks=True)
        unaware = sorted(self._voting.unaware() - self._links.lost())
        self._actions.extend(Transmit(to=rank, message=stand) for rank in unaware)

    def learn(self, voters: Voters, *, anyhow: bool = False) -> None:
        """Adopt voters that another rank knows, if they are later, or `anyhow`."""
        self._voting.learn(voters, self._links.lost(), anyhow=anyhow)

    @property
    def known_voters(self) -> Voters:
        """The voters as this rank knows them."""
        return self._voting.voters

    # -- no leader

    def lose(self, now: float) -> None:
        """The leader failed, or leads no more: report that to all, with this rank's progress."""
        if not self.is_lost:
            self.is_lost = True
            self._wait = self._timing.election_retry / 2
        self._followers = None
        self._tell_all(self._stand(asks=True))
        self._try_again(now)
        self._propose(now)

    def round_is_over(self, now: float) -> None:
        """A round ended: if the next one takes long, this rank asks the leader whether it is alive."""
        self._silence.begin(now)
        self._watch(now)

    def _watch(self, now: float) -> None:
        if not self._leadership.is_held:
            self._actions.append(
                SetTimer(name=Timer.LIVENESS, at=self._silence.when_to_ask(self._position.round_took, now))
            )

    def look_at_leader(self, now: float) -> None:
        """Ask the leader whether it is alive; if it has not answered in time, start an election."""
        position = self._position
        if position.state is ENDING:
            return
        if self.is_lost or position.state in (JOINING, RENEWING) or position.leader == position.node:
            self._watch(now)
            return
        if not self._silence.is_asked(position.generation):
            self._actions.append(Transmit(to=position.leader, message=self._stand(asks=True)))
            self._actions.append(SetTimer(name=Timer.LIVENESS, at=self._silence.ask(position.generation, now)))
            return
        waited = self._silence.give_up(now)
        reason = f"leader rank {position.leader} has not answered rank {position.node} for {waited:.1f} s"
        self._actions.append(Note(kind="silent", reason=reason, round=position.round, nodes=(position.leader,)))
        self._watch(now)
        self.lose(now)

    def adopt(self, generation: int) -> None:
        """Switch to a generation, and obey no message of an earlier one."""
        if generation != self._position.generation:
            self._leadership.leave()
            self._position.speak_of(generation)
        self.find()

    def find(self) -> None:
        """This rank has a leader."""
        self.is_lost = False
        self._followers = None
        self._standing.clear()

    def _try_again(self, now: float) -> None:
        """Retry later. Each rank has a delay of its own, so that two candidates do not block each other for ever."""
        self._wait = min(self._timing.election_retry_limit, 2 * self._wait)
        spread = 1 + self._position.node / self._plan.workers
        self._actions.append(SetTimer(name=Timer.ELECTION, at=now + self._wait * spread))

    def look(self, now: float) -> None:
        """The election has no result: begin again. The rank with the most progress may have failed by now."""
        is_to_raise, self._is_to_raise = self._is_to_raise, False
        if is_to_raise and self._leadership.is_held and self._latest > self._position.generation:
            self._offer(now)
        elif self.is_lost:
            self._say_waiting()
            self._standing.clear()
            self.lose(now)

    def _say_waiting(self) -> None:
        """Log the ranks that this rank waits for, if it has waited long."""
        position = self._position
        missing = tuple(sorted(self.voters() - {position.node} - self._standing.keys()))
        if self._wait >= self._timing.election_report and missing:
            reason = f"rank {position.node} has lost its leader, rank {position.leader}; to elect another it waits "
            reason += f"for ranks {list(missing)}, or for proof that they are dead"
            self._actions.append(Note(kind="waiting", reason=reason, round=position.round, nodes=missing))

    def _stand(self, *, asks: bool = False) -> Stand:
        position = self._position
        return Stand(
            generation=position.generation, round=position.candidacy, lost=self.is_lost, asks=asks,
            process=position.process, voters=self._voting.voters,
        )  # fmt: skip

    def _tell_all(self, message: Message) -> None:
        lost = self._links.lost()
        others = (rank for rank in self._plan.computing if rank != self._position.node and rank not in lost)
        self._actions.extend(Transmit(to=rank, message=message) for rank in others)  # type: ignore[arg-type]

    def is_in(self, message: Welcome, is_new: bool) -> None:
        """The leader has admitted this rank, and named the voters. A new process makes itself known to all ranks."""
        self.learn(message.voters, anyhow=is_new)
        if is_new and message.is_late:
            self._tell_all(self._stand())
        elif not is_new and message.voters != self._voting.voters:
            self.tell(self._position.leader)

    def tell(self, rank: int) -> None:
        """Report this rank's state to one rank: the generation it follows, or that it lost its leader."""
        self._actions.append(Transmit(to=rank, message=self._stand()))

    def on_stand(self, message: Stand, sender: int, now: float) -> None:
        """Another rank reports the generation it follows, or that it has no leader."""
        position = self._position
        if message.lost:
            self._standing[sender] = message.round
            if self._leadership.is_held:
                self._lead_also(sender, message, now)
            elif self.is_lost:
                if message.asks:
                    self.tell(sender)
                self._propose(now)
            elif sender == position.leader and message.generation == position.generation:
                self.lose(now)  # it leads no more
            elif message.generation < position.generation:
                self.tell(sender)
        elif sender == position.leader and self._silence.is_asked(message.generation):
            self._silence.answers(message.generation, now)
            self._watch(now)
        elif self._leadership.is_held and message.asks:
            self.tell(sender)

    def hear_of_voters(self, message: Stand, sender: int) -> None:
        """Another rank reports the voters that it knows. This rank confirms them to its leader."""
        position = self._position
        self._latest = max(self._latest, message.generation)
        self.learn(message.voters)
        self._voting.is_there(sender, message.process)
        is_of_this = message.generation == position.generation and not message.lost
        if self._leadership.is_held and is_of_this:
            self._voting.agrees(sender, message.voters)
            self.look_at_voters()
        elif is_of_this and sender == position.leader and message.asks and not self.is_lost:
            self.tell(sender)

    def _lead_also(self, rank: int, message: Stand, now: float) -> None:
        """On the leader: admit a rank that has no leader.

        That rank may have voted for a candidate of a later generation that was not elected. It cannot go back, so this
        leader moves all ranks to a generation that is later still.
        """
        if message.generation == self._position.generation:
            self._admit(rank, message.process, message.round, now)
        elif message.generation < self._position.generation:
            self.tell(rank)
        elif self.has_enough and not self._is_to_raise:
            self._is_to_raise = True  # not at once: another leader may admit it meanwhile
            spread = 1 + self._position.node / self._plan.workers
            self._actions.append(SetTimer(name=Timer.ELECTION, at=now + self._timing.election_retry * spread))

    def _admit(self, rank: int, process: int, progress: int, now: float) -> None:
        """On the leader: admit one more rank that follows, whatever its round is."""
        members = self._leadership.members
        assert members is not None
        members.take_over({self._position.node: self._position.progress, rank: progress}, now)
        self.let_in(rank, process)
        members.welcome(rank, self.known_voters)
        self.look_at_voters()
        self.go_on_soon(now)

    # -- candidates

    def _propose(self, now: float) -> None:
        """Offer to lead, if enough voters have no leader, and none of them has more progress."""
        position = self._position
        positions = {**self._standing, position.node: position.candidacy}
        if self._followers is not None or not position.candidacy or not self.is_enough(positions):
            return
        if min(positions, key=lambda rank: (-positions[rank], rank)) != position.node:
            return
        self._offer(now)

    def _offer(self, now: float) -> None:
        """Offer to lead, in a generation later than any heard of."""
        position = self._position
        self.adopt(position.own_generation(max(self._latest, position.generation)))
        self.is_lost = True
        self._try_again(now)
        self._followers = {position.node: position.progress}
        made_in, number = self._voting.number
        lead = Lead(
            generation=position.generation, round=position.progress, voters_made_in=made_in, voters_number=number
        )  # fmt: skip
        self._tell_all(lead)
        self._lead_if_enough(now)

    def on_lead(self, message: Lead, sender: int, now: float) -> None:
        """Vote for a candidate, unless this rank has a leader, has more progress, or knows later voters."""
        position = self._position
        self._latest = max(self._latest, message.generation)
        if position.leader_of(message.generation) != sender or message.generation <= position.generation:
            return
        may_follow = self.is_lost or sender == position.leader or (self._leadership.is_held and not self.has_enough)
        knows_less = (message.voters_made_in, message.voters_number) < self._voting.number
        if not may_follow or message.round < position.progress or knows_less:
            self.tell(sender)
            return
        self.adopt(message.generation)
        self.is_lost = True  # until the new leader admits it
        follow = Follow(generation=message.generation, round=position.progress, process=position.process)
        self._actions.append(Transmit(to=sender, message=follow))
        self._try_again(now)

    def on_follow(self, message: Follow, sender: int, now: float) -> None:
        """Another rank votes for this one, which may still be a candidate or lead by now."""
        self._voting.is_there(sender, message.process)
        if self._followers is not None:
            self._followers[sender] = message.round
            self._lead_if_enough(now)
        elif self._leadership.is_held:
            self._admit(sender, message.process, message.round, now)

    def _lead_if_enough(self, now: float) -> None:
        if self._followers is not None and self.is_enough(self._followers):
            self._actions.append(SetTimer(name=Timer.ELECTED, at=now))

    def win(self) -> Mapping[int, int]:
        """The ranks that this rank leads from now on, each with its progress; none if too few voters follow."""
        if self._followers is None or not self.is_enough(self._followers) or not self.has_enough:
            return {}
        followers = self._followers
        self.find()
        self._voting.take_lead()
        position = self._position
        reason = f"rank {position.node} leads generation {position.generation} from round {position.progress} on; "
        reason += f"{len(followers)} of {len(self.voters())} ranks follow"
        self._actions.append(Note(kind="leads", reason=reason, round=position.round, nodes=(position.node,)))
        return followers
