"""A rank at work: it computes its assigned parts, reports them as done, and sends them to the reducers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from codedreduce.protocol.core.audits import Mistakes
from codedreduce.protocol.core.blocks import Block
from codedreduce.protocol.core.events import (
    Actions,
    Advanced,
    Cancel,
    ComputationStopped,
    Compute,
    Computed,
    Digested,
    Failed,
    Note,
)
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Check,
    Cut,
    DamagedChunk,
    Do,
    Done,
    Go,
    Late,
    Mistaken,
    NewReducer,
    Passed,
    Status,
    Tell,
    Unable,
)
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, RESTING, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.audit_checks import AuditChecks
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.workload import BlockTask, Workload
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector, round_off

#: The maximum number of missing units in a status.
TOLD_AT_ONCE = 4096


class RankWorker:
    """A rank's computations in a round, with the model from its script.

    `report` sends a message to the leader. If this rank leads, it handles the message at once.
    """

    def __init__(
        self,
        actions: Actions,
        position: RankPosition,
        plan: StripedPlan,
        settings: Settings,
        exchange: Exchange,
        report: Callable[[AnyMessage, float], None],
    ) -> None:
        self._actions = actions
        self._position = position
        self._plan = plan
        self._settings = settings
        self._exchange = exchange
        self.report = report
        self._work = Workload()
        self._checking = AuditChecks(position, plan, settings)
        self._untold: dict[Part, Done] = {}  # computed parts that are not yet reported: no audit has confirmed them
        self._model: Vector | None = None
        self.digest: str | None = None  # of the model with which the script began this round, if models are compared
        self._is_digest_told = False

    def use(self, model: Vector, digest: str | None) -> None:
        """The script begins a round with this model."""
        self._model = model
        self.digest = digest
        self._is_digest_told = False

    def drop_model(self) -> None:
        """Drop the script's model: it is no longer needed."""
        self._model = None

    @property
    def mistakes(self) -> Mistakes:
        """The wrong results that were found, by rank."""
        return self._checking.mistakes

    @property
    def has_model(self) -> bool:
        """True if a script waits for results of its model."""
        return self._model is not None

    @property
    def has_something_to_do(self) -> bool:
        """True if parts are left that have not begun."""
        return not self._work.is_empty

    @property
    def is_idle(self) -> bool:
        """True if nothing is being computed."""
        return self._work.now is None

    @property
    def tasks(self) -> int:
        """The number of computations that have begun."""
        return self._work.task

    def begin(self, go: Go) -> None:
        """The leader has begun a round: take its assignment. This rank may not have reached the round yet."""
        self._work.clear()
        self._checking.begin()
        self._untold.clear()
        self._take_on(go.parts)
        self._take_checks(go.checks)

    def begin_again(self, go: Go) -> None:
        """Another leader assigns the work of this rank's round again: results stay valid."""
        self._work.begin_again()
        self._take_on(go.parts)
        self._take_checks(go.checks)

    def deliver_again(self, now: float) -> None:
        """Report all results to another leader, and send them to their current reducers."""
        for done in self._said():
            self.report(done, now)
        for checked in self._checking.said():
            self.report(checked, now)
        for part, vector in self._sent().items():
            self._send(part, vector, now)

    def _send(self, part: Part, vector: Vector, now: float) -> None:
        self._exchange.send(part, vector)
        self.look_at_own_damage(now)

    def _sent(self) -> dict[Part, Vector]:
        """Results that need not wait for an audit."""
        held = self._checking.held
        return {part: vector for part, vector in self._work.done.items() if part not in held}

    def _take_on(self, places: tuple[tuple[int, int, int], ...]) -> None:
        """Add parts to the work, except those that do not exist or have samples that this rank cannot read."""
        if self._checking.is_out:
            return
        parts = [Part(*position) for position in places]
        self._work.take_on(
            part for part in parts if self._plan.is_part(part) and self._position.node in self._plan.readers(part.unit)
        )  # fmt: skip

    # -- computing

    def compute_next(self, now: float) -> None:
        """Begin with the next part, if there is one."""
        part = self._work.next(now)
        if part is not None:
            assert self._model is not None
            is_check = self._work.is_checking
            self._actions.append(
                Compute(
                    round=self._position.round, task=self._work.task, pieces=self._plan.pieces(part), model=self._model,
                    salvage=not is_check, watched=part.blocks > 1, digest_only=is_check,
                    audited=(0,) if is_check else self._checking.in_part(part),
                )
            )  # fmt: skip

    def work_on(self, now: float) -> None:
        """Begin with the next part, if there is one and nothing is being computed."""
        if self._work.now is not None:
            return
        if self.has_something_to_do:
            self.compute_next(now)
        elif self._position.leader != self._position.node:
            self.tell_status(now)  # report that this rank is idle and can be assigned work

    def stop(self, why: str) -> None:
        """Stop all computation for the script's round."""
        if self._position.round >= self._position.go.round:
            self._work.todo.clear()
            self._work.checks.clear()
        if self._work.now is not None:
            self._work.now = None
            self._actions.append(Cancel(reason=why))

    def on_advanced(self, event: Advanced, now: float) -> None:
        """So many blocks of the current computation are done."""
        if event.round == self._position.round and event.task == self._work.task and self._work.now is not None:
            self._work.advance(event.pieces, now)
            if self._work.is_far_enough:
                self._move_on(now)

    def _move_on(self, now: float) -> None:
        """Stop the current computation and begin the next; what it has finished is still reported."""
        if not self._work.is_empty:
            self.compute_next(now)
        else:
            self._work.now = None
            self._actions.append(Cancel(reason="other ranks compute the rest"))

    def computed(self, event: Computed, now: float) -> None:
        """A part, or the beginning of it, has been computed."""
        task = self._work.ended(event.task)
        if task is not None and not task.is_check:
            part = task.part
            if event.pieces and event.pieces < part.blocks:
                part = Part(part.unit, part.first, part.first + event.pieces)
            if self._plan.is_part(part):
                self._deliver(part, task, event.vector, now)

    def on_failed(self, event: Failed, now: float) -> None:
        """This rank failed at a part: the leader reassigns it, and this rank goes on with its next part."""
        position = self._position
        if event.round == position.round and position.is_on:
            self._failed(event, now)
        if position.state is WORKING and self._work.now is None:
            self.compute_next(now)

    def _failed(self, event: Failed, now: float) -> None:
        """A part cannot be computed here: drop the rest of its unit, and report that."""
        task = self._work.ended(event.task)
        if task is None or task.is_check:  # a failure that is not this rank's own hits the sender, too
            return
        self._work.cut(task.part.unit, 0)
        position = self._position
        troubles = ((position.node, event.reason[:400]),)
        unable = Unable(generation=position.generation, round=position.round, task=task.part.unit, troubles=troubles)
        self._work.unable.append(unable)
        self.report(unable, now)

    def _deliver(self, part: Part, task: BlockTask, vector: Vector, now: float) -> None:
        """Report a part as done, and send it to the reducers."""
        settings = self._settings
        vector = round_off(vector, settings.wire, settings.exact)  # also if it stays here: all ranks must agree
        self._work.done[part] = vector
        done = Done(
            generation=self._position.generation, round=self._position.round, unit=part.unit, first=part.first,
            last=part.last, worked=max(0.0, now - task.began), block=task.block_seconds(part.blocks, now),
        )  # fmt: skip
        if self._checking.in_part(part):
            self._exchange.seal(part, vector)
        if self._checking.is_waiting:
            self._checking.hold(part)  # before the report: on the leader a block may pass at once
            self._say_done(done, now)
        elif self._checking.lacks_proof(part):
            self._untold[part] = done
            self._checking.hold(part)
            self._prove(part.unit)
        else:
            self._say_done(done, now)
            self._send(part, vector, now)

    def _say_done(self, done: Done, now: float) -> None:
        done = replace(done, generation=self._position.generation, digest=self._news_of_model())
        self._work.said.append(done)
        self.report(done, now)

    def _prove(self, unit: int) -> None:
        """Compute an audited block of a unit, unless a block that is reported or is about to be may serve as proof."""
        is_under_way = self._work.is_checking and self._work.now is not None
        if not (self._checking.has_said or self._work.checks or is_under_way):
            self._work.checks.append((unit, self._checking.drawn(unit)[0]))

    # -- audits

    def _take_checks(self, blocks: tuple[Block, ...]) -> None:
        """Add checks of blocks that others send, except blocks that do not exist or have unreadable samples."""
        for unit, block in blocks if not self._checking.is_out else ():
            is_here = self._plan.is_part(Part(unit, block, block + 1)) and self._position.node in self._plan.readers(
                unit
            )
            if is_here and (unit, block) not in self._work.checks:
                self._work.checks.append((unit, block))

    def on_check(self, message: Check, sender: int, now: float) -> None:
        """The leader requests the digests of these blocks."""
        position = self._position
        if message.round == position.go.round and position.round == message.round and position.state is WORKING:
            self._take_checks(message.blocks)
            if self._work.now is None:
                self.compute_next(now)

    def on_digested(self, event: Digested, now: float) -> None:
        """An audited block of a running computation is done."""
        task = self._work.under_way(event.task)
        if event.round == self._position.round and self._position.is_on and task is not None:
            block = (task.part.unit, task.part.first + event.piece)
            checked = self._checking.say(block, event.digest, is_own=not task.is_check)
            if checked is not None:
                self.report(checked, now)

    def on_passed(self, message: Passed, sender: int, now: float) -> None:
        """Other ranks computed the same result for a block: send the parts that waited for it."""
        if message.round == self._position.go.round:
            for part in self._checking.passed((message.unit, message.block), message.digest):
                if part in self._untold:
                    self._say_done(self._untold.pop(part), now)
                self._send(part, self._work.done[part], now)

    def on_mistaken(self, message: Mistaken, sender: int, now: float) -> None:
        """A rank computed wrongly; if it is this one, it discards all its results of the round."""
        self.mistakes.note(message.node, message.times)
        if message.node == self._position.node and message.round == self._position.go.round:
            is_busy = self._work.now is not None
            self._work.drop()
            self._checking.drop()
            self._untold.clear()
            if is_busy:
                self._actions.append(Cancel(reason="this rank computed a wrong result"))

    def on_damaged(self, message: DamagedChunk, sender: int, now: float) -> None:
        """A chunk arrived damaged: send it again if it is intact here, else compute the part again."""
        part = Part(message.unit, message.first, message.last)
        vector = self._sent().get(part) if message.round == self._position.go.round else None
        if vector is None or self._position.state is not WORKING:
            return
        words = f"rank {sender} received a damaged chunk of round {message.round} from rank {self._position.node}"
        self._actions.append(
            Note(kind="damaged", reason=words, round=message.round, nodes=(self._position.node, sender))
        )
        if not self._exchange.send_if_intact(part, vector, message.index, sender):
            del self._work.done[part]
            self._work.todo.appendleft(part)
            if self._work.now is None:
                self.compute_next(now)

    def look_at_own_damage(self, now: float) -> None:
        """Check this rank's own parts for its own stripe: they may be damaged as well."""
        while self._exchange.own_damage:
            self.on_damaged(self._exchange.own_damage.pop(), self._position.node, now)

    # -- late results, and repetitions

    def on_interrupted(self, event: ComputationStopped, now: float) -> None:
        """A computation was stopped; if its round ended without it, report how late it would have been."""
        position = self._position
        if event.round < position.round or position.state is RESTING:
            late = Late(
                generation=position.generation, round=event.round, node=position.node, seconds=max(0.0, event.seconds)
            )  # fmt: skip
            self.report(late, now)

    def send_again(self, peer: int) -> None:
        """A connection is new: send the peer its chunks of this round again, as they may be lost."""
        self._exchange.send_again(peer, self._sent())

    def on_new_reducer(self, message: NewReducer, sender: int, now: float) -> None:
        """A stripe has another reducer for the rest of the round: send it the stripe of all results."""
        if message.round == self._position.go.round:
            self._exchange.change_reducer(message, self._sent())
        self.look_at_own_damage(now)

    # -- messages from the leader

    def on_do(self, message: Do, sender: int, now: float) -> None:
        """Compute these parts as well; some may be done already, and not have arrived."""
        position = self._position
        if message.round != position.go.round:
            return
        if position.round > message.round or (position.round == message.round and position.state in (RESTING, ENDING)):
            self._say_it_is_done(message, now)
            return
        self._take_on(message.parts)
        if position.round != message.round or position.state is not WORKING:
            return
        again = [Part(*one) for one in message.parts if Part(*one) in self._work.done]
        for part in again:
            if sender == position.node and part not in self._untold:
                self.report(Done(round=position.round, unit=part.unit, first=part.first, last=part.last), now)
            if part not in self._checking.held:
                self._send(part, self._work.done[part], now)
        if again and sender != position.node:
            self.repeat_done(now)
        if self._work.now is None:
            self.compute_next(now)

    def _say_it_is_done(self, message: Do, now: float) -> None:
        """Report these parts as done: this rank has the sum of the round, so some rank has computed them."""
        for unit, first, last in message.parts:
            done = Done(generation=self._position.generation, round=message.round, unit=unit, first=first, last=last)
            self.report(done, now)

    def on_cut(self, message: Cut, sender: int, now: float) -> None:
        """Other ranks compute the end of a unit."""
        if message.round == self._position.go.round and self._work.cut(message.unit, message.end):
            self._move_on(now)

    def on_tell(self, message: Tell, sender: int, now: float) -> None:
        """The leader requests the progress of this rank."""
        if message.round == self._position.round and sender != self._position.node:
            self.repeat_done(now)
        self.tell_status(now)

    def repeat_done(self, now: float) -> None:
        """Repeat the reports of this round to another rank: they may be lost."""
        messages: list[AnyMessage] = [*self._said(), *self._checking.said(), *self._work.unable]
        for message in messages:
            self.report(message, now)

    def _said(self) -> list[Done]:
        """The reports of this round; some may have gone to another leader."""
        return [replace(done, generation=self._position.generation) for done in self._work.said]

    def tell_ahead(self, now: float) -> None:
        """Between two rounds: report progress as if in the next round, since this rank has the sum of the last one."""
        self.report(replace(self._status(), round=self._position.through + 1), now)

    def tell_status(self, now: float) -> None:
        """Report the progress of this rank."""
        self.report(self._status(self._news_of_model()), now)

    def tell_again(self, now: float) -> None:
        """Report progress to another leader, with the model's digest if models are compared."""
        self._is_digest_told = False
        self.tell_status(now)

    def _news_of_model(self) -> str:
        """The model's digest, as a message carries it: empty if there is none, or if it is reported already."""
        digest = "" if self.digest is None or self._is_digest_told else self.digest
        self._is_digest_told = True
        return digest

    def _status(self, digest: str = "") -> Status:
        """The progress of this rank, and the units that its stripe lacks.

        A round that an earlier leader has begun is not reported: the current leader may give stripes other weights.
        """
        go, generation = self._position.go, self._position.generation
        return Status(
            generation=generation, round=self._position.round, done=self._work.advanced,
            lacks=tuple(self._exchange.reducer.lacks())[:TOLD_AT_ONCE], digest=digest,
            begun=go.round if go.generation == generation else 0, is_idle=self._work.is_idle,
        )  # fmt: skip
