"""A rank of a striped run: computes its parts, keeps its stripe, and ends every round with the whole sum.

A round, at a rank: it begins when the script says so (`Begin`) and the coordinator, rank 0, does (`Go`). Parts are
computed one after the other (`doing`), and each goes to the keepers chunk by chunk, beginning with the keeper that
follows this rank. Sums come from keepers (`exchange`). When all of the sum is here the round is over, whatever is
still being computed.

Keeping goes on beside that, and does not wait for the rank itself: one that is late with its own work, or whose script
takes its time between two rounds, sums its stripe all the same.

A rank that fell behind (rank 0 has begun a later round) asks keepers for what it misses of the sums, one round after
the other; if they no longer have it, it takes another's state (`behind`).

The parts of the machine each own what they are about, and know where the rank stands (`place`).
"""

from __future__ import annotations

from codedreduce.errors import ProtocolError, UsageError
from codedreduce.protocol.behind import BEHIND, Behind
from codedreduce.protocol.coordinating import LATE, TAIL, WAITING, Coordinating
from codedreduce.protocol.doing import Doing
from codedreduce.protocol.ending import ENDED, Ending
from codedreduce.protocol.events import (
    AnyAction,
    Begin,
    Computed,
    Drained,
    EveryoneIn,
    Note,
    PeerFound,
    PeerLost,
    SetTimer,
    Started,
    TimerFired,
)
from codedreduce.protocol.exchange import Exchange
from codedreduce.protocol.joining import GREETING, Joining
from codedreduce.protocol.keeping import Keeper
from codedreduce.protocol.leading import Leading
from codedreduce.protocol.machine import COORDINATOR, FOLLOWER, PEER, STRANGER, From, Machine
from codedreduce.protocol.messages import (
    AnyMessage,
    Cut,
    Do,
    Go,
    Goodbye,
    Hello,
    Keep,
    Message,
    PartChunk,
    Renew,
    StateChunk,
    SumChunk,
    Tell,
)
from codedreduce.protocol.outboxes import Outboxes
from codedreduce.protocol.place import Place
from codedreduce.protocol.rank_table import ENDING, READY, RENEWING, RESTING, ROWS, WORKING, RankState
from codedreduce.protocol.renewing import Giving
from codedreduce.protocol.rooms import OWN_ROOMS, Rooms
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector


