"""A rank at work: computes the parts it was given, says that they are done, and sends them to the keepers."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from codedreduce.protocol.core.blocks import Block
from codedreduce.protocol.core.events import (
    Advanced,
    AnyAction,
    Cancel,
    ComputationStopped,
    Compute,
    Computed,
    Digested,
    Failed,
    Note,
)
from codedreduce.protocol.core.messages import (
    Check,
    Checked,
    Cut,
    DamagedChunk,
    Do,
    Done,
    Go,
    Keep,
    Late,
    Mistaken,
    Passed,
    Status,
    Tell,
    Unable,
)
from codedreduce.protocol.core.mistakes import Mistakes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, RESTING, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.members import Office, was_late
from codedreduce.protocol.rank.audit_checks import AuditChecks
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.workload import BlockTask, Workload
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector, round_off

#: Units in a status that a stripe lacks, at most.
TOLD_AT_ONCE = 4096


class RankWorker:
    """What a rank does of a round, with the model that its script began it with. `office`: whether it leads."""

    def __init__(
        self, position: RankPosition, plan: StripedPlan, settings: Settings, exchange: Exchange, office: Office
    ) -> None:
        self._position = position
        self._plan = plan
        self._settings = settings
        self._exchange = exchange
        self._office = office
        self._work = Workload()
        self._checking = AuditChecks(position, plan, settings)
        self._untold: dict[Part, Done] = {}  # what is computed and not said to be: nothing has shown that it is right
        self._model: Vector | None = None
        self._digest = ""  # of the model, until it has been told
        self._told = ""  # of the same, when it has been

    def use(self, model: Vector, digest: str) -> None:
        """The script begins a round with this model."""
        self._model = model
        self._digest = digest
        self._told = ""

    def drop_model(self) -> None:
        """The script's model is not needed any more."""
        self._model = None

    @property
    def mistakes(self) -> Mistakes:
        """Who was found to have computed wrongly."""
        return self._checking.mistakes

    @property
    def has_model(self) -> bool:
        """Whether a script waits for what is computed with its model."""
        return self._model is not None

    @property
    def has_something_to_do(self) -> bool:
        """Whether parts are left that were not begun."""
        return not self._work.is_empty

    @property
    def is_idle(self) -> bool:
        """Whether nothing is computed."""
        return self._work.now is None

    @property
    def tasks(self) -> int:
        """How many computations were begun."""
        return self._work.task

    def begin(self, go: Go) -> None:
        """A round is on: what is to be done in it; this rank may not have come to it."""
        self._work.clear()
        self._checking.begin()
        self._untold.clear()
        self._take_on(go.parts)
        self._take_checks(go.checks)

    def begin_again(self, go: Go) -> None:
        """The round that this rank is in is shared out by another coordinator: what it has done stays done."""
        self._work.begin_again()
        self._take_on(go.parts)
        self._take_checks(go.checks)

    def deliver_again(self, now: float, actions: list[AnyAction]) -> None:
        """Say to another coordinator what is done, and send it to those that keep it now."""
        for done in self._said():
            self._tell_done(done, now, actions)
        for checked in self._checking.said():
            self._tell_checked(checked, now, actions)
        for part, vector in self._sent().items():
            self._send(part, vector, now, actions)

    def _send(self, part: Part, vector: Vector, now: float, actions: list[AnyAction]) -> None:
        self._exchange.send(part, vector, actions)
        self.look_at_own_damage(now, actions)

    def _sent(self) -> dict[Part, Vector]:
        """What is done, and need not wait for an audit."""
        held = self._checking.held
        return {part: vector for part, vector in self._work.done.items() if part not in held}

    def _tell_done(self, done: Done, now: float, actions: list[AnyAction]) -> None:
        if self._office.lead is not None:
            self._office.lead.done(self._position.node, done, now, actions)
        else:
            self._office.tell_leader(done, actions)

    def _take_on(self, places: tuple[tuple[int, int, int], ...]) -> None:
        """Add to what is to be done; but for parts that do not exist, and those whose samples it cannot read."""
        if self._checking.is_out:
            return
        parts = [Part(*position) for position in places]
        self._work.take_on(
            part for part in parts if self._plan.is_part(part) and self._position.node in self._plan.readers(part.unit)
        )  # fmt: skip

    # -- computing

    def compute_next(self, now: float, actions: list[AnyAction]) -> None:
        """Begin with the next part, if there is one."""
        part = self._work.next(now)
        if part is not None:
            assert self._model is not None
            is_check = self._work.is_checking
            actions.append(
                Compute(
                    round=self._position.round, task=self._work.task, pieces=self._plan.pieces(part), model=self._model,
                    salvage=not is_check, watched=part.blocks > 1, digest_only=is_check,
                    audited=(0,) if is_check else self._checking.in_part(part),
                )
            )  # fmt: skip

    def stop(self, why: str, actions: list[AnyAction]) -> None:
        """Compute nothing more of the script's round."""
        if self._position.round >= self._position.go.round:
            self._work.todo.clear()
            self._work.checks.clear()
        if self._work.now is not None:
            self._work.now = None
            actions.append(Cancel(reason=why))

    def on_advanced(self, event: Advanced, now: float, actions: list[AnyAction]) -> None:
        """So many blocks are done of what is computed."""
        if event.round == self._position.round and event.task == self._work.task and self._work.now is not None:
            self._work.advance(event.pieces, now)
            if self._work.is_far_enough:
                self._move_on(now, actions)

    def _move_on(self, now: float, actions: list[AnyAction]) -> None:
        """Stop what is computed now, which is reported as far as it is done, and begin with what comes next."""
        if not self._work.is_empty:
            self.compute_next(now, actions)
        else:
            self._work.now = None
            actions.append(Cancel(reason="others do the rest"))

    def computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        """A part was computed, or some of it."""
        task = self._work.ended(event.task)
        if task is not None and not task.is_check:
            part = task.part
            if event.pieces and event.pieces < part.blocks:
                part = Part(part.unit, part.first, part.first + event.pieces)
            if self._plan.is_part(part):
                self._deliver(part, task, event.vector, now, actions)

    def failed(self, event: Failed) -> Unable | None:
        """A part cannot be computed here, nor what else this rank was to do of its unit; what to say of it."""
        task = self._work.ended(event.task)
        if task is None or task.is_check:  # whoever sends it fails as well, if it is not this rank's own fault
            return None
        self._work.cut(task.part.unit, 0)
        position = self._position
        troubles = ((position.node, event.reason[:400]),)
        unable = Unable(generation=position.generation, round=position.round, task=task.part.unit, troubles=troubles)
        self._work.unable.append(unable)
        return unable

    def _deliver(self, part: Part, task: BlockTask, vector: Vector, now: float, actions: list[AnyAction]) -> None:
        """Say that a part is done, and send it to the keepers."""
        settings = self._settings
        vector = round_off(vector, settings.wire, settings.exact)  # also what stays here: it must not matter who did it
        self._work.done[part] = vector
        done = Done(
            generation=self._position.generation, round=self._position.round, unit=part.unit, first=part.first,
            last=part.last, worked=max(0.0, now - task.began), block=task.block_seconds(part.blocks, now),
        )  # fmt: skip
        if self._checking.in_part(part):
            self._exchange.seal(part, vector)
        if self._checking.is_waiting:
            self._checking.hold(part)  # before it is said: a block may pass at once where this rank leads
            self._say_done(done, now, actions)
        elif self._checking.lacks_proof(part):
            self._untold[part] = done
            self._checking.hold(part)
            self._prove(part.unit)
        else:
            self._say_done(done, now, actions)
            self._send(part, vector, now, actions)

    def _say_done(self, done: Done, now: float, actions: list[AnyAction]) -> None:
        done = replace(done, generation=self._position.generation, digest=self._digest)
        self._has_told()
        self._work.said.append(done)
        self._tell_done(done, now, actions)

    def _prove(self, unit: int) -> None:
        """Compute an audited block of a unit, unless one that was computed, or is about to be, may show the same."""
        is_under_way = self._work.is_checking and self._work.now is not None
        if not (self._checking.has_said or self._work.checks or is_under_way):
            self._work.checks.append((unit, self._checking.drawn(unit)[0]))

    # -- what is audited

    def _take_checks(self, blocks: tuple[Block, ...]) -> None:
        """Compute these blocks, which others send; but for those that do not exist, or whose samples cannot be read."""
        for unit, block in blocks if not self._checking.is_out else ():
            is_here = self._plan.is_part(Part(unit, block, block + 1)) and self._position.node in self._plan.readers(
                unit
            )
            if is_here and (unit, block) not in self._work.checks:
                self._work.checks.append((unit, block))

    def on_check(self, message: Check, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator would know the digests of these blocks."""
        position = self._position
        if message.round == position.go.round and position.round == message.round and position.state is WORKING:
            self._take_checks(message.blocks)
            if self._work.now is None:
                self.compute_next(now, actions)

    def on_digested(self, event: Digested, now: float, actions: list[AnyAction]) -> None:
        """A block of what is computed is done, and audited."""
        task = self._work.under_way(event.task)
        if event.round == self._position.round and self._position.is_on and task is not None:
            block = (task.part.unit, task.part.first + event.piece)
            checked = self._checking.say(block, event.digest, is_own=not task.is_check)
            if checked is not None:
                self._tell_checked(checked, now, actions)

    def _tell_checked(self, checked: Checked, now: float, actions: list[AnyAction]) -> None:
        if self._office.lead is not None:
            self._office.lead.checked(self._position.node, checked, now, actions)
        else:
            self._office.tell_leader(checked, actions)

    def on_passed(self, message: Passed, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Others have computed the same."""
        if message.round == self._position.go.round:
            for part in self._checking.passed((message.unit, message.block), message.digest):
                if part in self._untold:
                    self._say_done(self._untold.pop(part), now, actions)
                self._send(part, self._work.done[part], now, actions)

    def on_mistaken(self, message: Mistaken, sender: int, now: float, actions: list[AnyAction]) -> None:
        """A rank computed wrongly; if it is this one, nothing that it did of the round is sent."""
        self.mistakes.note(message.node, message.times)
        if message.node == self._position.node and message.round == self._position.go.round:
            is_busy = self._work.now is not None
            self._work.drop()
            self._checking.drop()
            self._untold.clear()
            if is_busy:
                actions.append(Cancel(reason="what this rank computes is wrong"))

    def on_damaged(self, message: DamagedChunk, sender: int, now: float, actions: list[AnyAction]) -> None:
        """A chunk is not what this rank said it is: it is sent again, if it is right here, or computed again."""
        part = Part(message.unit, message.first, message.last)
        vector = self._sent().get(part) if message.round == self._position.go.round else None
        if vector is None or self._position.state is not WORKING:
            return
        words = f"rank {sender} was sent a chunk of round {message.round} by rank {self._position.node} that is damaged"
        actions.append(Note(kind="damaged", reason=words, round=message.round, nodes=(self._position.node, sender)))
        if not self._exchange.send_if_intact(part, vector, message.index, sender, actions):
            del self._work.done[part]
            self._work.todo.appendleft(part)
            if self._work.now is None:
                self.compute_next(now, actions)

    def look_at_own_damage(self, now: float, actions: list[AnyAction]) -> None:
        """What this rank itself keeps of its own parts may not be what it was, either."""
        while self._exchange.own_damage:
            self.on_damaged(self._exchange.own_damage.pop(), self._position.node, now, actions)

    # -- late, and again

    def on_interrupted(self, event: ComputationStopped, now: float, actions: list[AnyAction]) -> None:
        """A computation was stopped; if the round was over without it, so late it would have been."""
        position = self._position
        if event.round < position.round or position.state is RESTING:
            late = Late(
                generation=position.generation, round=event.round, node=position.node, seconds=max(0.0, event.seconds)
            )  # fmt: skip
            if self._office.is_held:
                actions.append(was_late(late, position.node))
            else:
                self._office.tell_leader(late, actions)

    def send_again(self, peer: int, actions: list[AnyAction]) -> None:
        """A connection is new: what a rank should have of this round may be lost."""
        self._exchange.send_again(peer, self._sent(), actions)

    def change_keeper(self, message: Keep, actions: list[AnyAction]) -> None:
        """A stripe has another keeper, for the rest of the round: it is sent that of all that is done."""
        if message.round == self._position.go.round:
            self._exchange.change_keeper(message, self._sent(), actions)

    # -- what the coordinator says

    def on_do(self, message: Do, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Do these parts, too; some of them may be done, and have not arrived."""
        position = self._position
        if message.round != position.go.round:
            return
        if position.round > message.round or (position.round == message.round and position.state in (RESTING, ENDING)):
            self._say_it_is_done(message, now, actions)
            return
        self._take_on(message.parts)
        if position.round != message.round or position.state is not WORKING:
            return
        again = [Part(*one) for one in message.parts if Part(*one) in self._work.done]
        for part in again:
            if self._office.lead is not None and part not in self._untold:
                done = Done(round=position.round, unit=part.unit, first=part.first, last=part.last)
                self._office.lead.done(position.node, done, now, actions)
            if part not in self._checking.held:
                self._send(part, self._work.done[part], now, actions)
        if again:
            self.repeat_done(actions)
        if self._work.now is None:
            self.compute_next(now, actions)

    def _say_it_is_done(self, message: Do, now: float, actions: list[AnyAction]) -> None:
        """This rank has the sum of the round, so all of it was done, by whomever."""
        for unit, first, last in message.parts:
            done = Done(generation=self._position.generation, round=message.round, unit=unit, first=first, last=last)
            self._tell_done(done, now, actions)

    def on_cut(self, message: Cut, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Others do the end of a unit."""
        if message.round == self._position.go.round and self._work.cut(message.unit, message.end):
            self._move_on(now, actions)

    def on_tell(self, message: Tell, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator asks how far this rank is."""
        if message.round == self._position.round:
            self.repeat_done(actions)
        self.tell_status(actions)

    def repeat_done(self, actions: list[AnyAction]) -> None:
        """Say again what was done in this round: it may not have been heard."""
        if not self._office.is_held:
            for done in self._said():
                self._office.tell_leader(done, actions)
            for checked in self._checking.said():
                self._office.tell_leader(checked, actions)
            for unable in self._work.unable:
                self._office.tell_leader(unable, actions)

    def _said(self) -> list[Done]:
        """What was said to be done in this round, perhaps to another coordinator."""
        return [msgspec.structs.replace(done, generation=self._position.generation) for done in self._work.said]

    def tell_ahead(self, actions: list[AnyAction]) -> None:
        """Between two rounds: this rank has the sum of the last one, and is as good as in the next."""
        self._office.tell_leader(replace(self.status(), round=self._position.through + 1), actions)

    def tell_status(self, actions: list[AnyAction]) -> None:
        """Say how far this rank is."""
        self._office.tell_leader(self.status(self._digest), actions)
        self._has_told()

    def tell_again(self, actions: list[AnyAction]) -> None:
        """Say to another coordinator how far this rank is, and what its model is, if that is compared."""
        self._digest, self._told = self._digest or self._told, ""
        self.tell_status(actions)

    @property
    def digest(self) -> str:
        """Of the model that the script began this round with, where that is compared."""
        return self._digest or self._told

    def _has_told(self) -> None:
        self._digest, self._told = "", self._digest or self._told

    def status(self, digest: str = "") -> Status:
        """How far this rank is, and what it lacks of what it keeps.

        What one that led before has let begin counts for nothing: the one that leads may weigh stripes otherwise.
        """
        go, generation = self._position.go, self._position.generation
        return Status(
            generation=generation, round=self._position.round, done=self._work.advanced,
            lacks=tuple(self._exchange.keeper.lacks())[:TOLD_AT_ONCE], digest=digest,
            begun=go.round if go.generation == generation else 0, is_idle=self._work.is_idle,
        )  # fmt: skip
