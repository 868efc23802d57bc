"""A worker: takes models from its parent, computes, collects from its children if it has any, and delivers."""

from __future__ import annotations

from codedreduce.protocol.core.events import (
    AnyAction,
    Cancel,
    ComputationStopped,
    Compute,
    Computed,
    Drained,
    Failed,
    Finished,
    Leave,
    PeerFound,
    PeerLost,
    Received,
    SetTimer,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.core.machine import CHILD, PARENT, STRANGER, From, Machine
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Enough,
    Failure,
    Goodbye,
    Hello,
    Late,
    Leaving,
    ModelChunk,
    Next,
    Offer,
    Ready,
    Refuse,
    Send,
    Settle,
    ShareChunk,
    Trouble,
    Unable,
    Welcome,
)
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.attendance import MISSING, Attendance
from codedreduce.protocol.tree.collecting import REDUNDANCY, Collecting
from codedreduce.protocol.tree.delivering import Delivering
from codedreduce.protocol.tree.model_loading import ModelLoading
from codedreduce.protocol.tree.tree_worker_table import (
    JOINING,
    LEFT,
    LOADING,
    RESTING,
    ROWS,
    WAITING,
    WORKING,
    TreeWorkerState,
)
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector

#: The timer after which a worker that was asked to settle sends what it has.
SETTLE = "settle"


