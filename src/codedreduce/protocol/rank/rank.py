"""A rank of a striped run: it computes its parts, reduces its stripe, and ends every round with the whole sum.

A round at a rank begins when both the script (`Begin`) and the leader, at first rank 0, have begun it (`Go`). The rank
computes its parts one after the other (`worker`). It sends each to the reducers chunk by chunk, beginning with the
reducer that follows this rank. Sums come from the reducers (`exchange`). The round is over when the whole sum has
arrived, even if something is still being computed.

Reducing goes on beside that and does not wait for the rank itself. A rank that is late with its own work, or has a slow
script between two rounds, still sums its stripe.

A rank that fell behind (the leader has begun a later round) requests the missing sums from the reducers, one round
after the other. If they no longer hold them, it takes the state of another rank (`catch_up`).

Each part of the machine owns its data, and knows the position of the rank (`rank_position`).
"""

from __future__ import annotations

from codedreduce.errors import ProtocolError, UsageError
from codedreduce.protocol.core.events import (
    Begin,
    Computed,
    EveryoneIn,
    Note,
    PeerLost,
    Received,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.core.machine import FOLLOWER, LEADER, PEER, STRANGER, From, Machine, State
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Go,
    Goodbye,
    Message,
    PartChunk,
    StateChunk,
    Status,
    SumChunk,
)
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import (
    ENDING,
    JOINING,
    LEFT,
    OF_ANY_GENERATION,
    READY,
    RENEWING,
    RESTING,
    ROWS,
    WORKING,
    RankState,
)
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.election.election import Election
from codedreduce.protocol.leader.members import Leadership, Members
from codedreduce.protocol.leader.scheduler import Scheduler
from codedreduce.protocol.rank.catch_up import CatchUp
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.joining import Joining
from codedreduce.protocol.rank.leaving import Departure, Handover
from codedreduce.protocol.rank.reducer import Reducer
from codedreduce.protocol.rank.state_transfer import StateGiving
from codedreduce.protocol.rank.sums import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.protocol.rank.worker import RankWorker
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector


