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

from collections.abc import Mapping

from codedreduce.errors import ProtocolError, UsageError
from codedreduce.protocol.core.events import (
    Begin,
    Computed,
    Drained,
    EveryoneIn,
    Failed,
    Note,
    PeerFound,
    PeerLost,
    Received,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.core.machine import FOLLOWER, LEADER, PEER, STRANGER, From, Machine
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Check,
    Checked,
    Cut,
    Do,
    Done,
    Go,
    Goodbye,
    Hello,
    Late,
    Lead,
    Leaving,
    Message,
    Mistaken,
    NewReducer,
    PartChunk,
    Passed,
    Past,
    Renew,
    Stand,
    StateChunk,
    StateOffer,
    Status,
    SumChunk,
    Take,
    Tell,
    Unable,
    Want,
    Welcome,
)
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import (
    ENDING,
    JOINING,
    LEFT,
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
from codedreduce.protocol.leader.members import Members, Office
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

#: A rank reports its status after so many rounds without news.
MANY_ROUNDS = 8.0

#: Messages about a vector, which is the same in every generation; and messages that announce a generation.
OF_ANY_GENERATION = (
    PartChunk, SumChunk, StateChunk, Want, Past, StateOffer, Take, Hello, Welcome, Stand, Lead, Goodbye,
)  # fmt: skip


class Rank(Machine):
    """The state machine of a rank; that of the leader contains a `Scheduler`."""

    ROWS = ROWS
    OF_ANY_GENERATION = OF_ANY_GENERATION

    def __init__(self, node: int, plan: StripedPlan, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS) -> None:
        super().__init__()
        if settings.on_excess != "wait":
            raise UsageError("striped computes the exact sum as long as a rank is left; on_excess must be 'wait'")
        self.node = node
        self.plan = plan
        self.settings = settings
        self._position = position = RankPosition(node, settings, plan.workers)
        self._office = office = Office(self._actions, position)
        self._links = links = Outboxes(
            self._actions, [peer for peer in plan.computing if peer != node], settings.window
        )
        self._exchange = exchange = Exchange(self._actions, node, plan, settings, links, rooms)
        self._worker = worker = RankWorker(self._actions, position, plan, settings, exchange, office)
        timing = settings.timing
        self._catch_up = CatchUp(self._actions, position, timing, links, exchange, worker, office, self._finish_round)
        self._joining = Joining(
            self._actions, position, plan, settings, worker, self._catch_up, self._adopt, self._is_in
        )
        self._giving = StateGiving(self._actions, position, links, settings)
        self._departure = Departure(self._actions, position, timing, worker, self._catch_up, office, self._go_on)
        self._election = Election(
            self._actions,
            position,
            plan,
            settings,
            links,
            office,
            self._adopt,
            self._take_lead,
            self._let_in,
            self._greet,
        )
        self._handover = Handover(
            self._actions, position, timing, worker, exchange, links, self._giving, office, self._election,
            say_goodbye=self._departure.say_goodbye, vanish=self._departure.vanish,
        )  # fmt: skip
        if position.leader == node:
            self._take_office()

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
        return self._office.is_held

    @property
    def leader(self) -> int:
        """The leader, as far as this rank knows."""
        return self._position.leader

    @property
    def lead(self) -> Scheduler | None:
        """The scheduler, if this rank is the leader."""
        return self._office.lead

    def lacking(self) -> list[int]:
        """On the leader: the ranks that have not joined."""
        return self._office.leading.lacking() if self._office.leading is not None else []

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
        if self._office.is_held:
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

    # -- a round begins

    def _on_started(self, event: Started, now: float) -> None:
        if not self._office.is_held:
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
            self._worker.tell_status()
        if self.lead is None:
            self._look_whether_on(now)
        if self._catch_up.must_renew:
            self._catch_up.renew(now)
            return
        if self._office.leading is not None:
            if not self.begun:
                self._election.begin_with(self._office.leading.met())
            if event.digest:
                self._office.leading.compare(self.node, event.round, event.digest)
            if self._office.leading.takes_state(event.round):
                self._catch_up.renew(now)
                return
            if not self._position.is_leaving:  # else another leader begins the round
                self._let_begin(now)
            return
        if self._departure.is_past:
            self._departure.tell_script()
        elif not self._finish_round(now):
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Work, if the leader has begun the script's round; catch up, if the round is over."""
        if self._position.is_on:
            self._position.become(WORKING)
            self._work_on(now)
        elif self._position.is_behind:
            self._position.become(WORKING)
            self._catch_up.catch_up(now)

    def _work_on(self, now: float) -> None:
        """Begin with the next part, if there is one and nothing is being computed."""
        if not self._worker.is_idle:
            return
        if self._worker.has_something_to_do:
            self._worker.compute_next(now)
        elif not self._office.is_held:
            self._worker.tell_status()  # report that this rank is idle and can be assigned work

    def _look_whether_on(self, now: float) -> None:
        """If the round takes very long, report the status to the leader, ever more rarely: `Go` may be lost."""
        timing, position = self.settings.timing, self._position
        wait = max(timing.status_report, MANY_ROUNDS * position.round_took, now - position.began_at)
        self._actions.append(SetTimer(name=Timer.NO_NEWS, at=now + min(timing.status_report_limit, wait)))

    def _on_go(self, message: Go, sender: int, now: float) -> None:
        last = self._position.go
        is_news = (message.generation, message.round) > (last.generation, last.round)
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
        if self._finish_round(now):
            return
        if self.state is WORKING and self.round > go.round and not self._position.is_behind:
            self._position.become(READY)  # under this leader the round has not begun
        elif self.state is WORKING and self._position.is_on:  # it begins again, perhaps for a rank that was behind
            self._work_on(now)
        elif self.state is READY:
            self._go_on(now)
        elif self.state is WORKING and self.round < go.round and not was_behind:
            self._catch_up.was_overtaken(now)

    # -- a round goes on until its whole sum has arrived

    def _told_by_own_leader(self, message: Message, now: float) -> None:
        match message:
            case Do():
                self._worker.on_do(message, self.node, now)
            case Cut():
                self._worker.on_cut(message, self.node, now)
            case NewReducer():
                self._worker.change_reducer(message)
            case Check():
                self._worker.on_check(message, self.node, now)
            case Passed():
                self._worker.on_passed(message, self.node, now)
            case Mistaken():
                self._worker.on_mistaken(message, self.node, now)
            case Tell() if self.lead is not None:
                self.lead.status(self.node, self._worker.status(), now)

    def _on_computed(self, event: Computed, now: float) -> None:
        if event.round != self.round or not self._position.is_on:
            return
        self._worker.computed(event, now)
        if not self._finish_round(now) and self._worker.is_idle:
            self._worker.compute_next(now)

    def _on_passed(self, message: Passed, sender: int, now: float) -> None:
        self._worker.on_passed(message, sender, now)
        self._finish_round(now)

    def _on_checked(self, message: Checked, sender: int, now: float) -> None:
        if self.lead is not None:
            self.lead.checked(sender, message, now)
        if not self._finish_round(now):
            self._end_if_undecided()

    def _end_if_undecided(self) -> None:
        """Fail if ranks have computed different bits and no verdict is possible: then no sum can be relied on."""
        troubles = self.lead.undecided() if self.lead is not None else ()
        if troubles:
            self._departure.fail(troubles)

    def _on_failed(self, event: Failed, now: float) -> None:
        """This rank failed at a part: the leader reassigns it, and this rank goes on with its next part."""
        unable = self._worker.failed(event) if event.round == self.round and self._position.is_on else None
        if unable is not None and self.lead is None:
            self._office.tell_leader(unable)
        elif unable is not None:
            self._on_unable(unable, self.node, now)
        if self.state is WORKING and self._worker.is_idle:
            self._worker.compute_next(now)

    def _on_unable(self, message: Unable, sender: int, now: float) -> None:
        troubles = self.lead.failed(sender, message, now) if self.lead is not None else ()
        if troubles:
            self._departure.fail(troubles)

    def _on_new_reducer(self, message: NewReducer, sender: int, now: float) -> None:
        self._worker.change_reducer(message)
        self._worker.look_at_own_damage(now)
        self._finish_round(now)

    def _on_part(self, chunk: PartChunk, sender: int, data: Vector, now: float) -> None:
        if self.lead is not None and chunk.round == self.round:
            self.lead.part_came(sender, Part(chunk.unit, chunk.first, chunk.last), chunk.index, now)
        self._exchange.part_came(chunk, sender, data)
        self._worker.look_at_own_damage(now)
        self._finish_round(now)

    def _on_sum(self, chunk: SumChunk, sender: int, data: Vector, now: float) -> None:
        self._exchange.sum_came(chunk.round, chunk.index, data)
        self._finish_round(now)

    def _finish_round(self, now: float) -> bool:
        """End the round if its whole sum has arrived and the script waits for it; return True if it ended."""
        total, position = self._exchange.sum, self._position
        if position.state not in (READY, WORKING) or total.round != position.round or not total.is_complete:
            return False
        if self.lead is not None and not (position.is_on and self._election.has_enough):
            return False
        late = self.lead.over(now) if self.lead is not None else ()
        self._worker.stop("the round is over")
        self._worker.drop_model()
        position.rest(now)
        self._exchange.keep_whole()
        self._exchange.expect(position.round + 1)
        self._catch_up.begin_anew()
        self._election.round_is_over(now)
        self._actions.append(total.given(late))
        return True

    # -- the leader, and elections

    def _adopt(self, generation: int) -> None:
        """Switch to a generation, and obey no message of an earlier one."""
        if generation != self.generation:
            self._office.leave()
            self._position.speak_of(generation)
            self._exchange.speak_of(generation)
        self._election.find()

    def _take_office(self) -> Members:
        generation = self.generation
        lead = Scheduler(
            self._actions, self.plan, self.settings, self._told_by_own_leader, own=self.node,
            generation=generation, mistakes=self._worker.mistakes,
        )  # fmt: skip
        leading = Members(self._actions, self.plan, self.settings, lead, own=self.node, generation=generation)
        self._office.take(lead, leading)
        return leading

    def _take_lead(self, positions: Mapping[int, int], now: float) -> None:
        """Lead the ranks that follow, from this rank's current round."""
        leading = self._take_office()
        self._joining.has_lead()
        leading.take_over(positions, now)
        for rank in self.plan.computing:
            if rank in positions and rank != self.node:
                self._welcome(rank)
            elif rank in self._links and self._links.reaches([rank]):
                self._election.tell(rank)
        if self.state in (READY, WORKING) and not self._departure.is_past:
            if self._worker.digest:
                leading.compare(self.node, self.round, self._worker.digest)
            if not self._position.is_on:
                self._position.become(READY)
            self._let_begin(now)
        elif self.state is RENEWING:
            self._catch_up.look(now)
        elif self.state is ENDING:
            self._departure.lead_end(now)

    def _let_begin(self, now: float) -> None:
        """On the leader: begin the round of its script, if it reaches enough other ranks.

        A leader that takes over before the first round waits until all ranks have reported their model.
        """
        lead, leading = self._office.lead, self._office.leading
        assert lead is not None
        assert leading is not None
        if not self._election.has_enough:
            self._say_unreached(now)
        elif self.generation == self.settings.generation or self.begun or leading.all_ready:
            self._election.ask_unaware()
            self._take_go(lead.begin(self.round, now), now)

    def _go_on_soon(self, now: float) -> None:
        """On the leader: schedule another try, since a rank is back or is lost for good."""
        if self._office.is_held and self.state is not LEFT:
            self._actions.append(SetTimer(name=Timer.GO_ON, at=now))

    def _go_on_leading(self, now: float) -> None:
        """Go on with a round that waited for other ranks."""
        if self._office.is_held and self.state is READY and not self._departure.is_past:
            self._let_begin(now)
        elif self._office.is_held:
            self._finish_round(now)

    def _say_unreached(self, now: float) -> None:
        missing = tuple(self._election.unreached())
        reason = f"rank {self.node} cannot reach ranks {list(missing)}: it goes on only if it reaches more than half"
        self._actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=missing))
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.say_waiting_after))

    def _welcome(self, rank: int) -> None:
        voters = self._election.known_voters
        welcome = Welcome(generation=self.generation, round=self._position.through, voters=voters)
        self._actions.append(Transmit(to=rank, message=welcome))
        self._departure.tell_of_end(rank)

    def _let_in(self, rank: int, process: int, position: int, now: float) -> None:
        """On the leader: admit one more rank that follows, whatever its round is."""
        assert self._office.leading is not None
        self._office.leading.take_over({self.node: self._position.progress, rank: position}, now)
        self._election.let_in(rank, process)
        self._welcome(rank)
        self._election.look_at_voters()
        self._go_on_soon(now)

    def _on_leaving(self, message: Leaving, sender: int, now: float) -> None:
        assert self._office.leading is not None
        self._office.leading.on_leaving(message, sender)

    def _is_in(self, message: Welcome, is_new: bool) -> None:
        self._election.is_in(message, is_new)

    def _greet(self, rank: int, now: float) -> None:
        if rank != self.node:
            self._joining.say_hello(now, rank)

    def _has_not_met(self, rank: int) -> bool:
        """True if this rank leads a run that has not begun, and never admitted `rank`, which was in a run before."""
        leading = self._office.leading
        return leading is not None and self.state is RESTING and not self.begun and not leading.has_met(rank)

    def _give_way(self, generation: int, sender: int, now: float) -> None:
        """Other ranks have a run already: stop leading, begin no run, and ask to join theirs."""
        self._office.leave()
        self._position.become(JOINING)
        leader = self._position.leader_of(generation)
        self._joining.say_hello(now, sender if leader == self.node else leader)

    def _on_stand(self, message: Stand, sender: int, now: float) -> None:
        if self._has_not_met(sender):
            self._give_way(message.generation, sender, now)
        elif self.state is JOINING:
            leader = self._position.leader_of(message.generation)
            if not message.lost and leader != self.node:
                self._joining.say_hello(now, leader)
            elif message.asks:
                self._joining.say_hello(now, sender)
        else:
            self._election.on_stand(message, sender, now)

    def _on_hello_to_another(self, message: Hello, sender: int, now: float) -> None:
        """A rank asks to join, or is back, and takes this rank for the leader."""
        if not message.is_in:
            self._election.is_new(sender, message.process, now)
        self._election.tell(sender)

    # -- messages to the leader

    def _on_hello(self, message: Hello, sender: int, now: float) -> None:
        if message.is_in and self._has_not_met(sender):
            self._give_way(message.generation, sender, now)
            return
        lead, leading = self._office.lead, self._office.leading
        assert lead is not None
        assert leading is not None
        if not message.is_in and self.begun and not self._election.has_enough:
            return  # there may be another leader by now: this one must not decide about members
        self._election.let_in(sender, message.process)
        if leading.greet(sender, message, self._position, self._election.known_voters):
            self._links.find(sender)
            self._giving.lost(sender)
            lead.came(sender, now)
            self._worker.send_again(sender)
            self._departure.tell_of_end(sender)
            if self.begun:
                self._election.look_at_voters()
            self._go_on_soon(now)

    def _on_status(self, message: Status, sender: int, now: float) -> None:
        assert self._office.leading is not None
        self._office.leading.on_status(message, sender, now)
        if self.lead is not None and self.lead.has_missed_the_end(message, now):
            self._welcome(sender)  # it says which round is over
        if self.state is READY:
            self._go_on_soon(now)

    def _on_done(self, message: Done, sender: int, now: float) -> None:
        assert self._office.leading is not None
        self._office.leading.on_done(message, sender, now)

    def _on_late(self, message: Late, sender: int, now: float) -> None:
        assert self._office.leading is not None
        self._office.leading.on_late(message, sender, now)

    def _on_renew(self, message: Renew, sender: int, now: float) -> None:
        assert self._office.leading is not None
        self._office.leading.hear_of(sender)
        if not self._office.leading.find_givers(sender, self.round):
            self._giving.promise(sender)

    def _on_follower_left(self, message: Goodbye, sender: int, now: float) -> None:
        if self.state is not ENDING:
            reason = f"rank {sender} left: {message.reason}"
            self._actions.append(Note(kind="left", reason=reason, round=self.round, nodes=(sender,)))
        self._election.note_lost(sender, is_dead=True)
        self._is_gone(sender, now)
        self._go_on_soon(now)

    def _on_peer_left(self, message: Goodbye, sender: int, now: float) -> None:
        self._election.peer_lost(sender, now, is_dead=True)

    def _on_goodbye(self, message: Goodbye, sender: int, now: float) -> None:
        """The leader leaves: the run is over. Any other sender, or an earlier generation, is a peer that leaves."""
        if message.generation == self.generation:
            self._departure.on_goodbye(message, sender, now)
        else:
            self._on_peer_left(message, sender, now)

    def _is_gone(self, rank: int, now: float) -> None:
        assert self._office.lead is not None
        assert self._office.leading is not None
        self._office.leading.gone(rank)
        if not self.begun:
            self._office.leading.begin_if_enough()
        self._office.lead.gone(rank, now)
        self._finish_round(now)
        self._departure.leave_if_all_through()

    # -- time and connections

    def _on_timer(self, event: TimerFired, now: float) -> None:
        if event.name == Timer.CATCH_UP:
            self._catch_up.look(now)
        elif event.name == Timer.HELLO:
            self._joining.look(now)
        elif event.name == Timer.END:
            self._departure.is_late(now)
        elif event.name == Timer.NO_NEWS:
            if self.state in (READY, WORKING) and not self._office.is_held:
                self._worker.tell_status()
                self._look_whether_on(now)
        elif event.name == Timer.LIVENESS:
            if self.state not in (ENDING, LEFT):
                self._election.look_at_leader(now, is_calm=self.state in (RESTING, READY, WORKING))
        elif event.name == Timer.GO_ON:
            self._go_on_leading(now)
        elif event.name == Timer.HANDOVER:
            self._handover.look(now)
        elif event.name == Timer.ELECTED:
            self._election.lead(now)
        elif event.name == Timer.ELECTION:
            self._election.look(now)
        elif self.lead is not None and event.name == Timer.WAITING and not self._election.has_enough:
            self._say_unreached(now)
        elif self.lead is not None and self.state is WORKING:
            missing = self._exchange.sum.missing()
            if event.name == Timer.LATE:
                self.lead.look(now)
                self._end_if_undecided()
            elif event.name == Timer.SUM_LATE and missing:
                self.lead.sum_is_late(missing, self.reducer.lacks(), now)
            elif event.name == Timer.WAITING:
                self._say_waiting(self.lead.waiting_for(missing), now)
            self._finish_round(now)

    def _say_waiting(self, waiting: tuple[int, ...], now: float) -> None:
        reason = f"round {self.round} has waited {now - self._position.began_at:.3g} s for ranks {list(waiting)}"
        self._actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.say_waiting_after))

    def _on_drained(self, event: Drained, now: float) -> None:
        if event.peer in self._links:
            self._links.drained(event.peer)

    def _on_peer_lost(self, event: PeerLost, now: float) -> None:
        if event.peer in self._links:
            self._links.lose(event.peer)
            self._giving.lost(event.peer)
            self._catch_up.lost(event.peer)
            if self._office.is_held:
                self._is_gone(event.peer, now)
                if self._office.is_held and not self._election.has_enough and self.state in (READY, WORKING):
                    self._say_unreached(now)
            if self.state in (JOINING, LEFT):
                self._election.note_lost(event.peer, is_dead=event.dead)
                return
            self._election.peer_lost(event.peer, now, is_dead=event.dead)
            if self._election.is_lost:
                self._departure.is_left(now)
            self._go_on_soon(now)

    def _on_peer_found(self, event: PeerFound, now: float) -> None:
        if event.peer not in self._links:
            return
        self._links.find(event.peer)
        self._giving.lost(event.peer)
        self._catch_up.lost(event.peer)
        if event.peer == self._position.leader and not self._office.is_held:
            self._joining.say_hello(now)
        elif self.state is not JOINING:
            self._election.tell(event.peer)
        if self.lead is None:  # a follower sends hello first
            self._worker.send_again(event.peer)

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