class TreeWorker(Machine):
    """The state machine of a worker. One with children also collects (`below`); a leaf does not."""

    ROWS = ROWS

    def __init__(self, node: int, plan: TreePlan, settings: Settings) -> None:
        super().__init__()
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: TreeWorkerState = JOINING
        self.round = 0
        self.parent = plan.tree.parent(node)
        self.below = Collecting(node, plan, settings) if plan.tree.children(node) else None
        self.delivering = Delivering(node, plan, settings, self.below)
        self._attendance = Attendance(node, plan, settings, self.below)
        self._loading = ModelLoading(settings)
        self._again = False  # the model of this round arrives again
        self._reload = False  # the connection is new, and the model of this round may arrive again
        self._has_asked = False  # whether it has reported its round to the parent since a model last began
        self.refused: str | None = None
        self._was_in = False
        self._has_parent = True  # as far as this worker knows
        self._leaving: str | None = None  # the reason, if this worker leaves after the round
        self.first_task = self.delivering.task
        self._computing = False
        self._queued: Next | None = None
        self._unable: Unable | None = None  # the message sent, if this worker cannot do its task
        self._settling = 0  # the round that the parent asked to settle
        self._salvages = plan.wait_for is not None
        self._pieces = {self.first_task: plan.unit(node, self.first_task).pieces}

    def _who(self, sender: int) -> From:
        if sender == self.parent:
            return PARENT
        return CHILD if self.below is not None and sender in self.below.children else STRANGER

    def _hear(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        """A parent's model may arrive before the message that there is another root, or arrive late."""
        message = event.message
        if type(message) is ModelChunk and event.sender == self.parent and self.state is not LEFT:
            if message.generation > self.generation:
                self._follow(message.generation, actions)
            elif (message.generation, message.round) < (self.generation, self.round):
                self._ask_once(event, now, actions)
        super()._hear(event, now, actions)

    def _ask_once(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        """Report this worker's round to a parent that sends a model of a past round.

        The model may have been on its way. Or an earlier message was wrong, and no later model would ever be new here.
        Then the report reaches the root, which takes a higher generation.
        """
        if not self._has_asked and self.state is not JOINING:
            self._has_asked = True
            self._say_hello(event, now, actions)

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        assert isinstance(message, ModelChunk | ShareChunk)
        return self.settings.is_chunk(message.index, len(data))

    def _say(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        actions.append(Transmit(to=self.parent, message=message))

    # -- joining and leaving

    def _say_hello(self, event: object, now: float, actions: list[AnyAction]) -> None:
        self._attendance.say_hello(self.generation, self.round, actions)

    def _on_welcome(self, welcome: Welcome, parent: int, now: float, actions: list[AnyAction]) -> None:
        self.state = WAITING
        self._on_welcome_again(welcome, parent, now, actions)

    def _on_welcome_again(self, welcome: Welcome, parent: int, now: float, actions: list[AnyAction]) -> None:
        """Also after JOINING: the model of the current round was quicker, or there is another root now."""
        if welcome.generation != self.generation:
            self._follow(welcome.generation, actions)
        self._was_in = True
        self._attendance.welcomed(welcome)
        self._say_what_was_seen(actions)
        self._say_ready(now, actions)

    def _say_what_was_seen(self, actions: list[AnyAction]) -> None:
        if self.state is not JOINING:
            self._attendance.say_what_was_seen(self.generation, self.round, actions)

    def _follow(self, generation: int, actions: list[AnyAction]) -> None:
        """Follow another root, at any round: drop the state of the old one."""
        self.generation = generation
        self.state = WAITING
        self.round = 0
        self._stop("there is another root", actions)
        self.delivering.drop()
        self._queued = None
        if self.below is not None:
            self.below.adopt(generation, actions)

    def _say_ready(self, now: float, actions: list[AnyAction]) -> None:
        if self.state is not JOINING:
            self._attendance.say_ready(self.generation, now, actions)

    def _on_refuse(self, refuse: Refuse, parent: int, now: float, actions: list[AnyAction]) -> None:
        """A worker that had joined has the run's plan: only the root may refuse it, no other worker."""
        if self._was_in and parent != 0:
            self._object(parent, f"Refuse, which only the root may send: {refuse.reason[:200]}", actions)
            return
        self.state = LEFT
        self.refused = refuse.reason
        actions.append(Finished(reason=refuse.reason))

    def _on_peer_found(self, event: PeerFound, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self.delivering.connection_is_new()
            self._has_parent = True
            self.state = JOINING
            self._reload = True
            self._stop("the connection to the parent is new", actions)
            self._say_hello(event, now, actions)

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self.delivering.connection_is_new()
            self._has_parent = False
            if self._leaving is not None:
                self._leave(self._leaving, actions)
        elif self.below is not None:
            self.below.lost(event.peer)
            self._say_ready(now, actions)

    def _on_goodbye(self, goodbye: Goodbye, parent: int, now: float, actions: list[AnyAction]) -> None:
        self._leave(self._leaving or goodbye.reason, actions)

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        """Leave at once; or after this round, when the parent no longer needs this worker and sends `Goodbye`."""
        if not event.at_once and self.state is not JOINING and self._has_parent:
            self._leaving = event.reason
            self._say(Leaving(generation=self.generation, round=self.round, reason=event.reason[:1000]), actions)
            return
        self._say(Goodbye(generation=self.generation, round=self.round, reason=event.reason[:1000]), actions)
        self._leave(event.reason, actions)

    def _leave(self, reason: str, actions: list[AnyAction]) -> None:
        self._stop(reason, actions)
        if self.below is not None and self._leaving is None:  # else another process may take its place
            goodbye = Goodbye(generation=self.generation, round=self.round, reason=reason[:1000])
            self.below.tell_all(goodbye, actions)
        self.state = LEFT
        actions.append(Finished(reason=reason))

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self.delivering.drained(actions)
        elif self.below is not None:
            self.below.drained(event.peer, actions)

    # -- a new model supersedes everything

    def _on_model_chunk(
        self, chunk: ModelChunk, parent: int, data: Vector, now: float, actions: list[AnyAction]
    ) -> None:
        if chunk.round > self.round or (chunk.round == self.round and self._reload):
            self._again = chunk.round == self.round
            self._begin_loading(chunk.round, data, now, actions)
        if chunk.round != self.round or self.state is not LOADING:
            return
        for index in self._loading.take(chunk.index, data):
            if self.below is not None:  # cut-through: forward a chunk as soon as it arrives
                self.below.send_model(self._loading.model, (index,), actions)
        if self._loading.is_whole:
            self.state = WORKING
            self.delivering.can_compute(now)
            if self._again and self.below is not None:  # children do not begin again: they may have delivered
                self.below.ask_all_for(self.first_task, now, actions)
            self._compute(actions)

    def _begin_loading(self, round_: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        self._stop("a new model has arrived", actions)
        self.round = round_
        self._reload = self._has_asked = False
        self.delivering.drop()
        self._queued = None
        self._loading.begin(data)
        self.state = LOADING
        self._begin_task(self.first_task, push=True, now=now)
        if self.below is not None:
            self.below.new_round(round_)
            self.below.let_go(actions)
            self.below.ledger.start(self.first_task, now)

    def _stop(self, reason: str, actions: list[AnyAction]) -> None:
        if self._computing:
            self._computing = False
            actions.append(Cancel(reason=reason))

    # -- computing and delivering a task

    def _begin_task(self, task: int, *, push: bool, now: float) -> None:
        self._unable = None
        self.delivering.begin(task, self.generation, self.round, push=push, now=now)

    def _compute(self, actions: list[AnyAction]) -> None:
        task = self.delivering.task
        if task not in self._pieces:
            self._pieces[task] = self.plan.unit(self.node, task).pieces
        self._computing = True
        model, pieces = self._loading.model, self._pieces[task]
        actions.append(Compute(round=self.round, task=task, pieces=pieces, model=model, salvage=self._salvages))

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if not self._is_under_way(event):
            self._on_old_result(event, now, actions)
            return
        self._computing = False
        self.delivering.add_own(event.vector, now, actions)
        self._deliver(now, actions)

    def _is_under_way(self, event: Computed | Failed) -> bool:
        return self._computing and event.round == self.round and event.task == self.delivering.task

    def _on_old_result(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        """Live compensation adds what was finished of the last round to this one. Other schemes drop it."""
        if self._salvages and event.covered > 0 and event.round == self.round - 1:
            self.delivering.send_part(event.vector, event.round, event.task, event.covered, actions)

    # -- failures

    def _on_failed(self, event: Failed, now: float, actions: list[AnyAction]) -> None:
        """Ask a child for this worker's own unit, or let the parent ask another worker for its task."""
        self._say_failed(event, now, actions)
        trouble = (self.node, event.reason[:400])
        if not self._is_under_way(event):
            return
        self._computing = False
        collecting = self.delivering.collecting
        if collecting is None or collecting.ledger.shares.own is None:
            self._give_up((trouble,), now, actions)
        else:
            self._say_if_lost(collecting.own_failed(trouble, now, actions), actions)

    def _say_failed(self, event: Failed, now: float, actions: list[AnyAction]) -> None:
        """Report a failure even if the result is no longer needed: an operator should check this worker."""
        troubles = ((self.node, event.reason[:400]),)
        self._say(Failure(generation=self.generation, round=event.round, troubles=troubles), actions)

    def _on_unable(self, unable: Unable, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        troubles = self.below.unable(unable, child, now, actions)
        if troubles and self.plan.has_redundancy:
            self._say_if_lost(troubles, actions)
        elif troubles:
            self._stop("children failed at too many shares", actions)
            self._give_up(troubles, now, actions)

    def _on_failure(self, failure: Failure, child: int, now: float, actions: list[AnyAction]) -> None:
        self._say(failure, actions)

    def _say_if_lost(self, troubles: tuple[Trouble, ...], actions: list[AnyAction]) -> None:
        """Report a share that failed at two nodes: it would fail everywhere, and the root ends the run."""
        if troubles:
            failure = Failure(generation=self.generation, round=self.round, troubles=troubles[:16], ends=True)
            self._say(failure, actions)

    def _give_up(self, troubles: tuple[Trouble, ...], now: float, actions: list[AnyAction]) -> None:
        """Report that this worker cannot do the task: perhaps another can."""
        self._unable = Unable(
            generation=self.generation, round=self.round, task=self.delivering.task, troubles=troubles[:16]
        )
        self._say(self._unable, actions)
        self.delivering.give_up(now, actions)
        self._rest(now, actions)

    # -- what children deliver

    def _on_idle_share_chunk(
        self, chunk: ShareChunk, child: int, data: Vector, now: float, actions: list[AnyAction]
    ) -> None:
        """Take a share while this worker sums nothing: keep it if it will be needed."""
        assert self.below is not None
        self.below.share_chunk(chunk, child, data, now, actions)

    def _on_share_chunk(
        self, chunk: ShareChunk, child: int, data: Vector, now: float, actions: list[AnyAction]
    ) -> None:
        assert self.below is not None
        if not self.below.share_chunk(chunk, child, data, now, actions):
            return
        if self.delivering.takes_own_from_child():
            self._stop("a child delivered this node's own unit", actions)
        self._deliver(now, actions)

    def _on_offer(self, offer: Offer, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        brings_on = self.below.offer(offer, child, now, actions)
        if brings_on and self.state is WORKING and self.delivering.collecting is not None:
            self.delivering.offer_early(now, actions)

    def _deliver(self, now: float, actions: list[AnyAction]) -> None:
        if self.delivering.go_on(now, actions):
            self._rest(now, actions)

    # -- requests of the parent

    def _on_next(self, message: Next, parent: int, now: float, actions: list[AnyAction]) -> None:
        if message.round != self.round:
            return
        if message.task == self.delivering.task and self._is_at_it:
            if self._unable is not None:
                self._say(self._unable, actions)
            self.delivering.repeat(now, actions, push=message.push)
        elif not self.plan.may_be_asked(self.node, message.task):
            self._object(parent, f"Next for task {message.task}, which it cannot compute", actions, kind="unreadable")
        elif self.state is WORKING and self.delivering.is_pushed:
            self._queued = message  # finish the current task first: the parent expects its sum
        else:
            self._turn_to(message, now, actions)

    @property
    def _is_at_it(self) -> bool:
        """Whether the task is still current: not dropped because another node had delivered it."""
        return self.state is WORKING or self.delivering.is_done or self._unable is not None

    def _turn_to(self, asked: Next, now: float, actions: list[AnyAction]) -> None:
        self._stop("the parent asked for another share", actions)
        self._begin_task(asked.task, push=asked.push, now=now)
        self.state = WORKING
        if self.delivering.collecting is not None:
            self.delivering.collecting.ask_all_for(asked.task, now, actions)
        elif self.below is not None:
            self.below.ledger.clear()
        self._compute(actions)

    def _rest(self, now: float, actions: list[AnyAction]) -> None:
        """Rest, unless the parent has asked for more in the meantime."""
        self.state = RESTING
        if self._queued is not None:
            queued, self._queued = self._queued, None
            self._turn_to(queued, now, actions)

    def _on_enough(self, enough: Enough, parent: int, now: float, actions: list[AnyAction]) -> None:
        if enough.round != self.round or self._salvages:
            return  # in live compensation the next model interrupts the work, and finished pieces still count
        if self._queued is not None and enough.task == self._queued.task:
            self._queued = None
        if enough.task != self.delivering.task:
            return
        self._stop("another node delivered this share", actions)
        self.delivering.give_up(now, actions)
        self._rest(now, actions)

    def _on_send(self, send: Send, parent: int, now: float, actions: list[AnyAction]) -> None:
        if send.round == self.round and send.task == self.delivering.task:
            self.delivering.send(send.chunks, now, actions)

    def _on_settle(self, settle: Settle, parent: int, now: float, actions: list[AnyAction]) -> None:
        collecting = self.delivering.collecting
        if settle.round != self.round or self.state is RESTING or collecting is None:
            return
        self._settling = self.round
        collecting.tell_all(Settle(generation=self.generation, round=self.round), actions)
        height = self.plan.tree.depth - self.plan.tree.level(self.node) - 1
        actions.append(SetTimer(name=SETTLE, at=now + self.settings.to_settle(height)))

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == MISSING:
            self._attendance.say_missing(self.generation, actions, is_in=self.state is not JOINING)
        delivering, collecting = self.delivering, self.delivering.collecting
        if self.state is not WORKING or collecting is None:
            return
        if event.name == REDUNDANCY:
            collecting.ask_replicas(now, actions)
        elif event.name == SETTLE and self._settling == self.round and not delivering.has_summed:
            result, covered = collecting.ledger.shares.settle(delivering.total)
            if result is not None:
                delivering.send_part(result, self.round, delivering.task, covered, actions)

    # -- messages of children

    def _on_hello(self, hello: Hello, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        if self._attendance.child_came(hello):
            self._say_what_was_seen(actions)
        is_needed = self.state in (LOADING, WORKING) and self.delivering.task == self.first_task
        is_needed = is_needed and not self.below.ledger.shares.satisfied
        if self.below.hello(hello, child, actions, is_needed=is_needed):
            self.below.send_model(self._loading.model, range(self._loading.in_order), actions, to=child)

    def _on_ready(self, ready: Ready, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        if self.below.roster.ready(child, tuple(filter(self.plan.is_worker, ready.missing))):
            self._say_ready(now, actions)

    def _on_child_goodbye(self, goodbye: Goodbye, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        self.below.goodbye(goodbye, child, actions)
        self._say_ready(now, actions)

    def _on_child_leaving(self, leaving: Leaving, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        self.below.leaving(leaving, child, actions, at_once=self.state in (JOINING, WAITING, RESTING))

    def _on_late(self, late: Late, child: int, now: float, actions: list[AnyAction]) -> None:
        if self.plan.is_worker(late.node):
            self._say(late, actions)

    def _on_interrupted(self, event: ComputationStopped, now: float, actions: list[AnyAction]) -> None:
        """Report to the root how much longer it would have waited for this worker's own share."""
        if event.task == self.first_task:
            seconds = max(0.0, event.seconds)
            self._say(Late(generation=self.generation, round=event.round, node=self.node, seconds=seconds), actions)

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        if self.below is not None:
            self.below.check()
        self.delivering.check(len(self._pieces) + 1)
