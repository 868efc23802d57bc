"""How a rank joins a run, or returns to it: it sends hello to the leader until it is welcomed.

Also the other side: what the leader and other ranks answer to a rank that looks for its leader.
"""

from __future__ import annotations

from codedreduce.protocol.core.events import Actions, EveryoneIn, PeerFound, SetTimer, Transmit
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.messages import Have, Hello, Stand, Welcome
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, JOINING, READY, RENEWING, RESTING, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.election.election import Election
from codedreduce.protocol.leader.members import Leadership
from codedreduce.protocol.rank.catch_up import CatchUp
from codedreduce.protocol.rank.state_transfer import StateGiving
from codedreduce.protocol.rank.worker import RankWorker
from codedreduce.schemes import StripedPlan


class Joining:
    """A follower before it is admitted, and over every new connection."""

    def __init__(
        self, actions: Actions, position: RankPosition, plan: StripedPlan, settings: Settings, links: Outboxes,
        worker: RankWorker, catch_up: CatchUp, giving: StateGiving, election: Election, leadership: Leadership,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._position = position
        self._run = run_name(plan, settings)
        self._links = links
        self._worker = worker
        self._catch_up = catch_up
        self._giving = giving
        self._election = election
        self._leadership = leadership
        self._timing = position.timing
        self._hellos = 0  # hellos without an answer
        self._to = position.leader

    def say_hello(self, now: float, to: int | None = None) -> None:
        """Send hello with this rank's plan, to its leader or to another rank that is reported to lead."""
        position = self._position
        self._to = position.leader if to is None else to
        is_in = position.state is not JOINING
        hello = Hello(
            generation=position.generation, round=position.round, plan=self._run, is_in=is_in, process=position.process
        )  # fmt: skip
        self._actions.append(Transmit(to=self._to, message=hello))
        self._hellos += 1
        self._actions.append(SetTimer(name=Timer.HELLO, at=now + self._timing.hello_retry * self._hellos))

    def look(self, now: float) -> None:
        """Send hello again if there was no answer."""
        if self._hellos and self._to != self._position.node:
            self.say_hello(now, self._to)

    def has_lead(self) -> None:
        """This rank is the leader: it needs no welcome."""
        self._hellos = 0

    def on_welcome(self, message: Welcome, sender: int, now: float) -> None:
        """This rank is admitted, or back. The leader may not have received its last messages, so it repeats them.

        The leader of a later generation sends a welcome, too. A welcome of an earlier generation is ignored.
        """
        position = self._position
        if message.generation < position.generation or position.leader_of(message.generation) != sender:
            return
        self._election.adopt(message.generation)
        position.is_over(message.round)
        self._timing = position.timing
        self._hellos = 0
        if position.state is not JOINING:
            self._election.is_in(message, False)
        if position.state is JOINING:
            position.become(RESTING)
            if message.round > position.round:  # it joins late, or the others continued from a checkpoint
                self._catch_up.begin_after(message.round)
            self._election.is_in(message, True)
            self._actions.append(EveryoneIn())
        elif position.state is ENDING:
            self._actions.append(
                Transmit(to=sender, message=Have(generation=position.generation, round=position.round))
            )
        elif (
            position.state is RESTING and position.through > message.round
        ):  # perhaps no other rank can compute that round any more
            self._worker.tell_ahead(now)
        elif position.state in (READY, WORKING) and position.round <= message.round:
            position.become(WORKING)
            self._catch_up.was_overtaken(now)
        elif position.state is WORKING and position.is_on:
            self._worker.repeat_done(now)
            self._worker.tell_status(now)
        elif position.state is READY and position.round == position.first:
            self._worker.tell_again(now)
        elif position.state is RENEWING and not self._catch_up.is_taking:  # its request may be lost
            self._catch_up.renew(now)

    def on_peer_found(self, event: PeerFound, now: float) -> None:
        """A connection to another rank is new."""
        if event.peer not in self._links:
            return
        self._links.find(event.peer)
        self._giving.lost(event.peer)
        self._catch_up.lost(event.peer)
        if event.peer == self._position.leader and not self._leadership.is_held:
            self.say_hello(now)
        elif self._position.state is not JOINING:
            self._election.tell(event.peer)
        if not self._leadership.is_held:  # a follower sends hello first
            self._worker.send_again(event.peer)

    # -- ranks that look for a leader

    def on_hello(self, message: Hello, sender: int, now: float) -> None:
        """On the leader: a rank asks to join, or is back."""
        members, has_begun = self._leadership.members, self._position.go.round > 0
        assert members is not None
        if message.is_in and self.gives_way(sender, message.generation, now):
            return
        if not message.is_in and has_begun and not self._election.has_enough:
            return  # there may be another leader by now: this one must not decide about members
        self._election.let_in(sender, message.process)
        if members.greet(sender, message, self._election.known_voters):
            self._links.find(sender)
            self._giving.lost(sender)
            members.scheduler.came(sender, now)
            self._worker.send_again(sender)
            members.tell_of_end(sender)
            if has_begun:
                self._election.look_at_voters()
            self._election.go_on_soon(now)

    def on_stand(self, message: Stand, sender: int, now: float) -> None:
        """Another rank reports the generation it follows, or that it has no leader."""
        position = self._position
        leader = position.leader_of(message.generation)
        if self.gives_way(sender, message.generation, now):
            return
        if position.state is not JOINING:
            self._election.hear_of_voters(message, sender)
            if not message.lost and message.generation > position.generation and leader != position.node:
                self.say_hello(now, leader)
            else:
                self._election.on_stand(message, sender, now)
        elif not message.lost and leader != position.node:
            self.say_hello(now, leader)
        elif message.asks:
            self.say_hello(now, sender)

    def on_hello_to_another(self, message: Hello, sender: int, now: float) -> None:
        """A rank asks to join, or is back, and takes this rank for the leader."""
        if not message.is_in:
            self._election.is_new(sender, message.process, now)
        self._election.tell(sender)

    def gives_way(self, rank: int, generation: int, now: float) -> bool:
        """If a rank was in a run before, and this rank leads one that has not begun: ask to join that run instead."""
        position, members = self._position, self._leadership.members
        if members is None or position.state is not RESTING or position.go.round or members.has_met(rank):
            return False
        self._leadership.leave()
        position.become(JOINING)
        leader = position.leader_of(generation)
        self.say_hello(now, rank if leader == position.node else leader)
        return True