class Rank(Machine):
    """The state machine of a rank; rank 0's has a coordinator in it."""

    ROWS = ROWS

    def __init__(self, node: int, plan: StripedPlan, settings: Settings, rooms: Rooms = OWN_ROOMS) -> None:
        super().__init__()
        if settings.on_excess != "wait":
            raise UsageError("striped computes the exact sum as long as a rank is left; on_excess must be 'wait'")
        self.node = node
        self.plan = plan
        self.settings = settings
        self.lead: Coordinating | None = None
        self._leading: Leading | None = None
        if node == 0:
            self.lead = Coordinating(plan, settings, self._told_by_own_coordinator)
            self._leading = Leading(plan, settings, self.lead)
        self._place = place = Place(node, settings)
        self._links = links = Outboxes([peer for peer in plan.computing if peer != node], settings.window)
        self._exchange = exchange = Exchange(node, plan, settings, links, rooms)
        self._doing = doing = Doing(place, plan, settings, exchange, self.lead)
        self._behind = Behind(place, links, exchange, doing, self._leading, self._finish_round)
        self._joining = Joining(place, plan, settings, exchange, doing, self._behind)
        self._giving = Giving(place, links, settings)
        self._ending = Ending(place, doing, self._behind, self._leading, self._go_on)

    @property
    def state(self) -> RankState:  # type: ignore[override]
        """Where this rank stands."""
        return self._place.state

    @property
    def round(self) -> int:  # type: ignore[override]
        """The round that this rank's own model is in, or has last been in."""
        return self._place.round

    @property
    def generation(self) -> int:  # type: ignore[override]
        """Of the plan."""
        return self._place.generation

    def lacking(self) -> list[int]:
        """On rank 0: the ranks that are not in."""
        return self._leading.lacking() if self._leading is not None else []

    @property
    def ended_after(self) -> int | None:
        """The round after which the run is over, if that is known."""
        return self._place.end

    @property
    def left_alone(self) -> str | None:
        """Why this rank should not have left when it did, if it should not."""
        return self._ending.left_alone

    @property
    def refused(self) -> str | None:
        """Why rank 0 did not let this rank in, if it did not."""
        return self._ending.refused

    @property
    def begun(self) -> int:
        """The last round that the coordinator has let begin, as far as this rank knows."""
        return self._place.go.round

    def is_to_wait(self, round_: int) -> bool:
        """Whether nothing comes of it that the script begins this round, until the coordinator lets it begin."""
        is_first = round_ <= self._place.first
        is_calm = self.lead is None and not self._behind.must_renew and self._place.end is None
        return is_calm and not is_first and self.begun == round_ - 1

    @property
    def keeper(self) -> Keeper:
        """What this rank sums for all."""
        return self._exchange.keeper

    @property
    def states_held(self) -> int:
        """How many states this rank keeps for those that take them."""
        return self._giving.held

    @property
    def tasks(self) -> int:
        """How many computations this rank has begun."""
        return self._doing.tasks

    def _who(self, sender: int) -> From:
        if sender == self.node or sender not in self.plan.computing:
            return STRANGER
        if self.node == 0:
            return FOLLOWER
        return PEER if sender else COORDINATOR

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        if isinstance(message, StateChunk):
            return self.settings.is_state_piece(message.index, message.of, len(data))
        if isinstance(message, PartChunk):
            part = Part(message.unit, message.first, message.last)
            return self.plan.is_part(part) and self.settings.is_chunk(message.index, len(data))
        return isinstance(message, SumChunk) and self.settings.is_chunk(message.index, len(data))

    # -- a round begins

    def _on_started(self, event: Started, now: float, actions: list[AnyAction]) -> None:
        if self.lead is None:
            self._joining.say_hello(now, actions)
            return
        self._place.become(RESTING)
        if self.plan.workers == 1:
            actions.append(EveryoneIn())

    def _on_begin(self, event: Begin, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round + 1:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        self._place.begin(event.round, now)
        self._doing.use(event.model, event.digest)
        self._giving.begin(event.round, actions)
        if self.lead is None and not self.begun:  # everyone is in when all have said this
            self._doing.tell_status(actions)
        if self._behind.must_renew:
            self._behind.renew(now, actions)
            return
        if self.lead is not None and self._leading is not None:
            if event.digest:
                self._leading.compare(0, event.round, event.digest, actions)
            if self._leading.takes_state(event.round, actions):
                self._behind.renew(now, actions)
                return
            self._take_go(self.lead.begin(event.round, now, actions), now, actions)
            return
        if self._ending.is_past:
            self._ending.tell_script(actions)
        elif not self._finish_round(now, actions):
            self._go_on(now, actions)

    def _go_on(self, now: float, actions: list[AnyAction]) -> None:
        """Work, if the round that the script has begun is on; or get what is missing of it, if it is past."""
        if self._place.is_on:
            self._place.become(WORKING)
            if self._doing.has_something_to_do:
                self._doing.compute_next(now, actions)
            elif self.lead is None:
                self._doing.tell_status(actions)  # it is here, and could be given something
        elif self._place.is_behind:
            self._place.become(WORKING)
            self._behind.catch_up(now, actions)

    def _on_go(self, message: Go, sender: int, now: float, actions: list[AnyAction]) -> None:
        if not self._ending.goes_on_without(message, actions) and message.round > self.begun:
            self._take_go(message, now, actions)

    def _take_go(self, go: Go, now: float, actions: list[AnyAction]) -> None:
        was_behind = self._place.is_behind
        self._place.take(go)
        if self.round < go.round:
            self._doing.stop("the round is over", actions)
        self._doing.begin(go)
        self._exchange.begin(go, actions)
        if self._finish_round(now, actions):
            return
        if self.state is READY:
            self._go_on(now, actions)
        elif self.state is WORKING and self.round < go.round and not was_behind:
            self._behind.was_overtaken(now, actions)

    # -- and goes on, until all of its sum is here

    def _told_by_own_coordinator(self, message: Message, now: float, actions: list[AnyAction]) -> None:
        match message:
            case Do():
                self._doing.on_do(message, 0, now, actions)
            case Cut():
                self._doing.on_cut(message, 0, now, actions)
            case Keep():
                self._doing.change_keeper(message, actions)
            case Tell() if self.lead is not None:
                self.lead.status(0, self._doing.status(), now, actions)

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round or not self._place.is_on:
            return
        self._doing.computed(event, now, actions)
        if not self._finish_round(now, actions) and self._doing.is_idle:
            self._doing.compute_next(now, actions)

    def _on_keep(self, message: Keep, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._doing.change_keeper(message, actions)
        self._finish_round(now, actions)

    def _on_part(self, chunk: PartChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        if self.lead is not None and chunk.round == self.round:
            self.lead.part_came(sender, Part(chunk.unit, chunk.first, chunk.last), chunk.index, now)
        self._exchange.part_came(chunk, data, actions)
        self._finish_round(now, actions)

    def _on_sum(self, chunk: SumChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        self._exchange.sum_came(chunk.round, chunk.index, data)
        self._finish_round(now, actions)

    def _finish_round(self, now: float, actions: list[AnyAction]) -> bool:
        """End the round if all of its sum is here, and the script waits for it."""
        total, place = self._exchange.sum, self._place
        if place.state not in (READY, WORKING) or total.round != place.round or not total.is_complete:
            return False
        if self.lead is not None and not place.is_on:
            return False
        late = self.lead.over(now) if self.lead is not None else ()
        self._doing.stop("the round is over", actions)
        self._doing.drop_model()
        place.rest(now)
        if self.lead is None:
            self._exchange.keep_last()
        else:
            self._exchange.keep_whole()
        self._exchange.expect(place.round + 1)
        self._behind.begin_anew()
        actions.append(total.given(late))
        return True

    # -- what the coordinator hears

    def _on_hello(self, message: Hello, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        assert self._leading is not None
        if self._leading.greet(sender, message, self._place, actions):
            self._links.find(sender)
            self._giving.lost(sender)
            self.lead.came(sender, now, actions)
            self._doing.send_again(sender, actions)
            self._ending.tell_of_end(sender, actions)

    def _on_renew(self, message: Renew, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self._leading is not None
        self._leading.hear_of(sender)
        if not self._leading.find_givers(sender, self.round, actions):
            self._giving.promise(sender, actions)

    def _on_follower_left(self, message: Goodbye, sender: int, now: float, actions: list[AnyAction]) -> None:
        if self.state is not ENDING:
            reason = f"rank {sender} left: {message.reason}"
            actions.append(Note(kind="left", reason=reason, round=self.round, nodes=(sender,)))
        self._is_gone(sender, now, actions)

    def _is_gone(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        assert self._leading is not None
        self._leading.gone(rank)
        self.lead.gone(rank, now, actions)
        self._finish_round(now, actions)
        self._ending.leave_if_all_through(actions)

    # -- time and connections

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == BEHIND:
            self._behind.look(now, actions)
        elif event.name == GREETING:
            self._joining.look(now, actions)
        elif event.name == ENDED:
            self._ending.is_late(now, actions)
        elif self.lead is not None and self.state is WORKING:
            missing = self._exchange.sum.missing()
            if event.name == LATE:
                self.lead.look(now, actions)
            elif event.name == TAIL and missing:
                self.lead.sum_is_late(missing, self.keeper.lacks(), now, actions)
            elif event.name == WAITING:
                self._say_waiting(self.lead.waiting_for(missing), now, actions)
            self._finish_round(now, actions)

    def _say_waiting(self, waiting: tuple[int, ...], now: float, actions: list[AnyAction]) -> None:
        reason = f"round {self.round} has waited {now - self._place.began_at:.3g} s for ranks {list(waiting)}"
        actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        actions.append(SetTimer(name=WAITING, at=now + self.settings.say_waiting_after))

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer in self._links:
            self._links.drained(event.peer, actions)

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        if event.peer in self._links:
            self._links.lose(event.peer)
            self._giving.lost(event.peer)
            self._behind.lost(event.peer, actions)
            if self.lead is not None:
                self._is_gone(event.peer, now, actions)

    def _on_peer_found(self, event: PeerFound, now: float, actions: list[AnyAction]) -> None:
        if event.peer not in self._links:
            return
        self._links.find(event.peer)
        self._giving.lost(event.peer)
        self._behind.lost(event.peer, actions)
        if event.peer == 0:
            self._joining.say_hello(now, actions)
        if self.lead is None:  # whom a coordinator is to talk to says hello
            self._doing.send_again(event.peer, actions)

    def held(self) -> int:
        """How many chunks of others' parts this rank holds, or has in the making of sums."""
        return self._exchange.held()

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        self._exchange.check_invariants()
        if self._behind.is_taking and self.state is not RENEWING:
            raise AssertionError(f"rank {self.node} holds pieces of a state that it does not take")
        if self.state is WORKING and self.begun < self.round and not self._place.is_behind:
            raise AssertionError(f"rank {self.node} works on round {self.round}, which has not begun")
        if self._doing.has_model is not (self.state in (READY, WORKING)):
            raise AssertionError(f"rank {self.node} has a model in state {self.state.name}, or none")
