"""A worker: takes models from its parent, computes, collects from its children if it has any, and delivers."""

from __future__ import annotations

import numpy as np

from codedreduce.protocol.events import (
    AnyAction,
    Cancel,
    Compute,
    Computed,
    Drained,
    Finished,
    Interrupted,
    Leave,
    Note,
    PeerFound,
    PeerLost,
    Received,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
    Vector,
)
from codedreduce.protocol.machine import Row, State
from codedreduce.protocol.messages import (
    AnyMessage,
    Enough,
    Goodbye,
    Heartbeat,
    Hello,
    Late,
    ModelChunk,
    Next,
    Offer,
    Ready,
    Refuse,
    Send,
    Settle,
    ShareChunk,
    Welcome,
)
from codedreduce.protocol.outbox import Outbox
from codedreduce.protocol.parent import REDUNDANCY, Parent
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import LiveCompensation, TreePlan

#: The timer after which a worker that was asked to settle sends what it has.
SETTLE = "settle"


class WorkerState(State):
    """Where a worker stands."""

    JOINING = "has said hello"
    WAITING = "waits for a model"
    LOADING = "a model is coming in"
    WORKING = "computes and collects"
    RESTING = "has delivered, or is not needed"
    LEFT = "has left"


JOINING, WAITING, LOADING, WORKING, RESTING, LEFT = WorkerState
_IN = (JOINING, WAITING, LOADING, WORKING, RESTING)
_IN_ROUND = (LOADING, WORKING, RESTING)


