"""A worker: takes models from its parent, computes, collects from its children if it has any, and delivers."""

from __future__ import annotations

from codedreduce.protocol.core.events import (
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
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.attendance import Attendance
from codedreduce.protocol.tree.collecting import Collecting
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
        self.below = Collecting(self._actions, node, plan, settings) if plan.tree.children(node) else None
        self.delivering = Delivering(self._actions, node, plan, settings, self.below)
        self._attendance = Attendance(self._actions, node, plan, settings, self.below)
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

    def _role_of(self, sender: int) -> From:
        if sender == self.parent:
            return PARENT
        return CHILD if self.below is not None and sender in self.below.children else STRANGER

    def _hear(self, event: Received, now: float) -> None:
        """A parent's model may arrive before the message that there is another root, or arrive late."""
        message = event.message
        if type(message) is ModelChunk and event.sender == self.parent and self.state is not LEFT:
            if message.generation > self.generation:
                self._follow(message.generation)
            elif (message.generation, message.round) < (self.generation, self.round):
                self._ask_once(event, now)
        super()._hear(event, now)

    def _ask_once(self, event: Received, now: float) -> None:
        """Report this worker's round to a parent that sends a model of a past round.

        The model may have been on its way. Or an earlier message was wrong, and no later model would ever be new here.
        Then the report reaches the root, which takes a higher generation.
        """
        if not self._has_asked and self.state is not JOINING:
            self._has_asked = True
            self._say_hello(event, now)

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        assert isinstance(message, ModelChunk | ShareChunk)
        return self.settings.is_chunk(message.index, len(data))

    def _say(self, message: AnyMessage) -> None:
        self._actions.append(Transmit(to=self.parent, message=message))

    # -- joining and leaving

    def _say_hello(self, event: object, now: float) -> None:
        self._attendance.say_hello(self.generation, self.round)

    def _on_welcome(self, welcome: Welcome, parent: int, now: float) -> None:
        self.state = WAITING
        self._on_welcome_again(welcome, parent, now)

    def _on_welcome_again(self, welcome: Welcome, parent: int, now: float) -> None:
        """Also after JOINING: the model of the current round was quicker, or there is another root now."""
        if welcome.generation != self.generation:
            self._follow(welcome.generation)
        self._was_in = True
        self._attendance.welcomed(welcome)
        self._say_what_was_seen()
        self._say_ready(now)

    def _say_what_was_seen(self) -> None:
        if self.state is not JOINING:
            self._attendance.say_what_was_seen(self.generation, self.round)

    def _follow(self, generation: int) -> None:
        """Follow another root, at any round: drop the state of the old one."""
        self.generation = generation
        self.state = WAITING
        self.round = 0
        self._stop("there is another root")
        self.delivering.outbox.clear()
        self._queued = None
        if self.below is not None:
            self.below.adopt(generation)

    def _say_ready(self, now: float) -> None:
        if self.state is not JOINING:
            self._attendance.say_ready(self.generation, now)

    def _on_refuse(self, refuse: Refuse, parent: int, now: float) -> None:
        """A worker that had joined has the run's plan: only the root may refuse it, no other worker."""
        if self._was_in and parent != 0:
            self._object(parent, f"Refuse, which only the root may send: {refuse.reason[:200]}")
            return
        self.state = LEFT
        self.refused = refuse.reason
        self._actions.append(Finished(reason=refuse.reason))

    def _on_peer_found(self, event: PeerFound, now: float) -> None:
        if event.peer == self.parent:
            self.delivering.outbox.reset()
            self._has_parent = True
            self.state = JOINING
            self._reload = True
            self._stop("the connection to the parent is new")
            self._say_hello(event, now)

    def _on_peer_lost(self, event: PeerLost, now: float) -> None:
        if event.peer == self.parent:
            self.delivering.outbox.reset()
            self._has_parent = False
            if self._leaving is not None:
                self._leave(self._leaving)
        elif self.below is not None:
            self.below.lost(event.peer)
            self._say_ready(now)

    def _on_goodbye(self, goodbye: Goodbye, parent: int, now: float) -> None:
        self._leave(self._leaving or goodbye.reason)

    def _on_leave(self, event: Leave, now: float) -> None:
        """Leave at once; or after this round, when the parent no longer needs this worker and sends `Goodbye`."""
        if not event.at_once and self.state is not JOINING and self._has_parent:
            self._leaving = event.reason
            self._say(Leaving(generation=self.generation, round=self.round, reason=event.reason[:1000]))
            return
        self._say(Goodbye(generation=self.generation, round=self.round, reason=event.reason[:1000]))
        self._leave(event.reason)

    def _leave(self, reason: str) -> None:
        self._stop(reason)
        if self.below is not None and self._leaving is None:  # else another process may take its place
            goodbye = Goodbye(generation=self.generation, round=self.round, reason=reason[:1000])
            self.below.tell_all(goodbye)
        self.state = LEFT
        self._actions.append(Finished(reason=reason))

    def _on_drained(self, event: Drained, now: float) -> None:
        if event.peer == self.parent:
            self.delivering.outbox.drained()
        elif self.below is not None:
            self.below.drained(event.peer)

    # -- a new model supersedes everything

    def _on_model_chunk(self, chunk: ModelChunk, parent: int, data: Vector, now: float) -> None:
        if chunk.round > self.round or (chunk.round == self.round and self._reload):
            self._again = chunk.round == self.round
            self._begin_loading(chunk.round, data, now)
        if chunk.round != self.round or self.state is not LOADING:
            return
        for index in self._loading.take(chunk.index, data):
            if self.below is not None:  # cut-through: forward a chunk as soon as it arrives
                self.below.send_model(self._loading.model, (index,))
        if self._loading.is_whole:
            self.state = WORKING
            self.delivering.can_compute(now)
            if self._again and self.below is not None:  # children do not begin again: they may have delivered
                self.below.ask_all_for(self.first_task, now)
            self._compute()

    def _begin_loading(self, round_: int, data: Vector, now: float) -> None:
        self._stop("a new model has arrived")
        self.round = round_
        self._reload = self._has_asked = False
        self.delivering.outbox.clear()
        self._queued = None
        self._loading.begin(data)
        self.state = LOADING
        self._begin_task(self.first_task, push=True, now=now)
        if self.below is not None:
            self.below.new_round(round_)
            self.below.let_go()
            self.below.ledger.start(self.first_task, now)

    def _stop(self, reason: str) -> None:
        if self._computing:
            self._computing = False
            self._actions.append(Cancel(reason=reason))

    # -- computing and delivering a task

    def _begin_task(self, task: int, *, push: bool, now: float) -> None:
        self._unable = None
        self.delivering.begin(task, self.generation, self.round, push=push, now=now)

    def _compute(self) -> None:
        task = self.delivering.task
        if task not in self._pieces:
            self._pieces[task] = self.plan.unit(self.node, task).pieces
        self._computing = True
        model, pieces = self._loading.model, self._pieces[task]
        self._actions.append(Compute(round=self.round, task=task, pieces=pieces, model=model, salvage=self._salvages))

    def _on_computed(self, event: Computed, now: float) -> None:
        if not self._is_under_way(event):
            self._on_old_result(event, now)
            return
        self._computing = False
        self.delivering.add_own(event.vector, now)
        self._deliver(now)

    def _is_under_way(self, event: Computed | Failed) -> bool:
        return self._computing and event.round == self.round and event.task == self.delivering.task

    def _on_old_result(self, event: Computed, now: float) -> None:
        """Live compensation adds what was finished of the last round to this one. Other schemes drop it."""
        if self._salvages and event.covered > 0 and event.round == self.round - 1:
            self.delivering.send_part(event.vector, event.round, event.task, event.covered)

    # -- failures

    def _on_failed(self, event: Failed, now: float) -> None:
        """Ask a child for this worker's own unit, or let the parent ask another worker for its task."""
        self._say_failed(event, now)
        trouble = (self.node, event.reason[:400])
        if not self._is_under_way(event):
            return
        self._computing = False
        collecting = self.delivering.collecting
        if collecting is None or collecting.ledger.shares.own is None:
            self._give_up((trouble,), now)
        else:
            self._say_if_lost(collecting.own_failed(trouble, now))

    def _say_failed(self, event: Failed, now: float) -> None:
        """Report a failure even if the result is no longer needed: an operator should check this worker."""
        troubles = ((self.node, event.reason[:400]),)
        self._say(Failure(generation=self.generation, round=event.round, troubles=troubles))

    def _on_unable(self, unable: Unable, child: int, now: float) -> None:
        assert self.below is not None
        troubles = self.below.unable(unable, child, now)
        if troubles and self.plan.has_redundancy:
            self._say_if_lost(troubles)
        elif troubles:
            self._stop("children failed at too many shares")
            self._give_up(troubles, now)

    def _on_failure(self, failure: Failure, child: int, now: float) -> None:
        self._say(failure)

    def _say_if_lost(self, troubles: tuple[Trouble, ...]) -> None:
        """Report a share that failed at two nodes: it would fail everywhere, and the root ends the run."""
        if troubles:
            failure = Failure(generation=self.generation, round=self.round, troubles=troubles[:16], ends=True)
            self._say(failure)

    def _give_up(self, troubles: tuple[Trouble, ...], now: float) -> None:
        """Report that this worker cannot do the task: perhaps another can."""
        self._unable = Unable(
            generation=self.generation, round=self.round, task=self.delivering.task, troubles=troubles[:16]
        )
        self._say(self._unable)
        self.delivering.give_up(now)
        self._rest(now)

    # -- what children deliver

    def _on_idle_share_chunk(self, chunk: ShareChunk, child: int, data: Vector, now: float) -> None:
        """Take a share while this worker sums nothing: keep it if it will be needed."""
        assert self.below is not None
        self.below.share_chunk(chunk, child, data, now)

    def _on_share_chunk(self, chunk: ShareChunk, child: int, data: Vector, now: float) -> None:
        assert self.below is not None
        if not self.below.share_chunk(chunk, child, data, now):
            return
        if self.delivering.takes_own_from_child():
            self._stop("a child delivered this node's own unit")
        self._deliver(now)

    def _on_offer(self, offer: Offer, child: int, now: float) -> None:
        assert self.below is not None
        brings_on = self.below.offer(offer, child, now)
        if brings_on and self.state is WORKING and self.delivering.collecting is not None:
            self.delivering.offer_early(now)

    def _deliver(self, now: float) -> None:
        if self.delivering.go_on(now):
            self._rest(now)

    # -- requests of the parent

    def _on_next(self, message: Next, parent: int, now: float) -> None:
        if message.round != self.round:
            return
        if message.task == self.delivering.task and self._is_at_it:
            if self._unable is not None:
                self._say(self._unable)
            self.delivering.repeat(now, push=message.push)
        elif not self.plan.may_be_asked(self.node, message.task):
            self._object(parent, f"Next for task {message.task}, which it cannot compute", kind="unreadable")
        elif self.state is WORKING and self.delivering.is_pushed:
            self._queued = message  # finish the current task first: the parent expects its sum
        else:
            self._turn_to(message, now)

    @property
    def _is_at_it(self) -> bool:
        """Whether the task is still current: not dropped because another node had delivered it."""
        return self.state is WORKING or self.delivering.is_done or self._unable is not None

    def _turn_to(self, asked: Next, now: float) -> None:
        self._stop("the parent asked for another share")
        self._begin_task(asked.task, push=asked.push, now=now)
        self.state = WORKING
        if self.delivering.collecting is not None:
            self.delivering.collecting.ask_all_for(asked.task, now)
        elif self.below is not None:
            self.below.ledger.clear()
        self._compute()

    def _rest(self, now: float) -> None:
        """Rest, unless the parent has asked for more in the meantime."""
        self.state = RESTING
        if self._queued is not None:
            queued, self._queued = self._queued, None
            self._turn_to(queued, now)

    def _on_enough(self, enough: Enough, parent: int, now: float) -> None:
        if enough.round != self.round or self._salvages:
            return  # in live compensation the next model interrupts the work, and finished pieces still count
        if self._queued is not None and enough.task == self._queued.task:
            self._queued = None
        if enough.task != self.delivering.task:
            return
        self._stop("another node delivered this share")
        self.delivering.give_up(now)
        self._rest(now)

    def _on_send(self, send: Send, parent: int, now: float) -> None:
        if send.round == self.round and send.task == self.delivering.task:
            self.delivering.send(send.chunks, now)

    def _on_settle(self, settle: Settle, parent: int, now: float) -> None:
        collecting = self.delivering.collecting
        if settle.round != self.round or self.state is RESTING or collecting is None:
            return
        self._settling = self.round
        collecting.tell_all(Settle(generation=self.generation, round=self.round))
        height = self.plan.tree.depth - self.plan.tree.level(self.node) - 1
        self._actions.append(SetTimer(name=Timer.SETTLE, at=now + self.settings.to_settle(height)))

    def _on_timer(self, event: TimerFired, now: float) -> None:
        if event.name == Timer.MISSING:
            self._attendance.say_missing(self.generation, is_in=self.state is not JOINING)
        delivering, collecting = self.delivering, self.delivering.collecting
        if self.state is not WORKING or collecting is None:
            return
        if event.name == Timer.REDUNDANCY:
            collecting.ask_replicas(now)
        elif event.name == Timer.SETTLE and self._settling == self.round and not delivering.has_summed:
            result, covered = collecting.ledger.shares.settle(delivering.total)
            if result is not None:
                delivering.send_part(result, self.round, delivering.task, covered)

    # -- messages of children

    def _on_hello(self, hello: Hello, child: int, now: float) -> None:
        assert self.below is not None
        if self._attendance.child_came(hello):
            self._say_what_was_seen()
        is_needed = self.state in (LOADING, WORKING) and self.delivering.task == self.first_task
        is_needed = is_needed and not self.below.ledger.shares.satisfied
        if self.below.hello(hello, child, is_needed=is_needed):
            self.below.send_model(self._loading.model, range(self._loading.in_order), to=child)

    def _on_ready(self, ready: Ready, child: int, now: float) -> None:
        assert self.below is not None
        if self.below.roster.ready(child, tuple(filter(self.plan.is_worker, ready.missing))):
            self._say_ready(now)

    def _on_child_goodbye(self, goodbye: Goodbye, child: int, now: float) -> None:
        assert self.below is not None
        self.below.goodbye(goodbye, child)
        self._say_ready(now)

    def _on_child_leaving(self, leaving: Leaving, child: int, now: float) -> None:
        assert self.below is not None
        self.below.leaving(leaving, child, at_once=self.state in (JOINING, WAITING, RESTING))

    def _on_late(self, late: Late, child: int, now: float) -> None:
        if self.plan.is_worker(late.node):
            self._say(late)

    def _on_interrupted(self, event: ComputationStopped, now: float) -> None:
        """Report to the root how much longer it would have waited for this worker's own share."""
        if event.task == self.first_task:
            seconds = max(0.0, event.seconds)
            self._say(Late(generation=self.generation, round=event.round, node=self.node, seconds=seconds))

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        if self.below is not None:
            self.below.check()
        self.delivering.check(len(self._pieces) + 1)
