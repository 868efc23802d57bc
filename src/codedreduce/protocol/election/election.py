"""Who leads when the coordinator is gone.

A generation belongs to one rank, g to rank g modulo N, so that two can never lead the same one. Whoever has lost its
coordinator says so to all, and how far it is (*stand*). When more than half of the voters have, the one that is
furthest, and of those the first, would lead the next generation of its own (*lead*). A rank follows it (*follow*) if it
has lost its own coordinator and is no further itself; from then on it obeys nothing of an earlier generation. With
more than half behind it, that rank leads: it lets its round begin again, in its generation.

Voters are the processes that the run began with, but for those that have left or are known to be dead, and those that
came later, when all voters know of them (`voters`). If exactly half are there, those with the first of the voters are
the larger half. So of two parts that cannot reach each other one goes on at most; and one that is left when the others
were killed goes on alone.

If nothing comes of it all begin again: each after a while of its own, and twice as long each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from codedreduce.protocol.core.events import AnyAction, Note, SetTimer, Transmit
from codedreduce.protocol.core.messages import Follow, Lead, Message, Stand, Voters, Welcome
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.election.leader_liveness import SILENCE, LeaderLiveness
from codedreduce.protocol.election.voters import Voting
from codedreduce.protocol.leader.members import Office
from codedreduce.schemes import StripedPlan

#: Timers: nobody has come to lead; this rank has come to.
ELECTING, LEADING = "electing", "leading"

#: Seconds after which ranks that have nobody to lead them try again, at first and at most.
SHORTEST_TRY, LONGEST_TRY = 0.1, 300.0

#: Seconds of waiting after which it is said for whom.
WORTH_TELLING = 1.0


class Election:
    """A rank without a coordinator.

    `adopt` makes a generation this rank's own. `take_lead` has it lead those that follow, each with the round it is in.
    `let_in` has it lead one more. `greet` says hello to one that is said to lead.
    """

    def __init__(
        self, position: RankPosition, plan: StripedPlan, settings: Settings, links: Outboxes, office: Office,
        adopt: Callable[[int], None],
        take_lead: Callable[[Mapping[int, int], float, list[AnyAction]], None],
        let_in: Callable[[int, int, int, float, list[AnyAction]], None],
        greet: Callable[[int, float, list[AnyAction]], None],
    ) -> None:  # fmt: skip
        self._position = position
        self._plan = plan
        self._links = links
        self._office = office
        self._adopt = adopt
        self._take_lead = take_lead
        self._let_in = let_in
        self._greet = greet
        self._process = settings.process
        self._voting = Voting(position.node, settings.process, plan.computing)
        self._silence = LeaderLiveness()
        self.is_lost = False  # nobody leads this rank
        self._standing: dict[int, int] = {}  # who else has lost its coordinator, and how far it is
        self._followers: dict[int, int] | None = None  # if this rank would lead: who follows it, and how far each is
        self._is_to_raise = False  # this rank leads, and others follow nobody in a later generation
        self._latest = 0  # the latest generation that was heard of
        self._wait = SHORTEST_TRY / 2  # seconds, until another try

    # -- who counts

    def voters(self) -> set[int]:
        """The ranks that have a say in who leads."""
        return self._voting.living()

    @property
    def has_say(self) -> bool:
        """Whether this rank has."""
        return self._voting.has_say

    def is_enough(self, ranks: Iterable[int]) -> bool:
        """Whether these are more than half of the voters, or half of them with the first one."""
        return self._voting.is_enough(ranks)

    @property
    def has_enough(self) -> bool:
        """Whether this rank reaches enough others to lead."""
        return self.is_enough(set(self._plan.computing) - self._links.lost())

    def unreached(self) -> list[int]:
        """The voters that this rank cannot reach."""
        return sorted(self.voters() & self._links.lost())

    def note_lost(self, rank: int, *, is_dead: bool) -> None:
        """A rank cannot be reached; if its process is dead, or has left, nobody waits for what it says."""
        self._standing.pop(rank, None)
        if is_dead:
            self._voting.died(rank)

    def peer_lost(self, rank: int, now: float, actions: list[AnyAction], *, is_dead: bool) -> None:
        """A rank cannot be reached: if it is the one that leads, another must."""
        self.note_lost(rank, is_dead=is_dead)
        self.look_at_voters(actions)
        if rank == self._position.coordinator and not self._office.is_held:
            self.lose(now, actions)
        elif self.is_lost:
            self._propose(now, actions)
            self._lead_if_enough(now, actions)

    def is_new(self, rank: int, process: int, now: float, actions: list[AnyAction]) -> None:
        """A rank's process is new, and not in: the one that was in is dead, which may not be known."""
        voters = self.voters()
        self._voting.is_there(rank, process)
        if voters != self.voters():
            self._standing.pop(rank, None)
            if rank == self._position.coordinator and not self._office.is_held:
                self.lose(now, actions)
            elif self.is_lost:
                self._propose(now, actions)
                self._lead_if_enough(now, actions)

    def begin_with(self, ranks: Iterable[int], actions: list[AnyAction]) -> None:
        """On a rank that leads: the run begins with these; who has not come has no say until it comes."""
        self._voting.begin(self._position.generation, ranks)
        self._tell_all(self._stand(asks=True), actions)

    def let_in(self, rank: int, process: int) -> None:
        """On a rank that leads: a process is in, and will be a voter if it is not."""
        self._voting.let_in(rank, process)

    def look_at_voters(self, actions: list[AnyAction]) -> None:
        """On a rank that leads: go on to later voters if it is time, and have all know of them."""
        if self._office.is_held and self._voting.advance(self._position.generation):
            self._tell_all(self._stand(asks=True), actions)

    def ask_unaware(self, actions: list[AnyAction]) -> None:
        """On a rank that leads: ask those once more that must know who is coming, and have not said that they do."""
        stand = self._stand(asks=True)
        unaware = sorted(self._voting.unaware() - self._links.lost())
        actions.extend(Transmit(to=rank, message=stand) for rank in unaware)

    def learn(self, voters: Voters, *, anyhow: bool = False) -> None:
        """Somebody knows of these voters: if they are later ones they are known from now on."""
        self._voting.learn(voters, self._links.lost(), anyhow=anyhow)

    @property
    def known_voters(self) -> Voters:
        """The voters as this rank knows them."""
        return self._voting.voters

    # -- nobody leads

    def lose(self, now: float, actions: list[AnyAction]) -> None:
        """The coordinator is lost, or leads no more: say so, and how far this rank is."""
        if not self.is_lost:
            self.is_lost = True
            self._wait = SHORTEST_TRY / 2
        self._followers = None
        self._tell_all(self._stand(asks=True), actions)
        self._try_again(now, actions)
        self._propose(now, actions)

    def round_is_over(self, now: float, actions: list[AnyAction]) -> None:
        """If the next one takes long, the one that leads is to be asked whether it is there."""
        self._silence.begin(now)
        self._watch(now, actions)

    def _watch(self, now: float, actions: list[AnyAction]) -> None:
        if not self._office.is_held:
            actions.append(SetTimer(name=SILENCE, at=self._silence.when_to_ask(self._position.round_took, now)))

    def look_at_leader(self, now: float, actions: list[AnyAction], *, is_calm: bool) -> None:
        """Ask the one that leads; if it has been asked and does not answer, another must lead."""
        position = self._position
        if self.is_lost or not is_calm or position.coordinator == position.node:
            self._watch(now, actions)
            return
        if not self._silence.is_asked(position.generation):
            actions.append(Transmit(to=position.coordinator, message=self._stand(asks=True)))
            actions.append(SetTimer(name=SILENCE, at=self._silence.ask(position.generation, now)))
            return
        waited = self._silence.give_up(now)
        reason = f"rank {position.coordinator}, which leads, has not answered rank {position.node} for {waited:.1f} s"
        actions.append(Note(kind="silent", reason=reason, round=position.round, nodes=(position.coordinator,)))
        self._watch(now, actions)
        self.lose(now, actions)

    def find(self) -> None:
        """Somebody leads this rank."""
        self.is_lost = False
        self._followers = None
        self._standing.clear()

    def _try_again(self, now: float, actions: list[AnyAction]) -> None:
        """Each rank after another while, so that two do not stand in each other's way for ever."""
        self._wait = min(LONGEST_TRY, 2 * self._wait)
        spread = 1 + self._position.node / self._plan.workers
        actions.append(SetTimer(name=ELECTING, at=now + self._wait * spread))

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Nothing has come of it: begin again. Whoever is furthest may be gone by now."""
        is_to_raise, self._is_to_raise = self._is_to_raise, False
        if is_to_raise and self._office.is_held and self._latest > self._position.generation:
            self._offer(now, actions)
        elif self.is_lost:
            self._say_waiting(actions)
            self._standing.clear()
            self.lose(now, actions)

    def _say_waiting(self, actions: list[AnyAction]) -> None:
        """Say for whom this rank waits, if that has taken long."""
        position = self._position
        missing = tuple(sorted(self.voters() - {position.node} - self._standing.keys()))
        if self._wait >= WORTH_TELLING and missing:
            reason = (
                f"rank {position.node} has lost rank {position.coordinator}, which led; for another to lead it waits "
            )
            reason += f"for ranks {list(missing)}, or to know that they are dead"
            actions.append(Note(kind="waiting", reason=reason, round=position.round, nodes=missing))

    def _stand(self, *, asks: bool = False) -> Stand:
        position = self._position
        return Stand(
            generation=position.generation, round=position.candidacy, lost=self.is_lost, asks=asks,
            process=self._process, voters=self._voting.voters,
        )  # fmt: skip

    def _tell_all(self, message: Message, actions: list[AnyAction]) -> None:
        lost = self._links.lost()
        others = (rank for rank in self._plan.computing if rank != self._position.node and rank not in lost)
        actions.extend(Transmit(to=rank, message=message) for rank in others)  # type: ignore[arg-type]

    def is_in(self, message: Welcome, is_new: bool, actions: list[AnyAction]) -> None:
        """This rank is welcomed, and told whose word counts; if it is new, all know from now on which process it is."""
        self.learn(message.voters, anyhow=is_new)
        if is_new and message.is_late:
            self._tell_all(self._stand(), actions)
        elif not is_new and message.voters != self._voting.voters:
            self.tell(self._position.coordinator, actions)

    def tell(self, rank: int, actions: list[AnyAction]) -> None:
        """Tell one rank how it is here: whom this rank follows, or that it has lost whom it followed."""
        actions.append(Transmit(to=rank, message=self._stand()))

    def on_stand(self, message: Stand, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Another says whom it follows, or that it follows nobody."""
        position = self._position
        self._latest = max(self._latest, message.generation)
        leader = position.leader_of(message.generation)
        self._hear_of_voters(message, sender, actions)
        if message.lost:
            self._standing[sender] = message.round
            if self._office.is_held:
                self._lead_also(sender, message, now, actions)
            elif self.is_lost:
                if message.asks:
                    self.tell(sender, actions)
                self._propose(now, actions)
            elif sender == position.coordinator and message.generation == position.generation:
                self.lose(now, actions)  # it leads no more
            elif message.generation < position.generation:
                self.tell(sender, actions)
        elif message.generation > position.generation and leader != position.node:
            self._greet(leader, now, actions)
        elif sender == position.coordinator and self._silence.is_asked(message.generation):
            self._silence.answers(message.generation, now)
            self._watch(now, actions)
        elif self._office.is_held and message.asks:
            self.tell(sender, actions)

    def _hear_of_voters(self, message: Stand, sender: int, actions: list[AnyAction]) -> None:
        """Another says whose word counts as far as it knows. One that leads is told that this rank knows it, too."""
        position = self._position
        self.learn(message.voters)
        self._voting.is_there(sender, message.process)
        is_of_this = message.generation == position.generation and not message.lost
        if self._office.is_held and is_of_this:
            self._voting.agrees(sender, message.voters)
            self.look_at_voters(actions)
        elif is_of_this and sender == position.coordinator and message.asks and not self.is_lost:
            self.tell(sender, actions)

    def _lead_also(self, rank: int, message: Stand, now: float, actions: list[AnyAction]) -> None:
        """On a rank that leads: have one that follows nobody follow, too.

        It may have followed one of a later generation, who came to nothing. It cannot go back, so all go there.
        """
        if message.generation == self._position.generation:
            self._let_in(rank, message.process, message.round, now, actions)
        elif message.generation < self._position.generation:
            self.tell(rank, actions)
        elif self.has_enough and not self._is_to_raise:
            self._is_to_raise = True  # not at once: it may be welcomed there meanwhile
            spread = 1 + self._position.node / self._plan.workers
            actions.append(SetTimer(name=ELECTING, at=now + SHORTEST_TRY * spread))

    # -- somebody would lead

    def _propose(self, now: float, actions: list[AnyAction]) -> None:
        """Offer to lead, if enough have nobody, and none of them is further."""
        position = self._position
        positions = {**self._standing, position.node: position.candidacy}
        if self._followers is not None or not position.candidacy or not self.is_enough(positions):
            return
        if min(positions, key=lambda rank: (-positions[rank], rank)) != position.node:
            return
        self._offer(now, actions)

    def _offer(self, now: float, actions: list[AnyAction]) -> None:
        """Offer to lead, in a generation later than any that was heard of."""
        position = self._position
        self._adopt(position.own_generation(max(self._latest, position.generation)))
        self.is_lost = True
        self._try_again(now, actions)
        self._followers = {position.node: position.progress}
        made_in, number = self._voting.number
        lead = Lead(
            generation=position.generation, round=position.progress, voters_made_in=made_in, voters_number=number
        )  # fmt: skip
        self._tell_all(lead, actions)
        self._lead_if_enough(now, actions)

    def on_lead(self, message: Lead, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Another would lead: follow it, unless this rank has a coordinator, is further, or knows later voters."""
        position = self._position
        self._latest = max(self._latest, message.generation)
        if position.leader_of(message.generation) != sender or message.generation <= position.generation:
            return
        may_follow = self.is_lost or sender == position.coordinator or (self._office.is_held and not self.has_enough)
        knows_less = (message.voters_made_in, message.voters_number) < self._voting.number
        if not may_follow or message.round < position.progress or knows_less:
            self.tell(sender, actions)
            return
        self._adopt(message.generation)
        self.is_lost = True  # until it is welcomed
        follow = Follow(generation=message.generation, round=position.progress, process=self._process)
        actions.append(Transmit(to=sender, message=follow))
        self._try_again(now, actions)

    def on_follow(self, message: Follow, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Another follows this rank, if it would still lead."""
        self._voting.is_there(sender, message.process)
        if self._followers is not None:
            self._followers[sender] = message.round
            self._lead_if_enough(now, actions)
        elif self._office.is_held:
            self._let_in(sender, message.process, message.round, now, actions)

    def _lead_if_enough(self, now: float, actions: list[AnyAction]) -> None:
        if self._followers is not None and self.is_enough(self._followers):
            actions.append(SetTimer(name=LEADING, at=now))

    def lead(self, now: float, actions: list[AnyAction]) -> None:
        """Lead, if enough follow and can be reached."""
        if self._followers is None or not self.is_enough(self._followers) or not self.has_enough:
            return
        followers = self._followers
        self.find()
        self._voting.take_lead()
        position = self._position
        reason = f"rank {position.node} leads generation {position.generation} from round {position.progress} on; "
        reason += f"{len(followers)} of {len(self.voters())} ranks follow"
        actions.append(Note(kind="leads", reason=reason, round=position.round, nodes=(position.node,)))
        self._take_lead(followers, now, actions)