class Rank(Machine):
    """The state machine of a rank; that of the leader contains the `Members` of the run and their `Scheduler`."""

    ROWS = ROWS
    OF_ANY_GENERATION = OF_ANY_GENERATION

    def __init__(
        self, node: int, plan: StripedPlan, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS, *, process: int = 1
    ) -> None:
        super().__init__()
        if settings.excess.do != "wait":
            raise UsageError("striped computes the exact sum as long as a rank is left; on_excess must be 'wait'")
        self.node = node
        self.plan = plan
        self.settings = settings
        self._position = position = RankPosition(node, process, settings, plan.workers)
        self._leadership = leadership = Leadership()
        self._links = links = Outboxes(
            self._actions, [peer for peer in plan.computing if peer != node], settings.window
        )
        self._exchange = exchange = Exchange(self._actions, position, plan, settings, links, rooms)
        self._worker = worker = RankWorker(self._actions, position, plan, settings, exchange, self._report)
        self._catch_up = CatchUp(self._actions, position, links, exchange, worker, leadership)
        self._giving = StateGiving(self._actions, position, links, settings, leadership)
        self._election = Election(self._actions, position, plan, settings, links, leadership)
        self._joining = Joining(
            self._actions, position, plan, settings, links, worker, self._catch_up, self._giving, self._election,
            leadership,
        )  # fmt: skip
        self._departure = Departure(self._actions, position, worker, self._catch_up, leadership)
        self._handover = Handover(
            self._actions, position, worker, exchange, links, self._giving, leadership, self._election,
            self._departure,
        )  # fmt: skip
        if position.leader == node:
            self._lead()

    @property
    def state(self) -> RankState:  # type: ignore[override]
        """The state of this rank."""
        return self._position.state

    @property
    def round(self) -> int:  # type: ignore[override]
        """The current or the last round of this rank's own model."""
        return self._position.round

    @property
    def generation(self) -> int:  # type: ignore[override]
        """The generation of the plan; it determines the leader."""
        return self._position.generation

    @property
    def leads(self) -> bool:
        """True if this rank is the leader."""
        return self._leadership.is_held

    @property
    def leader(self) -> int:
        """The leader, as far as this rank knows."""
        return self._position.leader

    @property
    def lead(self) -> Scheduler | None:
        """The scheduler, if this rank is the leader."""
        members = self._leadership.members
        return members.scheduler if members is not None else None

    @property
    def _members(self) -> Members | None:
        return self._leadership.members

    def lacking(self) -> list[int]:
        """On the leader: the ranks that have not joined."""
        return self._members.lacking() if self._members is not None else []

    @property
    def ended_after(self) -> int | None:
        """The last round of the run, if it is known."""
        return self._position.end

    @property
    def left_alone(self) -> str | None:
        """Why this rank should not have left when it did; None if it left correctly."""
        return self._departure.left_alone

    @property
    def has_handed_over(self) -> bool | None:
        """After an ordered leave: True if others go on, False if none do. None for any other rank."""
        return self._handover.goes_on

    @property
    def refused(self) -> str | None:
        """Why this rank was refused; None if it was not."""
        return self._departure.refused

    @property
    def begun(self) -> int:
        """The last round that the leader has begun, as far as this rank knows."""
        return self._position.go.round

    @property
    def through(self) -> int:
        """The last round that this rank has finished."""
        return self._position.through

    @property
    def has_say(self) -> bool:
        """True if this rank is a voter, as far as it knows."""
        return self._election.has_say

    @property
    def begun_in(self) -> int:
        """The generation in which the leader began that round."""
        return self._position.go.generation

    def is_to_wait(self, round_: int) -> bool:
        """True if `Begin` of this round has no effect until `Go` arrives, so that the driver need not be woken."""
        is_first = round_ <= self._position.first
        is_calm = self.lead is None and not self._catch_up.must_renew and self._position.end is None
        return is_calm and not is_first and self.begun == round_ - 1

    @property
    def reducer(self) -> Reducer:
        """The reducer of this rank."""
        return self._exchange.reducer

    @property
    def reached(self) -> int:
        """The number of ranks that can be reached, this one included."""
        return len(self.plan.computing) - len(self._links.lost())

    @property
    def states_held(self) -> int:
        """The number of states that this rank holds for state transfers."""
        return self._giving.held

    @property
    def tasks(self) -> int:
        """The number of computations that this rank has begun."""
        return self._worker.tasks

    def _role_of(self, sender: int) -> From:
        if sender == self.node or sender not in self.plan.computing:
            return STRANGER
        if self._leadership.is_held:
            return FOLLOWER
        return LEADER if sender == self._position.leader else PEER

    def _hear(self, event: Received, now: float) -> None:
        """Answer a message of an earlier generation with the current one, and ignore its content."""
        message, sender = event.message, event.sender
        is_past = message.generation < self.generation and type(message) not in OF_ANY_GENERATION
        if is_past and self.state not in (JOINING, LEFT) and sender in self._links:
            self._election.tell(sender)
        elif message.generation == self.generation or type(message) in OF_ANY_GENERATION:
            super()._hear(event, now)

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        if isinstance(message, StateChunk):
            return self.settings.is_state_piece(message.index, message.of, len(data))
        if isinstance(message, PartChunk):
            part = Part(message.unit, message.first, message.last)
            return self.plan.is_part(part) and self.settings.is_chunk(message.index, len(data))
        return isinstance(message, SumChunk) and self.settings.is_chunk(message.index, len(data))

    # -- the leader and its own rank

    def _report(self, message: AnyMessage, now: float) -> None:
        """Send a message to the leader; if this rank leads, handle it at once.

        A candidate has no leader to send to. Once there is a leader, the ranks repeat the messages that count, or
        the round begins again.
        """
        if self._leadership.is_held:
            self._receive_own(message, FOLLOWER, now)
        elif self.leader != self.node:
            self._actions.append(Transmit(to=self.leader, message=message))

    def _obey(self, message: Message, now: float) -> None:
        """Handle at once what the leader sends to its own rank."""
        self._receive_own(message, LEADER, now)

    # -- a round begins

    def _on_started(self, event: Started, now: float) -> None:
        if not self._leadership.is_held:
            self._joining.say_hello(now)
            return
        self._position.become(RESTING)
        if self.plan.workers == 1:
            self._actions.append(EveryoneIn())

    def _on_begin(self, event: Begin, now: float) -> None:
        if event.round != self.round + 1:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        self._position.begin(event.round, now)
        self._worker.use(event.model, event.digest)
        self._giving.begin(event.round)
        self._handover.look_soon(now)
        if self.lead is None and not self.begun:  # all have joined once every rank has sent this
            self._worker.tell_status(now)
        if self.lead is None:
            self._catch_up.look_whether_on(now)
        if self._catch_up.must_renew:
            self._catch_up.renew(now)
            return
        if self._members is not None:
            if not self.begun:
                self._election.begin_with(self._members.met())
            if event.digest is not None:
                self._members.compare(self.node, event.round, event.digest)
            if self._members.takes_state(event.round):
                self._catch_up.renew(now)
                return
            if not self._position.is_leaving:  # else another leader begins the round
                self._election.let_begin(now)
            return
        if self._position.is_past_end:
            self._departure.tell_script()
        elif not self._is_over:
            self._catch_up.go_on(now)

    def _on_go(self, message: Go, sender: int, now: float) -> None:
        last = self._position.go
        is_news = sender == self.node or (message.generation, message.round) > (last.generation, last.round)
        if not self._departure.goes_on_without(message) and is_news:
            self._take_go(message, now)

    def _take_go(self, go: Go, now: float) -> None:
        was_behind = self._position.is_behind
        is_again = self.state is WORKING and self._position.is_on and go.round == self.round
        self._position.take(go)
        if self.round != go.round:
            self._worker.stop("the round is over, or has not begun")
        if is_again:
            self._worker.begin_again(go)
        else:
            self._worker.begin(go)
        self._exchange.begin(go)
        if is_again:
            self._worker.deliver_again(now)
        if self._is_over:
            return
        if self.state is WORKING and self.round > go.round and not self._position.is_behind:
            self._position.become(READY)  # under this leader the round has not begun
        elif self.state is WORKING and self._position.is_on:  # it begins again, perhaps for a rank that was behind
            self._worker.work_on(now)
        elif self.state is READY:
            self._catch_up.go_on(now)
        elif self.state is WORKING and self.round < go.round and not was_behind:
            self._catch_up.was_overtaken(now)

    # -- a round goes on until its whole sum has arrived

    def _on_computed(self, event: Computed, now: float) -> None:
        if event.round != self.round or not self._position.is_on:
            return
        self._worker.computed(event, now)
        if not self._is_over and self._worker.is_idle:
            self._worker.compute_next(now)

    def _on_part(self, chunk: PartChunk, sender: int, data: Vector, now: float) -> None:
        if self.lead is not None and chunk.round == self.round:
            self.lead.part_came(sender, Part(chunk.unit, chunk.first, chunk.last), chunk.index, now)
        self._exchange.part_came(chunk, sender, data)
        self._worker.look_at_own_damage(now)

    def _after(self, then: frozenset[State], now: float) -> None:
        """End the round if it is over, or the run if it cannot go on; the table says after which events.

        When a rank is gone the round ends earlier (`_is_gone`).
        """
        if RESTING in then and self._is_over:
            self._end_round(now)
        elif LEFT in then and self.state is WORKING and (lead := self.lead) is not None:
            troubles = lead.undecided()  # ranks have computed different bits: no sum can be relied on
            if troubles:
                self._departure.fail(troubles)

    @property
    def _is_over(self) -> bool:
        """True if the whole sum of the round has arrived, and the script waits for it."""
        total, position = self._exchange.sum, self._position
        if position.state not in (READY, WORKING) or total.round != position.round or not total.is_complete:
            return False
        if self.lead is not None and not (position.is_on and self._election.has_enough):
            return False
        return not self._position.is_past_end

    def _end_round(self, now: float) -> None:
        """Hand the sum to the script."""
        total, position = self._exchange.sum, self._position
        late = self.lead.over(now) if self.lead is not None else ()
        self._worker.stop("the round is over")
        self._worker.drop_model()
        position.rest(now)
        self._exchange.keep_whole()
        self._exchange.expect(position.round + 1)
        self._catch_up.begin_anew()
        self._election.round_is_over(now)
        self._actions.append(total.given(late))

    # -- the leader, and elections

    def _lead(self) -> Members:
        """Lead this generation from now on."""
        scheduler = Scheduler(
            self._actions, self.plan, self.settings, self._obey, own=self.node,
            generation=self.generation, mistakes=self._worker.mistakes,
        )  # fmt: skip
        self._leadership.members = Members(self._actions, self._position, self.plan, self.settings, scheduler)
        return self._leadership.members

    def _lead_if_elected(self, now: float) -> None:
        """Lead the ranks that follow, from this rank's current round."""
        positions = self._election.win()
        if not positions:
            return
        members = self._lead()
        self._joining.has_lead()
        members.take_over(positions, now)
        for rank in self.plan.computing:
            if rank in positions and rank != self.node:
                members.welcome(rank, self._election.known_voters)
            elif rank in self._links and self._links.reaches([rank]):
                self._election.tell(rank)
        if self.state in (READY, WORKING) and not self._position.is_past_end:
            if self._worker.digest is not None:
                members.compare(self.node, self.round, self._worker.digest)
            if not self._position.is_on:
                self._position.become(READY)
            self._election.let_begin(now)
        elif self.state is RENEWING:
            self._catch_up.look(now)
        elif self.state is ENDING:
            self._departure.lead_end(now)

    # -- messages to the leader

    def _on_status(self, message: Status, sender: int, now: float) -> None:
        members = self._members
        assert members is not None
        members.on_status(message, sender, now)
        if members.scheduler.has_missed_the_end(message, now):
            members.welcome(sender, self._election.known_voters)  # it says which round is over
        if self.state is READY:
            self._election.go_on_soon(now)

    def _on_follower_left(self, message: Goodbye, sender: int, now: float) -> None:
        if self.state is not ENDING:
            reason = f"rank {sender} left: {message.reason}"
            self._actions.append(Note(kind="left", reason=reason, round=self.round, nodes=(sender,)))
        self._election.note_lost(sender, is_dead=True)
        self._is_gone(sender, now)
        self._election.go_on_soon(now)

    def _on_peer_left(self, message: Goodbye, sender: int, now: float) -> None:
        self._election.peer_lost(sender, now, is_dead=True)

    def _on_goodbye(self, message: Goodbye, sender: int, now: float) -> None:
        """The leader leaves: the run is over. Any other sender, or an earlier generation, is a peer that leaves."""
        if message.generation == self.generation:
            self._departure.on_goodbye(message, sender, now)
        else:
            self._on_peer_left(message, sender, now)

    def _is_gone(self, rank: int, now: float) -> None:
        members = self._members
        assert members is not None
        members.gone(rank)
        if not self.begun:
            members.begin_if_enough()
        members.scheduler.gone(rank, now)
        if self._is_over:  # not only after the event, as the leader then schedules its next try
            self._end_round(now)
        self._departure.leave_if_all_through(now)

    # -- time and connections

    def _on_timer(self, event: TimerFired, now: float) -> None:
        if event.name == Timer.CATCH_UP:
            self._catch_up.look(now)
        elif event.name == Timer.HELLO:
            self._joining.look(now)
        elif event.name == Timer.END:
            self._departure.is_late(now)
        elif event.name == Timer.NO_NEWS:
            self._catch_up.ask_whether_on(now)
        elif event.name == Timer.LIVENESS:
            self._election.look_at_leader(now)
        elif event.name == Timer.GO_ON:
            self._election.go_on(now)
        elif event.name == Timer.HANDOVER:
            self._handover.look(now)
        elif event.name == Timer.ELECTED:
            self._lead_if_elected(now)
        elif event.name == Timer.ELECTION:
            self._election.look(now)
        elif self.lead is not None and event.name == Timer.WAITING and not self._election.has_enough:
            self._election.say_unreached(now)
        elif self.lead is not None and self.state is WORKING:
            missing = self._exchange.sum.missing()
            if event.name == Timer.LATE:
                self.lead.look(now)
            elif event.name == Timer.SUM_LATE and missing:
                self.lead.sum_is_late(missing, self.reducer.lacks(), now)
            elif event.name == Timer.WAITING:
                self._say_waiting(self.lead.waiting_for(missing), now)

    def _say_waiting(self, waiting: tuple[int, ...], now: float) -> None:
        reason = f"round {self.round} has waited {now - self._position.began_at:.3g} s for ranks {list(waiting)}"
        self._actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.excess.say_waiting_after))

    def _on_peer_lost(self, event: PeerLost, now: float) -> None:
        if event.peer in self._links:
            self._links.lose(event.peer)
            self._giving.lost(event.peer)
            self._catch_up.lost(event.peer)
            if self._leadership.is_held:
                self._is_gone(event.peer, now)
                if self._leadership.is_held and not self._election.has_enough and self.state in (READY, WORKING):
                    self._election.say_unreached(now)
            if self.state in (JOINING, LEFT):
                self._election.note_lost(event.peer, is_dead=event.dead)
                return
            self._election.peer_lost(event.peer, now, is_dead=event.dead)
            if self._election.is_lost:
                self._departure.is_left(now)
            self._election.go_on_soon(now)

    def held(self) -> int:
        """The number of chunks of other ranks' parts that this rank holds or is adding up."""
        return self._exchange.held()

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        self._exchange.check_invariants()
        if self._catch_up.is_taking and self.state is not RENEWING:
            raise AssertionError(f"rank {self.node} holds pieces of a state but is not taking one")
        if self.state is WORKING and self.begun < self.round and not self._position.is_behind:
            raise AssertionError(f"rank {self.node} works on round {self.round}, which has not begun")
        if self._worker.has_model is not (self.state in (READY, WORKING)):
            raise AssertionError(f"rank {self.node} has a model, or has none, in state {self.state.name}")
