"""A worker: takes models from its parent, computes, collects from its children if it has any, and delivers."""

from __future__ import annotations

from codedreduce.protocol.collecting import REDUNDANCY, Collecting
from codedreduce.protocol.events import (
    AnyAction,
    Cancel,
    Compute,
    Computed,
    Drained,
    Failed,
    Finished,
    Interrupted,
    Leave,
    PeerFound,
    PeerLost,
    SetTimer,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.machine import CHILD, PARENT, STRANGER, From, Machine
from codedreduce.protocol.membership import is_ahead, run_name
from codedreduce.protocol.messages import (
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
from codedreduce.protocol.outbox import Outbox
from codedreduce.protocol.settings import Settings
from codedreduce.protocol.worker_table import JOINING, LEFT, LOADING, RESTING, ROWS, WAITING, WORKING, WorkerState
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector, empty

#: The timer after which a worker that was asked to settle sends what it has.
SETTLE = "settle"

#: The timer after which one that waits for children says who is missing, and how long that is, in seconds.
MISSING = "missing"
SAY_MISSING_AFTER = 0.5

#: So many are named; where more are missing a worker says that it is itself.
MOST_NAMED = 4096


class Worker(Machine):
    """The state machine of a worker. One with children also collects (`below`); a leaf does not."""

    ROWS = ROWS

    def __init__(self, node: int, plan: TreePlan, settings: Settings) -> None:
        super().__init__()
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: WorkerState = JOINING
        self.round = 0
        self.parent = plan.tree.parent(node)
        self.below = Collecting(node, plan, settings) if plan.tree.children(node) else None
        self._collecting = self.below  # unless the task needs nothing of the children
        self.refused: str | None = None
        self._has_parent = True  # as far as is known
        self._leaving: str | None = None  # why this worker goes after the round, if it does
        self._seen_below = (0, 0)  # the highest generation and round that children came with
        self._parent_is_at = (0, 0)  # the generation and round that the parent welcomed with
        self._waits_for_children = False  # and will say who is missing, when it is time
        self._said_missing: tuple[int, ...] = ()
        self._up = Outbox(self.parent, settings.window)
        self._again = False  # the model of this round has come again
        self._reload = False  # the connection is new, and the model of this round may come again
        self._model: Vector | None = None
        self._here: list[bool] = []  # which chunks of the model are here
        self._in_order = 0  # of the model, in order, how many chunks are here
        self.first_task = next(plan.tasks(node))
        self.task = self.first_task
        self.total: Vector | None = None  # what this worker computed; turns into the sum, chunk by chunk
        self._began = 0.0  # when the task could begin
        self._push = True
        self._next_chunk = 0  # chunks up to here are summed
        self._computing = False
        self._offers = plan.has_redundancy and settings.announce
        self._offered = False
        self._queued: Next | None = None
        self._unable: Unable | None = None  # what was said of the task, if it cannot be done here
        self._settling = 0  # the round of which the parent asked for what there is
        self._salvages = plan.wait_for is not None
        self._pieces = {self.first_task: plan.unit(node, self.first_task).pieces}

    def _who(self, sender: int) -> From:
        if sender == self.parent:
            return PARENT
        return CHILD if self.below is not None and sender in self.below.children else STRANGER

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        assert isinstance(message, ModelChunk | ShareChunk)
        return self.settings.is_chunk(message.index, len(data))

    def _say(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        actions.append(Transmit(to=self.parent, message=message))

    # -- joining and leaving

    def _say_hello(self, event: object, now: float, actions: list[AnyAction]) -> None:
        self._said_missing = ()  # what was said to another process, or lost, is said again
        generation, round_ = max((self.generation, self.round), self._seen_below)
        self._say(Hello(generation=generation, round=round_, plan=run_name(self.plan, self.settings)), actions)

    def _on_welcome(self, welcome: Welcome, parent: int, now: float, actions: list[AnyAction]) -> None:
        self.state = WAITING
        self._on_welcome_again(welcome, parent, now, actions)

    def _on_welcome_again(self, welcome: Welcome, parent: int, now: float, actions: list[AnyAction]) -> None:
        """Also after JOINING: the model of a round that is on was quicker, or there is another root now."""
        if welcome.generation != self.generation:
            self._follow(welcome.generation, actions)
        self._parent_is_at = (welcome.generation, welcome.round)
        self._look_who_is_ahead(now, actions)
        self._say_ready(now, actions)

    def _look_who_is_ahead(self, now: float, actions: list[AnyAction]) -> None:
        """If a child has seen more than the parent the root must know: it takes a generation above that."""
        if self.state is not JOINING and self._seen_below > max(self._parent_is_at, (self.generation, self.round)):
            self._say_hello(self, now, actions)

    def _follow(self, generation: int, actions: list[AnyAction]) -> None:
        """There is another root, whose rounds may be any: what is here of the old one's counts no more."""
        self.generation = generation
        self.state = WAITING
        self.round = 0
        self._stop("there is another root", actions)
        self._up.clear()
        self._queued = None
        if self.below is not None:
            self.below.adopt(generation, actions)

    def _say_ready(self, now: float, actions: list[AnyAction]) -> None:
        """Everyone below is in; or it has taken long, and who is missing is said now and then while that changes."""
        if self.state is JOINING:
            return
        if self.below is None or self.below.roster.complete:
            self._say(Ready(generation=self.generation), actions)
            self._said_missing = ()
        elif not self._waits_for_children:
            self._waits_for_children = True
            actions.append(SetTimer(name=MISSING, at=now + SAY_MISSING_AFTER))

    def _say_missing(self, actions: list[AnyAction]) -> None:
        self._waits_for_children = False
        if self.state is JOINING or self.below is None:
            return
        missing = tuple(self.below.roster.lacking())
        if missing and missing != self._said_missing:
            self._said_missing = missing
            named = missing if len(missing) <= MOST_NAMED else (self.node,)
            self._say(Ready(generation=self.generation, missing=named), actions)

    def _on_refuse(self, refuse: Refuse, parent: int, now: float, actions: list[AnyAction]) -> None:
        self.state = LEFT
        self.refused = refuse.reason
        actions.append(Finished(reason=refuse.reason))

    def _on_peer_found(self, event: PeerFound, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self._up.reset()
            self._has_parent = True
            self.state = JOINING
            self._reload = True
            self._stop("the connection to the parent is new", actions)
            self._say_hello(event, now, actions)

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self._up.reset()
            self._has_parent = False
            if self._leaving is not None:
                self._leave(self._leaving, actions)
        elif self.below is not None:
            self.below.lost(event.peer)
            self._say_ready(now, actions)

    def _on_goodbye(self, goodbye: Goodbye, parent: int, now: float, actions: list[AnyAction]) -> None:
        self._leave(self._leaving or goodbye.reason, actions)

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        """At once; or after this round, when the parent no longer counts on this worker and says goodbye."""
        if not event.at_once and self.state is not JOINING and self._has_parent:
            self._leaving = event.reason
            self._say(Leaving(generation=self.generation, round=self.round, reason=event.reason[:1000]), actions)
            return
        self._say(Goodbye(generation=self.generation, round=self.round, reason=event.reason[:1000]), actions)
        self._leave(event.reason, actions)

    def _leave(self, reason: str, actions: list[AnyAction]) -> None:
        self._stop(reason, actions)
        if self.below is not None and self._leaving is None:  # else another process may come in its place
            goodbye = Goodbye(generation=self.generation, round=self.round, reason=reason[:1000])
            self.below.tell_all(goodbye, actions)
        self.state = LEFT
        actions.append(Finished(reason=reason))

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer == self.parent:
            self._up.drained(actions)
        elif self.below is not None:
            self.below.drained(event.peer, actions)

    # -- a new model supersedes everything

    def _on_model_chunk(
        self, chunk: ModelChunk, parent: int, data: Vector, now: float, actions: list[AnyAction]
    ) -> None:
        if chunk.round > self.round or (chunk.round == self.round and self._reload):
            self._again = chunk.round == self.round
            self._begin_loading(chunk.round, data, now, actions)
        if chunk.round != self.round or self.state is not LOADING or self._here[chunk.index]:
            return
        self._here[chunk.index] = True
        assert self._model is not None
        if self.settings.chunks > 1:
            self._model[self.settings.chunk_slice(chunk.index)] = data
        while self._in_order < self.settings.chunks and self._here[self._in_order]:
            if self.below is not None:  # cut through: a chunk goes on as soon as it is here
                self.below.send_model(self._model, (self._in_order,), actions)
            self._in_order += 1
        if self._in_order == self.settings.chunks:
            self.state = WORKING
            self._began = now
            if self._again and self.below is not None:  # children do not begin anew: they may have delivered
                self.below.ask_all_for(self.first_task, now, actions)
            self._compute(actions)

    def _begin_loading(self, round_: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        self._stop("a new model has come", actions)
        self.round = round_
        self._reload = False
        self._up.clear()
        self._queued = None
        self._model = data if self.settings.chunks == 1 else empty(self.settings.length, data.dtype)
        self._here = [False] * self.settings.chunks
        self._in_order = 0
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
        self.task = task
        self._unable = None
        self._collecting = None if self.plan.is_delegated(task) else self.below
        self.total = None
        self._began = now
        self._push = push
        self._offered = False
        self._next_chunk = 0

    def _compute(self, actions: list[AnyAction]) -> None:
        assert self._model is not None
        if self.task not in self._pieces:
            self._pieces[self.task] = self.plan.unit(self.node, self.task).pieces
        self._computing = True
        pieces = self._pieces[self.task]
        actions.append(
            Compute(round=self.round, task=self.task, pieces=pieces, model=self._model, salvage=self._salvages)
        )

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round or event.task != self.task or not self._computing:
            self._on_old_result(event, now, actions)
            return
        self._computing = False
        self.total = event.vector
        if self._collecting is not None:
            self._collecting.own_is_done(now, actions)
        self._deliver(now, actions)

    def _on_old_result(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        """Live compensation: what was finished of the last round joins this one. Else it is not needed any more."""
        if self._salvages and event.covered > 0 and event.round == self.round - 1:
            self._send_all(event.vector, event.round, event.task, event.covered, actions)

    # -- somebody fails

    def _on_failed(self, event: Failed, now: float, actions: list[AnyAction]) -> None:
        """This worker's own unit is asked of a child, or its task of whoever else can do it."""
        self._say_failed(event, now, actions)
        trouble = (self.node, event.reason[:400])
        if event.round != self.round or event.task != self.task or not self._computing:
            return
        self._computing = False
        if self._collecting is None or self._collecting.ledger.shares.own is None:
            self._give_up((trouble,), now, actions)
        else:
            self._say_if_lost(self._collecting.own_failed(trouble, now, actions), actions)

    def _say_failed(self, event: Failed, now: float, actions: list[AnyAction]) -> None:
        """Whether or not it is still needed: somebody should look at this worker."""
        troubles = ((self.node, event.reason[:400]),)
        self._say(Failure(generation=self.generation, round=event.round, troubles=troubles), actions)

    def _on_unable(self, unable: Unable, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        troubles = self.below.unable(unable, child, now, actions)
        if troubles and self.plan.has_redundancy:
            self._say_if_lost(troubles, actions)
        elif troubles:
            self._stop("too much is missing that children failed at", actions)
            self._give_up(troubles, now, actions)

    def _on_failure(self, failure: Failure, child: int, now: float, actions: list[AnyAction]) -> None:
        self._say(failure, actions)

    def _say_if_lost(self, troubles: tuple[Trouble, ...], actions: list[AnyAction]) -> None:
        """What failed at two of those that can do it fails everywhere: the root ends the run."""
        if troubles:
            failure = Failure(generation=self.generation, round=self.round, troubles=troubles[:16], ends=True)
            self._say(failure, actions)

    def _give_up(self, troubles: tuple[Trouble, ...], now: float, actions: list[AnyAction]) -> None:
        """This worker cannot do the task: maybe another can."""
        of = (self.generation, self.round)
        self._unable = Unable(generation=of[0], round=of[1], task=self.task, troubles=troubles[:16])
        self._say(self._unable, actions)
        if self._collecting is not None:
            self._collecting.end(now, actions)
        self._up.clear()
        self._rest(now, actions)

    # -- what children deliver

    def _on_idle_share_chunk(
        self, chunk: ShareChunk, child: int, data: Vector, now: float, actions: list[AnyAction]
    ) -> None:
        """A share while this worker sums nothing: kept if it will be needed."""
        assert self.below is not None
        self.below.share_chunk(chunk, child, data, now, actions)

    def _on_share_chunk(
        self, chunk: ShareChunk, child: int, data: Vector, now: float, actions: list[AnyAction]
    ) -> None:
        assert self.below is not None
        if not self.below.share_chunk(chunk, child, data, now, actions):
            return
        if self._collecting is not None and self.total is None:
            self.total = self.below.ledger.shares.own_delivered()
            if self.total is not None:
                self.below.late.add(self.node)
                self._stop("a child delivered this node's own unit", actions)
        self._deliver(now, actions)

    def _on_offer(self, offer: Offer, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        if self.below.offer(offer, child, now, actions) and self.state is WORKING and self._collecting is not None:
            self._offer_early(now, actions)

    def _deliver(self, now: float, actions: list[AnyAction]) -> None:
        """Sum and pass on every chunk that can be, in order; when the last one is done, rest."""
        if self.total is None:
            return
        self._offer_early(now, actions)
        chunks, below = self.settings.chunks, self._collecting
        while self._next_chunk < chunks and (below is None or below.ledger.shares.can_sum(self._next_chunk)):
            if below is not None and len(below.ledger.shares):
                below.ledger.shares.total(self._next_chunk, self.total[self.settings.chunk_slice(self._next_chunk)])
            if self._push:
                self._send_chunk(self._next_chunk, now, actions)
            self._next_chunk += 1
        if self._next_chunk == chunks:
            if below is not None:
                below.end(now, actions)
            if not self._push and not self._offered:
                self._offer(now, actions)
            self._rest(now, actions)

    def _offer_early(self, now: float, actions: list[AnyAction]) -> None:
        """Tell the parent that a pushed sum is on its way: all is computed here, and below only bytes are missing."""
        if self._offered or not self._offers or not self._push or self.total is None:
            return
        if self._collecting is None or self._collecting.ledger.only_bytes_are_missing:
            self._offer(now, actions)

    def _offer(self, now: float, actions: list[AnyAction]) -> None:
        self._offered = True
        worked = now - self._began
        self._say(Offer(generation=self.generation, round=self.round, task=self.task, worked=worked), actions)

    def _send_chunk(self, index: int, now: float, actions: list[AnyAction]) -> None:
        assert self.total is not None
        late = tuple(sorted(self.below.late))[:4096] if self.below is not None else ()
        message = ShareChunk(
            generation=self.generation, round=self.round, task=self.task, index=index, late=late,
            worked=now - self._began,
        )  # fmt: skip
        self._up.put(message, self.total[self.settings.chunk_slice(index)], actions)

    def _send_all(self, vector: Vector, round_: int, task: int, covered: float, actions: list[AnyAction]) -> None:
        """Send a sum that is not of the whole task."""
        for index in range(self.settings.chunks):
            message = ShareChunk(generation=self.generation, round=round_, task=task, index=index, covered=covered)
            self._up.put(message, vector[self.settings.chunk_slice(index)], actions)

    # -- what the parent asks for

    def _on_next(self, message: Next, parent: int, now: float, actions: list[AnyAction]) -> None:
        if message.round != self.round:
            return
        if message.task == self.task:
            self._deliver_again(message.push, now, actions)
        elif not self.plan.may_be_asked(self.node, message.task):
            self._object(parent, f"Next for task {message.task}, which this node cannot do", actions, kind="unreadable")
        elif self.state is WORKING and self._push:
            self._queued = message  # first things first: the parent counts on what was offered
        else:
            self._turn_to(message, now, actions)

    def _deliver_again(self, push: bool, now: float, actions: list[AnyAction]) -> None:
        """The parent asks for what this worker has done: something must have been lost."""
        if self._unable is not None and self._unable.task == self.task:
            self._say(self._unable, actions)
        if self._next_chunk < self.settings.chunks:
            return
        if push:
            for index in range(self.settings.chunks):
                self._send_chunk(index, now, actions)
        else:
            self._offer(now, actions)

    def _turn_to(self, asked: Next, now: float, actions: list[AnyAction]) -> None:
        self._stop("the parent asked for another share", actions)
        self._begin_task(asked.task, push=asked.push, now=now)
        self.state = WORKING
        if self._collecting is not None:
            self._collecting.ask_all_for(asked.task, now, actions)
        elif self.below is not None:
            self.below.ledger.clear()
        self._compute(actions)

    def _rest(self, now: float, actions: list[AnyAction]) -> None:
        """Nothing is left to do, unless the parent has asked for more in the meantime."""
        self.state = RESTING
        if self._queued is not None:
            queued, self._queued = self._queued, None
            self._turn_to(queued, now, actions)

    def _on_enough(self, enough: Enough, parent: int, now: float, actions: list[AnyAction]) -> None:
        if enough.round != self.round or self._salvages:
            return  # in live compensation the next model interrupts, and what is finished by then still counts
        if self._queued is not None and enough.task == self._queued.task:
            self._queued = None
        if enough.task != self.task:
            return
        self._stop("somebody else delivered this share", actions)
        if self._collecting is not None:
            self._collecting.end(now, actions)
        self._up.clear()
        self._rest(now, actions)

    def _on_send(self, send: Send, parent: int, now: float, actions: list[AnyAction]) -> None:
        if send.round != self.round or send.task != self.task or self._next_chunk < self.settings.chunks:
            return
        for index in send.chunks or range(self.settings.chunks):
            if index < self.settings.chunks:
                self._send_chunk(index, now, actions)

    def _on_settle(self, settle: Settle, parent: int, now: float, actions: list[AnyAction]) -> None:
        if settle.round != self.round or self.state is RESTING or self._collecting is None:
            return
        self._settling = self.round
        self._collecting.tell_all(Settle(generation=self.generation, round=self.round), actions)
        height = self.plan.tree.depth - self.plan.tree.level(self.node) - 1
        actions.append(SetTimer(name=SETTLE, at=now + self.settings.to_settle(height)))

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == MISSING:
            self._say_missing(actions)
        if self.state is not WORKING or self._collecting is None:
            return
        if event.name == REDUNDANCY:
            self._collecting.ask_replicas(now, actions)
        elif event.name == SETTLE and self._settling == self.round and self._next_chunk == 0:
            result, covered = self._collecting.ledger.shares.settle(self.total)
            if result is not None:
                self._send_all(result, self.round, self.task, covered, actions)

    # -- what children say

    def _on_hello(self, hello: Hello, child: int, now: float, actions: list[AnyAction]) -> None:
        assert self.below is not None
        if hello.plan == self.below.roster.run and is_ahead(hello, *self._seen_below):
            self._seen_below = (hello.generation, hello.round)
            self._look_who_is_ahead(now, actions)
        is_needed = self.state in (LOADING, WORKING) and self.task == self.first_task
        is_needed = is_needed and not self.below.ledger.shares.satisfied
        if self.below.hello(hello, child, actions, is_needed=is_needed):
            assert self._model is not None
            self.below.send_model(self._model, range(self._in_order), actions, to=child)

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

    def _on_interrupted(self, event: Interrupted, now: float, actions: list[AnyAction]) -> None:
        """Tell the root how much longer it would have waited for this worker's own share."""
        if event.task == self.first_task:
            seconds = max(0.0, event.seconds)
            self._say(Late(generation=self.generation, round=event.round, node=self.node, seconds=seconds), actions)

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        if self.below is not None:
            self.below.check()
        if self._up.in_flight > self.settings.window + 1:
            raise AssertionError(f"node {self.node} has {self._up.in_flight} chunks in flight to its parent")
        if self._up.waiting > self.settings.chunks * (len(self._pieces) + 1):
            raise AssertionError(f"node {self.node} keeps {self._up.waiting} chunks for its parent")