class Worker(Parent):
    """The state machine of a worker; a leaf is a worker without children."""

    ROWS = (
        Row((JOINING,), Started, "_say_hello", (JOINING,)),
        Row((JOINING,), Welcome, "_on_welcome", (WAITING,)),
        Row((JOINING,), Refuse, "_on_refuse", (LEFT,)),
        Row((JOINING, WAITING), ModelChunk, "_on_model_chunk", (LOADING, WORKING, WAITING, JOINING)),
        Row(_IN_ROUND, ModelChunk, "_on_model_chunk", (LOADING, WORKING, RESTING)),
        Row((WORKING,), Computed, "_on_computed", (WORKING, RESTING)),
        *(Row((state,), Computed, "_on_computed", (state,)) for state in (JOINING, WAITING, LOADING, RESTING)),
        Row((WORKING,), ShareChunk, "_on_share_chunk", (WORKING, RESTING)),
        *(Row((state,), ShareChunk, "_on_share_chunk", (state,)) for state in (JOINING, WAITING, LOADING, RESTING)),
        *(Row((state,), Offer, "_on_offer", (state,)) for state in _IN),
        Row((WORKING, RESTING), Next, "_on_next", (WORKING, RESTING)),
        Row((WORKING, RESTING), Enough, "_on_enough", (WORKING, RESTING)),
        *(Row((state,), Send, "_on_send", (state,)) for state in (WORKING, RESTING)),
        *(Row((state,), Settle, "_on_settle", (state,)) for state in _IN_ROUND),
        *(Row((state,), TimerFired, "_on_timer", (state,)) for state in _IN),
        *(Row((state,), Hello, "_on_hello", (state,)) for state in _IN),
        *(Row((state,), Ready, "_on_ready", (state,)) for state in _IN),
        *(Row((state,), Late, "_on_late", (state,)) for state in _IN),
        *(Row((state,), Interrupted, "_on_interrupted", (state,)) for state in _IN),
        Row((LEFT,), Interrupted, "_nothing", (LEFT,)),
        *(Row((state,), Heartbeat, "_nothing", (state,)) for state in _IN),
        Row(_IN, PeerFound, "_on_peer_found", _IN),
        *(Row((state,), PeerLost, "_on_peer_lost", (state,)) for state in _IN),
        *(Row((state,), Drained, "_on_drained", (state,)) for state in _IN),
        Row(_IN, Goodbye, "_on_goodbye", (*_IN, LEFT)),
        Row(_IN, Leave, "_on_leave", (LEFT,)),
        *(
            Row((LEFT,), trigger, "_nothing", (LEFT,))
            for trigger in (Computed, TimerFired, PeerFound, PeerLost, Drained)
        ),
    )

    def __init__(self, node: int, plan: TreePlan, settings: Settings) -> None:
        super().__init__(node, plan, settings)
        self.state: WorkerState = JOINING
        self.parent = plan.tree.parent(node)
        self.up = Outbox(self.parent, settings.window)
        self.first_task = next(plan.tasks(node))
        self.task = self.first_task
        self.push = True
        self.own: Vector | None = None  # what this worker computed; turns into the sum, chunk by chunk
        self._offers = plan.scheme.order == "progressive" and plan.scheme.stragglers > 0 and settings.announce
        self._offered = False
        self._queued: Next | None = None
        self._salvage = isinstance(plan.scheme, LiveCompensation)
        self._pieces = {self.first_task: plan.unit(node, self.first_task).pieces}
        self._computing = False
        self._here: list[bool] = []  # which chunks of the model are here
        self._reload = False  # the connection is new, and the model of this round may come again
        self.refused: str | None = None

    # -- joining and leaving

    def _nothing(self, event: object, now: float, actions: list[AnyAction]) -> None:
        """Nothing to do."""

    def _say(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        actions.append(Transmit(to=self.parent, message=message))

    def _say_hello(self, event: object, now: float, actions: list[AnyAction]) -> None:
        self._say(Hello(generation=self.generation, plan=self.run_name()), actions)

    def _on_welcome(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        self.state = WAITING
        self._say_ready(actions)

    def _say_ready(self, actions: list[AnyAction]) -> None:
        if self.state is not JOINING and len(self.ready) == len(self.children):
            self._say(Ready(generation=self.generation), actions)

    def _on_ready(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        if event.sender in self.present and event.sender not in self.ready:
            self.ready.add(event.sender)
            self._say_ready(actions)

    def _on_refuse(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Refuse)
        self.state = LEFT
        self.refused = message.reason
        actions.append(Finished(reason=message.reason))

    def _on_peer_found(self, event: PeerFound, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self.up.reset()
            self.state = JOINING
            self._reload = True
            self._stop("the connection to the parent is new", actions)
            self._say_hello(event, now, actions)

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self.up.reset()
        super()._on_peer_lost(event, now, actions)

    def _on_goodbye(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Goodbye)
        if event.sender == self.parent:
            self._leave(message.reason, actions)
        else:
            self._on_child_goodbye(event, now, actions)

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        self._say(Goodbye(generation=self.generation, round=self.round, reason=event.reason), actions)
        self._leave(event.reason, actions)

    def _leave(self, reason: str, actions: list[AnyAction]) -> None:
        self._stop(reason, actions)
        for child in sorted(self.present):
            message = Goodbye(generation=self.generation, round=self.round, reason=reason)
            actions.append(Transmit(to=child, message=message))
        self.state = LEFT
        actions.append(Finished(reason=reason))

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self.up.drained(actions)
        else:
            super()._on_drained(event, now, actions)

    # -- a new model supersedes everything

    def _on_model_chunk(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, ModelChunk)
        assert event.data is not None
        if (
            event.sender != self.parent
            or message.round < self.round
            or (message.round == self.round and self.model is None and not self._reload)
        ):
            return
        if message.round > self.round or self._reload:
            self._reload = False
            self._new_round(message.round)
            self._stop("a new model has come", actions)
            self.up.clear()
            self.state = LOADING
            one = self.settings.chunks == 1
            self.model = event.data if one else np.empty(self.settings.length, dtype=event.data.dtype)
            self._here = [False] * self.settings.chunks
            self.model_chunks = 0
            self._queued = None
            self._begin_task(self.first_task, push=True, now=now)
        index = message.index
        assert self.model is not None
        if self.state is not LOADING or self._here[index]:
            return
        self._here[index] = True
        if self.settings.chunks > 1:
            self.model[self.settings.chunk_slice(index)] = event.data
        while self.model_chunks < self.settings.chunks and self._here[self.model_chunks]:
            for child in self.children:  # cut through: a chunk goes on as soon as it is here
                if child in self.present:
                    self._put_model_chunk(child, self.model_chunks, actions)
            self.model_chunks += 1
        if self.model_chunks == self.settings.chunks:
            self.state = WORKING
            self._compute(actions)

    def _collecting_first(self) -> bool:
        return self.state in (LOADING, WORKING) and self.task == self.first_task

    def _stop(self, reason: str, actions: list[AnyAction]) -> None:
        if self._computing:
            self._computing = False
            actions.append(Cancel(reason=reason))

    # -- computing and delivering a task

    def _begin_task(self, task: int, *, push: bool, now: float) -> None:
        self.task = task
        self.push = push
        self.own = None
        self._offered = False
        self._next_chunk = 0
        if self._collects:
            self._start_collecting(task, now)
        elif self.children:
            self.collector.clear()

    @property
    def _collects(self) -> bool:
        """Whether the task needs something from the children: a unit done in the parent's place does not."""
        return bool(self.children) and self.task <= self.plan.workers

    def _compute(self, actions: list[AnyAction]) -> None:
        assert self.model is not None
        if self.task not in self._pieces:
            self._pieces[self.task] = self.plan.unit(self.node, self.task).pieces
        self._computing = True
        actions.append(
            Compute(
                round=self.round,
                task=self.task,
                pieces=self._pieces[self.task],
                model=self.model,
                salvage=self._salvage,
            )
        )

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round or event.task != self.task or self.state is not WORKING or not self._computing:
            if self._salvage and event.covered > 0 and event.round == self.round - 1:
                self._push_old(event, actions)
            return
        self._computing = False
        self.own = event.vector
        if self._collects:
            self._own_is_here(now, actions)
        self._deliver(now, actions)

    def _own_is_here(self, now: float, actions: list[AnyAction]) -> None:
        """The own unit is computed: whoever was asked for it in the meantime can stop."""
        self.collector.own_done()
        unit = self.plan.delegated(self.task)
        for child in [child for child, task in self.collector.assigned.items() if task == unit]:
            self._enough(child, unit, now, actions)

    def _push_old(self, event: Computed, actions: list[AnyAction]) -> None:
        """Live compensation: what was finished of the last round joins this one."""
        for index in range(self.settings.chunks):
            message = ShareChunk(
                generation=self.generation, round=event.round, task=event.task, index=index, covered=event.covered
            )
            self.up.put(message, event.vector[self.settings.chunk_slice(index)], actions)

    def _shares_advanced(self, now: float, actions: list[AnyAction]) -> None:
        if self.state is not WORKING or not self._collects:
            return
        if self.own is None:
            self.own = self.collector.own_delivered()
            if self.own is not None:
                self.late.add(self.node)
                self._stop("a child delivered this node's own unit", actions)
        self._deliver(now, actions)

    def _shares_offered(self, now: float, actions: list[AnyAction]) -> None:
        if self.state is WORKING and self._collects and not self._offered:
            self._offer_early(actions)

    def _deliver(self, now: float, actions: list[AnyAction]) -> None:
        """Sum and pass on every chunk that can be, in order; when the last one is done, rest."""
        if self.own is None:
            return
        chunks = self.settings.chunks
        if self._offers and not self._offered:
            self._offer_early(actions)
        while self._next_chunk < chunks and (not self._collects or self.collector.ready(self._next_chunk)):
            if self._collects and self.collector.shares:
                self.collector.total(self._next_chunk, self.own[self.settings.chunk_slice(self._next_chunk)])
            if self.push:
                self._send_chunk(self._next_chunk, actions)
            self._next_chunk += 1
        if self._next_chunk == chunks:
            if self._collects:
                self._end_collecting(now, actions)
            if not self.push and not self._offered:
                self._offered = True
                self._say(Offer(generation=self.generation, round=self.round, task=self.task), actions)
            self._rest(now, actions)

    def _offer_early(self, actions: list[AnyAction]) -> None:
        """Tell the parent that a pushed sum is on its way: all is computed here, and below only bytes are missing."""
        if not self.push or self.own is None or not self._offers:
            return
        shares = self.collector.shares.values() if self._collects else ()
        if all(share.missing == 0 or share.offered_at is not None for share in shares):
            self._offered = True
            self._say(Offer(generation=self.generation, round=self.round, task=self.task), actions)

    def _send_chunk(self, index: int, actions: list[AnyAction], covered: float = 1.0) -> None:
        assert self.own is not None
        message = ShareChunk(
            generation=self.generation, round=self.round, task=self.task, index=index, covered=covered,
            late=tuple(sorted(self.late))[:4096],
        )  # fmt: skip
        self.up.put(message, self.own[self.settings.chunk_slice(index)], actions)

    # -- what the parent asks for

    def _on_next(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Next)
        task, push = message.task, message.push
        if event.sender != self.parent or message.round != self.round:
            return
        if task == self.task:
            self._deliver_again(push, actions)
        elif self.state is WORKING and self.push:
            self._queued = message  # first things first: the parent counts on what was offered
        else:
            self._turn_to(task, push=push, now=now, actions=actions)

    def _deliver_again(self, push: bool, actions: list[AnyAction]) -> None:
        """The parent asks for what this worker has done: something must have been lost."""
        if self._next_chunk < self.settings.chunks:
            return
        if push:
            for index in range(self.settings.chunks):
                self._send_chunk(index, actions)
        else:
            self._say(Offer(generation=self.generation, round=self.round, task=self.task), actions)

    def _turn_to(self, task: int, *, push: bool, now: float, actions: list[AnyAction]) -> None:
        self._stop("the parent asked for another share", actions)
        self._begin_task(task, push=push, now=now)
        self.state = WORKING
        for child, share in self.collector.assigned.items() if self._collects else ():
            if child in self.present:
                self._ask(child, share, push=True, actions=actions)
        self._compute(actions)

    def _rest(self, now: float, actions: list[AnyAction]) -> None:
        """Nothing is left to do, unless the parent has asked for more in the meantime."""
        self.state = RESTING
        if self._queued is not None:
            queued, self._queued = self._queued, None
            self._turn_to(queued.task, push=queued.push, now=now, actions=actions)

    def _on_enough(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Enough)
        if event.sender != self.parent or message.round != self.round or message.task != self.task:
            return
        if self._salvage:
            return  # the next model interrupts, and what is finished by then still counts
        if self.state is WORKING:
            self._stop("somebody else delivered this share", actions)
            if self._collects:
                self._end_collecting(now, actions)
            self.up.clear()
            self._rest(now, actions)

    def _on_send(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Send)
        if message.round != self.round or message.task != self.task or self._next_chunk < self.settings.chunks:
            return
        for index in message.chunks or range(self.settings.chunks):
            if index < self.settings.chunks:
                self._send_chunk(index, actions)

    def _on_settle(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        if event.message.round != self.round or self.state is RESTING or not self._collects:
            return
        for child in sorted(self.present):
            actions.append(Transmit(to=child, message=Settle(generation=self.generation, round=self.round)))
        height = self.plan.tree.depth - self.plan.tree.level(self.node) - 1
        actions.append(SetTimer(name=SETTLE, at=now + 0.1 * self.settings.say_waiting_after * height))

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == REDUNDANCY and self.state is WORKING and self._collects:
            self._ask_replicas(now, actions)
        elif event.name == SETTLE and self.state is WORKING and self._collects and self._next_chunk == 0:
            result, covered = self.collector.settle(self.own)
            if result is not None:
                for index in range(self.settings.chunks):
                    message = ShareChunk(
                        generation=self.generation, round=self.round, task=self.task, index=index, covered=covered
                    )
                    self.up.put(message, result[self.settings.chunk_slice(index)], actions)

    def _on_late(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        self._say(event.message, actions)

    def _on_interrupted(self, event: Interrupted, now: float, actions: list[AnyAction]) -> None:
        """Tell the root how much longer it would have waited for this worker's own share."""
        if event.task == self.first_task:
            late = Late(generation=self.generation, round=event.round, node=self.node, seconds=max(0.0, event.seconds))
            self._say(late, actions)

    def _late_result(self, child: int, round_: int, seconds: float, actions: list[AnyAction]) -> None:
        self._say(Late(generation=self.generation, round=round_, node=child, seconds=max(0.0, seconds)), actions)
        reason = f"node {child} was {seconds:.3f} s late in round {round_}"
        actions.append(Note(kind="late", reason=reason, round=round_, nodes=(child,), seconds=seconds))
