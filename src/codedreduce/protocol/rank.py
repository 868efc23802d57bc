"""A rank of a striped run: computes its parts, keeps its stripe, and ends every round with the whole sum.

A round, at a rank: it begins when the script says so (`Begin`) and the coordinator, rank 0, does (`Go`). Parts are
computed one after the other (`work`), and each goes to the keepers chunk by chunk, beginning with the keeper that
follows this rank. Sums come from keepers (`exchange`). When all of the sum is here the round is over, whatever is
still being computed.

Keeping goes on beside that, and does not wait for the rank itself: one that is late with its own work, or whose script
takes its time between two rounds, sums its stripe all the same.

A rank that fell behind (rank 0 has begun a later round) asks keepers for what it misses of the sums, one round after
the other; if they no longer have it, it takes another's state (`renewing`).
"""

from __future__ import annotations

from collections.abc import Iterable

from codedreduce.errors import ProtocolError, UsageError
from codedreduce.protocol.coordinating import LATE, TAIL, WAITING, Coordinating
from codedreduce.protocol.events import (
    Advanced,
    Aggregated,
    AnyAction,
    Begin,
    Cancel,
    Compute,
    Computed,
    Drained,
    Ended,
    EveryoneIn,
    Finished,
    Interrupted,
    Leave,
    Note,
    Packed,
    PeerFound,
    PeerLost,
    Renewed,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.exchange import Exchange
from codedreduce.protocol.keeping import Keeper
from codedreduce.protocol.leading import Leading, was_late
from codedreduce.protocol.machine import COORDINATOR, FOLLOWER, PEER, STRANGER, From, Machine
from codedreduce.protocol.membership import run_name
from codedreduce.protocol.messages import (
    AnyMessage,
    Cut,
    Do,
    Done,
    End,
    Give,
    Go,
    Goodbye,
    Have,
    Hello,
    Keep,
    Late,
    Message,
    PartChunk,
    Past,
    Refuse,
    Renew,
    StateChunk,
    Status,
    SumChunk,
    Tell,
    Want,
    Welcome,
)
from codedreduce.protocol.outboxes import Outboxes
from codedreduce.protocol.rank_table import ENDING, JOINING, LEFT, READY, RENEWING, RESTING, ROWS, WORKING, RankState
from codedreduce.protocol.renewing import STATE_CHUNK, Giving, Taking
from codedreduce.protocol.settings import Settings
from codedreduce.protocol.work import Task, Work
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector, rounded

#: Timers: a rank that is behind asks again; has not been welcomed; or ends, and has waited long enough for the others.
BEHIND, GREETING, ENDED = "behind", "greeting", "ended"

#: Seconds after which a rank that is behind asks for what it misses, at least; how often it asks before it gives up.
ASK_AFTER = 0.05
TRIES = 5

#: Seconds after which a rank that has not been welcomed says hello again, for the first time.
HELLO_AGAIN = 2.0

#: Seconds that ranks which are behind have to catch up when a run ends.
GRACE = 5.0

#: Chunks in a message that asks for some.
ASKED_AT_ONCE = 1024


class Rank(Machine):
    """The state machine of a rank; rank 0's has a coordinator in it."""

    ROWS = ROWS

    def __init__(self, node: int, plan: StripedPlan, settings: Settings) -> None:
        super().__init__()
        if settings.on_excess != "wait":
            raise UsageError("striped computes the exact sum as long as a rank is left; on_excess must be 'wait'")
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: RankState = JOINING
        self.round = settings.after  # the one this rank's own model is in, or has last been in
        self.refused: str | None = None
        self.left_alone: str | None = None  # why this rank may not leave by itself
        self._model: Vector | None = None
        self._digest = ""
        self._go = Go()
        self.work = Work()
        self._links = Outboxes([peer for peer in plan.computing if peer != node], settings.window)
        self._exchange = Exchange(node, plan, settings, self._links)
        self._taking = Taking()
        self._giving = Giving(self._links)
        self._hellos = 0  # that were not answered
        self._tries = 0
        self._tried_with = -1
        self._began_at = 0.0
        self._round_took = 0.0
        self._must_renew = False
        self._end: int | None = None
        self._why = "the run is over"
        self.lead: Coordinating | None = None
        self._leading: Leading | None = None
        if node == 0:
            self.lead = Coordinating(plan, settings, self._told_by_own_coordinator)
            self._leading = Leading(plan, settings, self.lead)

    def lacking(self) -> list[int]:
        """On rank 0: the ranks that are not in."""
        return self._leading.lacking() if self._leading is not None else []

    @property
    def ended_after(self) -> int | None:
        """The round after which the run is over, if that is known."""
        return self._end

    @property
    def begun(self) -> int:
        """The last round that the coordinator has let begin, as far as this rank knows."""
        return self._go.round

    @property
    def keeper(self) -> Keeper:
        """What this rank sums for all."""
        return self._exchange.keeper

    def _who(self, sender: int) -> From:
        if sender == self.node or sender not in self.plan.computing:
            return STRANGER
        if self.node == 0:
            return FOLLOWER
        return PEER if sender else COORDINATOR

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        if isinstance(message, StateChunk):
            return message.index < message.of and 0 < len(data) <= STATE_CHUNK
        if isinstance(message, PartChunk):
            part = Part(message.unit, message.first, message.last)
            return self.plan.is_part(part) and self.settings.is_chunk(message.index, len(data))
        return isinstance(message, SumChunk) and self.settings.is_chunk(message.index, len(data))

    # -- joining

    def _on_started(self, event: Started, now: float, actions: list[AnyAction]) -> None:
        if self.lead is not None:
            self.state = RESTING
            if self.plan.workers == 1:
                actions.append(EveryoneIn())
        else:
            self._say_hello(now, actions)

    def _say_hello(self, now: float, actions: list[AnyAction]) -> None:
        hello = Hello(generation=self.generation, round=self.round, plan=run_name(self.plan, self.settings))
        actions.append(Transmit(to=0, message=hello))
        self._hellos += 1
        actions.append(SetTimer(name=GREETING, at=now + HELLO_AGAIN * self._hellos))

    def _on_welcome(self, message: Welcome, sender: int, now: float, actions: list[AnyAction]) -> None:
        self.generation = message.generation
        self._exchange.speak_of(message.generation)
        self._hellos = 0
        if self.state is JOINING:
            self.state = RESTING
            actions.append(EveryoneIn())
        elif self.state is ENDING:
            actions.append(Transmit(to=0, message=Have(generation=self.generation, round=self.round)))
        elif self.state is WORKING and self._go.round == self.round:  # what was said last may not have been heard
            self._repeat_done(actions)
            self._tell_status(actions)

    def _on_refuse(self, message: Refuse, sender: int, now: float, actions: list[AnyAction]) -> None:
        self.refused = message.reason
        self._finish(message.reason, actions)

    def _on_hello(self, message: Hello, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        assert self._leading is not None
        if not self._leading.greet(sender, message, self.round, actions):
            return
        self._links.find(sender)
        self.lead.came(sender, now, actions)
        self._exchange.send_again(sender, self.work.done, actions)
        if self._end is not None:
            actions.append(Transmit(to=sender, message=End(generation=self.generation, round=self._end)))

    # -- a round begins

    def _on_begin(self, event: Begin, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round + 1:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        self.round = event.round
        self._model = event.model
        self._digest = event.digest
        self._began_at = now
        self.state = READY
        if self._must_renew:
            self._renew(now, actions)
            return
        if self.lead is not None and self._leading is not None:
            if event.digest:
                self._leading.compare(0, event.round, event.digest, actions)
            self._take_go(self.lead.begin(event.round, now, actions), now, actions)
            return
        if event.round == self.settings.after + 1:  # everyone is in when all have said this
            self._tell_status(actions)
        if self._end is not None and event.round > self._end:
            self._is_over(actions)
        elif not self._finish_round(now, actions):
            self._go_on(now, actions)

    def _go_on(self, now: float, actions: list[AnyAction]) -> None:
        """Work, if the round that the script has begun is on; or get what is missing of it, if it is past."""
        if self._go.round == self.round:
            self.state = WORKING
            if self.work.todo:
                self._compute_next(now, actions)
            elif self.lead is None:
                self._tell_status(actions)  # it is here, and could be given something
        elif self._is_behind:
            self.state = WORKING
            self._catch_up(now, actions)

    def _on_go(self, message: Go, sender: int, now: float, actions: list[AnyAction]) -> None:
        if self._end is not None and self.state is ENDING and message.round > self.round:
            self.left_alone = (
                f"rank {self.node} left its loop after round {self.round}, and rank 0 goes on: a run ends on all ranks "
                "when rank 0 leaves its loop, or when all leave it after the same round"
            )
            self._finish(self.left_alone, actions)
            return
        if message.round > self._go.round:
            self._take_go(message, now, actions)

    def _take_go(self, go: Go, now: float, actions: list[AnyAction]) -> None:
        was_behind = self._is_behind
        self._go = go
        if self.round < go.round:
            self._stop_computing("the round is over", actions)
        self.work.clear()
        self._take_on(go.parts)
        self._exchange.begin(go, actions)
        if self._finish_round(now, actions):
            return
        if self.state is READY:
            self._go_on(now, actions)
        elif self.state is WORKING and self.round < go.round and not was_behind:  # it was overtaken
            self._tries = 0
            self._tried_with = self._exchange.sum.count
            self._ask_later(now, actions)

    # -- computing

    def _take_on(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Add parts to what is to be done in the round that is on, which this rank may not have come to.

        Those that do not exist it leaves, and those whose samples it cannot read.
        """
        parts = [Part(*place) for place in places]
        self.work.take_on(
            part for part in parts if self.plan.is_part(part) and self.node in self.plan.group(part.unit)
        )  # fmt: skip

    def _compute_next(self, now: float, actions: list[AnyAction]) -> None:
        part = self.work.next(now)
        if part is not None:
            assert self._model is not None
            actions.append(
                Compute(
                    round=self.round, task=self.work.task, pieces=self.plan.pieces(part), model=self._model,
                    salvage=True, watched=part.blocks > 1,
                )
            )  # fmt: skip

    def _stop_computing(self, why: str, actions: list[AnyAction]) -> None:
        if self.round >= self._go.round:
            self.work.todo.clear()
        if self.work.now is not None:
            self.work.now = None
            actions.append(Cancel(reason=why))

    def _on_advanced(self, event: Advanced, now: float, actions: list[AnyAction]) -> None:
        if event.round == self.round and event.task == self.work.task and self.work.now is not None:
            self.work.advance(event.pieces, now)
            if self.work.is_far_enough:
                self._move_on(now, actions)

    def _move_on(self, now: float, actions: list[AnyAction]) -> None:
        """Stop what is computed now, which is reported as far as it is done, and begin with what comes next."""
        if self.work.todo:
            self._compute_next(now, actions)
        else:
            self.work.now = None
            actions.append(Cancel(reason="others do the rest"))

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round or self._go.round != self.round:
            return
        task = self.work.ended(event.task)
        if task is not None:
            part = task.part
            if event.pieces and event.pieces < part.blocks:
                part = Part(part.unit, part.first, part.first + event.pieces)
            if self.plan.is_part(part):
                self._deliver(part, task, event.vector, now, actions)
        if self._finish_round(now, actions):
            return
        if self.work.now is None:
            self._compute_next(now, actions)

    def _deliver(self, part: Part, task: Task, vector: Vector, now: float, actions: list[AnyAction]) -> None:
        """Say that a part is done, and send it to the keepers."""
        vector = rounded(vector, self.settings.wire)  # also what does not travel: it must not matter who did it
        self.work.done[part] = vector
        done = Done(
            generation=self.generation, round=self.round, unit=part.unit, first=part.first, last=part.last,
            worked=max(0.0, now - task.began), block=max(0.0, task.block_seconds(part.blocks, now)),
            digest=self._digest,
        )  # fmt: skip
        self._digest = ""
        self.work.said.append(done)
        if self.lead is not None:
            self.lead.done(0, done, now, actions)
        else:
            actions.append(Transmit(to=0, message=done))
        self._exchange.send(part, vector, actions)

    def _on_interrupted(self, event: Interrupted, now: float, actions: list[AnyAction]) -> None:
        """A computation was stopped; if the round was over without it, so late it would have been."""
        if event.round < self.round or self.state is RESTING:
            late = Late(generation=self.generation, round=event.round, node=self.node, seconds=max(0.0, event.seconds))
            actions.append(Transmit(to=0, message=late) if self.lead is None else was_late(late, 0))

    # -- what the coordinator says

    def _told_by_own_coordinator(self, message: Message, now: float, actions: list[AnyAction]) -> None:
        match message:
            case Do():
                self._on_do(message, 0, now, actions)
            case Cut():
                self._on_cut(message, 0, now, actions)
            case Keep():
                self._change_keeper(message, actions)
            case Tell() if self.lead is not None:
                status = Status(round=self.round, done=self.work.advanced, lacks=tuple(self.keeper.lacks()))
                self.lead.status(0, status, now, actions)

    def _on_do(self, message: Do, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round != self._go.round:
            return
        if self.round > message.round or (self.round == message.round and self.state in (RESTING, ENDING)):
            self._say_it_is_done(message, actions)
            return
        self._take_on(message.parts)
        if self.round != message.round or self.state is not WORKING:
            return
        again = [Part(*place) for place in message.parts if Part(*place) in self.work.done]
        for part in again:  # it has not arrived
            if self.lead is not None:
                self.lead.done(
                    0, Done(round=self.round, unit=part.unit, first=part.first, last=part.last), now, actions
                )
            self._exchange.send(part, self.work.done[part], actions)
        if again:
            self._repeat_done(actions)
        if self.work.now is None:
            self._compute_next(now, actions)

    def _say_it_is_done(self, message: Do, actions: list[AnyAction]) -> None:
        """This rank has the sum of the round, so all of it was done, by whomever."""
        for unit, first, last in message.parts:
            done = Done(generation=self.generation, round=message.round, unit=unit, first=first, last=last)
            actions.append(Transmit(to=0, message=done))

    def _on_cut(self, message: Cut, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round == self._go.round and self.work.cut(message.unit, message.end):
            self._move_on(now, actions)

    def _on_tell(self, message: Tell, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round == self.round:
            self._repeat_done(actions)
        self._tell_status(actions)

    def _repeat_done(self, actions: list[AnyAction]) -> None:
        """Say again what was done in this round: it may not have been heard."""
        if self.lead is None:
            actions.extend(Transmit(to=0, message=done) for done in self.work.said)

    def _tell_status(self, actions: list[AnyAction]) -> None:
        status = Status(
            generation=self.generation, round=self.round, done=self.work.advanced,
            lacks=tuple(self.keeper.lacks())[:4096], digest=self._digest,
        )  # fmt: skip
        self._digest = ""
        actions.append(Transmit(to=0, message=status))

    def _on_keep(self, message: Keep, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._change_keeper(message, actions)
        self._finish_round(now, actions)

    def _change_keeper(self, message: Keep, actions: list[AnyAction]) -> None:
        if message.round == self._go.round:
            self._exchange.change_keeper(message, self.work.done, actions)

    # -- parts and sums

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
        total = self._exchange.sum
        if self.state not in (READY, WORKING) or total.round != self.round or not total.is_complete:
            return False
        if self.lead is not None and self._go.round != self.round:
            return False
        assert total.vector is not None
        late = self.lead.over(now) if self.lead is not None else ()
        self._stop_computing("the round is over", actions)
        self.state = RESTING
        self._model = None
        self._round_took = now - self._began_at
        if self.lead is None:
            self._exchange.keep_last()
        self._exchange.expect(self.round + 1)
        self._tries = 0
        actions.append(Aggregated(round=self.round, vector=total.vector, late=late))
        return True

    # -- a rank that is behind

    @property
    def _is_behind(self) -> bool:
        """Whether the round that this rank is in is over."""
        return self.round < self._go.round or (self._end is not None and self.round <= self._end)

    def _ask_later(self, now: float, actions: list[AnyAction]) -> None:
        a_round = self._round_took or now - self._began_at  # of the first one it is known how long it has taken so far
        actions.append(SetTimer(name=BEHIND, at=now + max(ASK_AFTER, 0.5 * a_round) * (1 + self._tries)))

    def _catch_up(self, now: float, actions: list[AnyAction]) -> None:
        """Ask keepers for what is missing of a past round's sum."""
        keepers = self._exchange.stripes.keepers(self.round)
        self._tried_with = self._exchange.sum.count
        self._tries += 1
        if keepers is None or self._tries > TRIES:
            self._renew(now, actions)
            return
        asked: dict[int, list[int]] = {}
        for index in self._exchange.sum.missing():
            asked.setdefault(keepers[index], []).append(index)
        own = asked.pop(self.node, [])
        self._exchange.take_own(self.round, own)
        if self._finish_round(now, actions):
            return
        was_replaced = self.round < self._go.round and not self._exchange.has(own)  # and was not told by whom
        if was_replaced or not self._links.reaches(asked):
            self._renew(now, actions)
            return
        for peer, chunks in asked.items():
            for start in range(0, len(chunks), ASKED_AT_ONCE):
                wanted = tuple(chunks[start : start + ASKED_AT_ONCE])
                want = Want(generation=self.generation, round=self.round, chunks=wanted)
                actions.append(Transmit(to=peer, message=want))
        self._ask_later(now, actions)

    def _on_want(self, message: Want, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Send what is here of a sum. Of a past round all of a stripe is, or none: this rank did not keep it."""
        is_here = self._exchange.send_sums(sender, message.round, message.chunks, actions)
        if not is_here and message.round < self._go.round:
            actions.append(Transmit(to=sender, message=Past(generation=self.generation, round=message.round)))

    def _on_past(self, message: Past, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round == self.round and self._is_behind:
            self._renew(now, actions)

    def _renew(self, now: float, actions: list[AnyAction]) -> None:
        """Wait for another's state, and take it."""
        self._stop_computing("this rank takes another's state", actions)
        self.state = RENEWING
        self._model = None
        self._taking.clear()
        self._must_renew = False
        actions.append(Transmit(to=0, message=Renew(generation=self.generation, round=self.round)))
        actions.append(SetTimer(name=BEHIND, at=now + max(1.0, 2 * self._round_took)))

    def _on_must_renew(self, message: Renew, sender: int, now: float, actions: list[AnyAction]) -> None:
        """This rank has another model than the others: it takes theirs, at once or when its script goes on."""
        if self.state is RESTING:
            self._must_renew = True
        else:
            self._renew(now, actions)

    def _on_state(self, chunk: StateChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        """A piece of a state, which must be later than this rank's own."""
        if not self.round - 1 <= chunk.round <= self._go.round or not self._taking.add(chunk, sender, data):
            return
        actions.append(SetTimer(name=BEHIND, at=now + max(1.0, 2 * self._round_took)))
        state = self._taking.whole()
        if state is not None:
            self._taking.clear()
            self.state = RESTING
            self.round = chunk.round
            self._exchange.expect(chunk.round + 1)
            self._tries = 0
            actions.append(Renewed(round=chunk.round, state=state))

    def _on_give(self, message: Give, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._giving.promise(message.to, actions)

    def _on_packed(self, event: Packed, now: float, actions: list[AnyAction]) -> None:
        self._giving.packed(event, self.generation, actions)

    # -- what the coordinator hears

    def _on_status(self, message: Status, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self._leading is not None
        self._leading.status(sender, message, now, actions)

    def _on_done(self, message: Done, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self._leading is not None
        self._leading.done(sender, message, now, actions)

    def _on_renew(self, message: Renew, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self._leading is not None
        if not self._leading.find_giver(sender, self.round, actions):
            self._giving.promise(sender, actions)

    def _on_late(self, message: Late, sender: int, now: float, actions: list[AnyAction]) -> None:
        actions.append(was_late(message, sender))

    def _on_have(self, message: Have, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self._leading is not None
        self._leading.through(sender)
        self._leave_if_all_through(actions)

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
        self._leave_if_all_through(actions)

    # -- time and connections

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == BEHIND:
            self._is_still_behind(now, actions)
        elif event.name == GREETING and self._hellos:
            self._say_hello(now, actions)
        elif event.name == ENDED and self.state is ENDING:
            self._say_goodbye(actions)
        elif self.lead is not None and self.state is WORKING:
            missing = self._exchange.sum.missing()
            if event.name == LATE:
                self.lead.look(now, actions)
            elif event.name == TAIL and missing:
                self.lead.sum_is_late(missing, self.keeper.lacks(), now, actions)
            elif event.name == WAITING:
                self._say_waiting(self.lead.waiting_for(missing), now, actions)
            self._finish_round(now, actions)

    def _is_still_behind(self, now: float, actions: list[AnyAction]) -> None:
        if self.state is RENEWING:
            self._renew(now, actions)
        elif self.state is WORKING and self._is_behind:
            if self._exchange.sum.count == self._tried_with:
                self._catch_up(now, actions)
            else:  # it comes
                self._tried_with = self._exchange.sum.count
                self._ask_later(now, actions)

    def _say_waiting(self, waiting: tuple[int, ...], now: float, actions: list[AnyAction]) -> None:
        reason = f"round {self.round} has waited {now - self._began_at:.3g} s for ranks {list(waiting)}"
        actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        actions.append(SetTimer(name=WAITING, at=now + self.settings.say_waiting_after))

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer in self._links:
            self._links.drained(event.peer, actions)

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        if event.peer in self._links:
            self._links.lose(event.peer)
            if self.lead is not None:
                self._is_gone(event.peer, now, actions)

    def _on_peer_found(self, event: PeerFound, now: float, actions: list[AnyAction]) -> None:
        if event.peer not in self._links:
            return
        self._links.find(event.peer)
        if event.peer == 0:
            self._say_hello(now, actions)
        if self.lead is None:  # whom a coordinator is to talk to says hello
            self._exchange.send_again(event.peer, self.work.done, actions)

    # -- the end

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        """Leave when the others are through, too; or at once."""
        self._stop_computing("this rank leaves", actions)
        self._why = event.reason
        if event.at_once or self.state is JOINING:
            self._say_goodbye(actions)
            return
        through = self.round if self.state in (RESTING, ENDING) else self.round - 1
        self.state = ENDING
        self._drop_all()
        self.round = through
        self._end = through
        if self._leading is None:
            actions.append(Transmit(to=0, message=Have(generation=self.generation, round=through)))
            return
        self._leading.tell_all(End(generation=self.generation, round=through), actions)
        actions.append(SetTimer(name=ENDED, at=now + max(GRACE, 3 * self._round_took)))
        self._leave_if_all_through(actions)

    def _on_end(self, message: End, sender: int, now: float, actions: list[AnyAction]) -> None:
        if self.state is ENDING:
            if self.round > message.round:
                self.left_alone = f"rank {self.node} is in round {self.round}, and rank 0 ended with {message.round}"
            return
        if self._end is not None:
            return  # it has been said, and stands
        self._end = message.round
        if self.state in (READY, WORKING) and self.round > message.round:
            self._stop_computing("the run is over", actions)
            self._is_over(actions)
        elif self.state is WORKING:  # what is missing of the last sum, nobody will send unasked
            self._ask_later(now, actions)
        elif self.state is READY:  # its round is over, and nobody told it that it had begun
            self._go_on(now, actions)

    def _is_over(self, actions: list[AnyAction]) -> None:
        """Tell the script that it has had its last round."""
        assert self._end is not None
        actions.append(Ended(round=self._end))

    def _leave_if_all_through(self, actions: list[AnyAction]) -> None:
        if self.state is ENDING and self._leading is not None and self._leading.all_through:
            self._say_goodbye(actions)

    def _on_goodbye(self, message: Goodbye, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._stop_computing("the run is over", actions)
        if self._end is None:
            self._end = message.round
        self._finish(message.reason, actions)

    def _say_goodbye(self, actions: list[AnyAction]) -> None:
        goodbye = Goodbye(generation=self.generation, round=self.round, reason=self._why[:1000])
        if self._leading is not None:
            self._leading.tell_all(goodbye, actions)
        else:
            actions.append(Transmit(to=0, message=goodbye))
        self._finish(self._why, actions)

    def _finish(self, why: str, actions: list[AnyAction]) -> None:
        self.state = LEFT
        self._drop_all()
        actions.append(Finished(reason=why))

    def _drop_all(self) -> None:
        """No model is needed any more, nor another's state."""
        self._model = None
        self._taking.clear()

    def held(self) -> int:
        """How many chunks of others' parts this rank holds, or has in the making of sums."""
        return self._exchange.held()

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        self._exchange.check_invariants()
        if self._taking.is_under_way and self.state is not RENEWING:
            raise AssertionError(f"rank {self.node} holds pieces of a state that it does not take")
        if self.state is WORKING and self._go.round < self.round and not self._is_behind:
            raise AssertionError(f"rank {self.node} works on round {self.round}, which has not begun")
        if (self._model is not None) is not (self.state in (READY, WORKING)):
            raise AssertionError(f"rank {self.node} has a model in state {self.state.name}, or none")
