"""What root and inner workers have in common: children to send models to and to collect shares from."""

from __future__ import annotations

from abc import abstractmethod

from codedreduce.protocol.collector import Collector, FirstCollector
from codedreduce.protocol.events import (
    AnyAction,
    Drained,
    Note,
    PeerLost,
    Received,
    SetTimer,
    Transmit,
    Vector,
)
from codedreduce.protocol.machine import Machine
from codedreduce.protocol.messages import (
    Enough,
    Goodbye,
    Hello,
    ModelChunk,
    Next,
    Offer,
    Refuse,
    Send,
    ShareChunk,
    Welcome,
)
from codedreduce.protocol.outbox import Outbox
from codedreduce.protocol.redundancy import Redundancy
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import LiveCompensation, TreePlan

#: The timer that looks whether a share should be asked of a replica.
REDUNDANCY = "redundancy"

#: Past rounds of which a parent remembers when they were over, to tell how late a late result is.
REMEMBERED_ROUNDS = 16


class Parent(Machine):
    """A node with children."""

    def __init__(self, node: int, plan: TreePlan, settings: Settings) -> None:
        super().__init__()
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.round = 0
        self.model: Vector | None = None
        self.model_chunks = 0  # of the model, in order, how many are here
        self.children = plan.tree.children(node)
        self.present: set[int] = set()
        self.ready: set[int] = set()
        self.late: set[int] = set()
        self.outboxes = {child: Outbox(child, settings.window) for child in self.children}
        scheme = plan.scheme
        if isinstance(scheme, LiveCompensation) and node == 0:
            self.collector: Collector = FirstCollector(plan, node, settings, scheme.wait_for)
        else:
            self.collector = Collector(plan, node, settings)
        progressive = scheme.order == "progressive" and scheme.stragglers > 0 and len(self.children) > 0
        self.redundancy = Redundancy(self.collector, self.present, settings) if progressive else None
        self._next_chunk = 0  # chunks up to here are summed
        self._asked: dict[int, int] = {}  # who was asked for which share of another
        self._over: dict[int, float] = {}
        self._reported: set[tuple[int, int]] = set()

    # -- children come and go

    def _on_hello(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Hello)
        child, message = event.sender, message
        if child not in self.outboxes:
            return
        if message.plan != self.run_name():
            reason = f"this run is {self.run_name()}; node {child} came with {message.plan}"
            actions.append(Transmit(to=child, message=Refuse(generation=self.generation, reason=reason)))
            actions.append(Note(kind="refused", reason=reason, round=self.round, nodes=(child,)))
            return
        self.present.add(child)
        self.outboxes[child].reset()
        actions.append(Transmit(to=child, message=Welcome(generation=self.generation, round=self.round)))
        if self.model is not None and self._collecting_first() and not self.collector.satisfied:
            self._put_to_work(child, actions)

    def _put_to_work(self, child: int, actions: list[AnyAction]) -> None:
        """A child is new in a round that is on: it begins with its first share, whatever was asked of it before."""
        task = self.collector.first_share(child)
        self.collector.assigned[child] = task
        self._asked.pop(child, None)
        if self.redundancy is not None:
            self.redundancy.lost(child)
        for share in self.collector.wanted():
            if share.offered_by == child:
                share.offered_at, share.offered_by = None, -1
        for index in range(self.model_chunks):
            self._put_model_chunk(child, index, actions)

    def run_name(self) -> str:
        """What all nodes of a run must agree on, in words."""
        return f"{self.plan.scheme}, {self.plan.samples} samples, {self.settings.length} numbers"

    def _collecting_first(self) -> bool:
        """Whether a child that takes the model now would begin with something that is needed."""
        return False

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        self.present.discard(event.peer)
        self.ready.discard(event.peer)
        if event.peer in self.outboxes:
            self.outboxes[event.peer].reset()
        if self.redundancy is not None:
            self.redundancy.lost(event.peer)

    def _on_child_goodbye(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Goodbye)
        reason = f"node {event.sender} left: {message.reason}"
        actions.append(Note(kind="left", reason=reason, round=self.round, nodes=(event.sender,)))
        self._on_peer_lost(PeerLost(peer=event.sender), now, actions)

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer in self.outboxes:
            self.outboxes[event.peer].drained(actions)

    # -- models go down

    def _put_model_chunk(self, child: int, index: int, actions: list[AnyAction]) -> None:
        assert self.model is not None
        message = ModelChunk(generation=self.generation, round=self.round, index=index)
        self.outboxes[child].put(message, self.model[self.settings.chunk_slice(index)], actions)

    def _start_collecting(self, task: int, now: float) -> None:
        self.collector.start(task, now)
        self._next_chunk = 0
        self._asked.clear()
        if self.redundancy is not None:
            self.redundancy.start()

    # -- shares come up

    def _on_share_chunk(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, ShareChunk)
        child, task, index, round_ = event.sender, message.task, message.index, message.round
        assert event.data is not None
        if child not in self.outboxes:
            return
        if round_ != self.round:
            self._old_share(event, now, actions)
            return
        share = self.collector.share(task)
        if share is None or self.collector.whole(share):
            self._report_late(child, round_, now, actions)
            self._delivered(child, task, now, actions)
            return
        if not self.collector.accept(child, task, index, event.data, message.covered):
            return
        if message.late:
            self.late.update(message.late)
        share.offered_at = now if share.offered_at is not None else None  # as long as chunks come, it is on its way
        if self.collector.whole(share):
            if self._asked.get(child) == task and task <= self.plan.workers:
                self.late.add(task)  # somebody else delivered its share, whether or not it has offered it by now
            self._delivered(child, task, now, actions)
            for other in share.providers:
                if self.collector.assigned.get(other) == task and other != child:
                    self._enough(other, task, now, actions)
        self._shares_advanced(now, actions)

    def _old_share(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        """A share of a past round: only live compensation has a use for it."""
        message = event.message
        assert isinstance(message, ShareChunk)
        if message.round < self.round:
            if isinstance(self.collector, FirstCollector) and message.round == self.round - 1:
                assert event.data is not None
                self.collector.accept_late(event.sender, message.index, event.data, message.covered)
            self._report_late(event.sender, message.round, now, actions)

    def _on_offer(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Offer)
        child, task, round_ = event.sender, message.task, message.round
        if round_ != self.round or child not in self.outboxes:
            if round_ < self.round:
                self._report_late(child, round_, now, actions)
            return
        share = self.collector.share(task)
        if share is None or self.collector.whole(share):
            self._report_late(child, round_, now, actions)
            self._delivered(child, task, now, actions)
            return
        share.offered_at = now
        share.offered_by = child
        self._delivered(child, task, now, actions)
        if self._asked.get(child) == task:  # redundant: pulled, and only what is still missing
            missing = tuple(index for index, chunk in enumerate(share.arrived) if chunk is None)
            wanted = () if len(missing) == len(share.arrived) else missing
            pull = Send(generation=self.generation, round=self.round, task=task, chunks=wanted[:4096])
            actions.append(Transmit(to=child, message=pull))
        self._shares_offered(now, actions)

    def _delivered(self, child: int, task: int, now: float, actions: list[AnyAction]) -> None:
        """A child has done what it was asked for."""
        if self.collector.assigned.get(child) == task:
            del self.collector.assigned[child]
            self._idle(child, now, actions)

    def _enough(self, child: int, task: int, now: float, actions: list[AnyAction]) -> None:
        """A child works on what another has delivered: it can stop, and is late."""
        if task == self.collector.assigned.pop(child, None):
            self.late.add(child)
            message = Enough(generation=self.generation, round=self.round, task=task)
            actions.append(Transmit(to=child, message=message))
            self._idle(child, now, actions)

    def _idle(self, child: int, now: float, actions: list[AnyAction]) -> None:
        if self.redundancy is not None and child in self.present:
            moment = self.redundancy.idle(child, now)
            if moment is not None and not self.collector.satisfied:
                actions.append(SetTimer(name=REDUNDANCY, at=moment))

    def _ask_replicas(self, now: float, actions: list[AnyAction]) -> None:
        """The redundancy timer fired: ask idle replicas for what is late."""
        if self.redundancy is None or self.collector.satisfied:
            return
        begun, moment = self.redundancy.due(now)
        for child, task in begun:
            self.collector.assigned[child] = task
            self._asked[child] = task
            self._ask(child, task, push=False, actions=actions)
            what = f"the share of node {task}" if task <= self.plan.workers else "this node's own unit"
            reason = f"asked node {child} for {what}, which is late"
            actions.append(Note(kind="redundant", reason=reason, round=self.round, nodes=(child,)))
        if moment is not None:
            actions.append(SetTimer(name=REDUNDANCY, at=moment))

    def _ask(self, child: int, task: int, *, push: bool, actions: list[AnyAction]) -> None:
        message = Next(generation=self.generation, round=self.round, task=task, push=push)
        actions.append(Transmit(to=child, message=message))

    def _end_collecting(self, now: float, actions: list[AnyAction]) -> None:
        """All there is to collect is here: whoever is still at work is late and can stop."""
        for child, task in list(self.collector.assigned.items()):
            self.late.add(child)
            if child in self.present:
                message = Enough(generation=self.generation, round=self.round, task=task)
                actions.append(Transmit(to=child, message=message))
        self.collector.assigned.clear()
        self._over[self.round] = now
        while len(self._over) > REMEMBERED_ROUNDS:
            del self._over[next(iter(self._over))]

    # -- what root and workers do about it

    @abstractmethod
    def _shares_advanced(self, now: float, actions: list[AnyAction]) -> None:
        """A chunk of a share has come."""

    def _shares_offered(self, now: float, actions: list[AnyAction]) -> None:
        """A share is on its way."""

    def _late_result(self, child: int, round_: int, seconds: float, actions: list[AnyAction]) -> None:
        """A child's result came after its round was over."""

    def _report_late(self, child: int, round_: int, now: float, actions: list[AnyAction]) -> None:
        over = self._over.get(round_)
        if over is None or (child, round_) in self._reported:
            return
        if len(self._reported) > 4096:
            self._reported.clear()
        self._reported.add((child, round_))
        self._late_result(child, round_, now - over, actions)

    def _new_round(self, round_: int) -> None:
        self.round = round_
        self.late.clear()
        for outbox in self.outboxes.values():
            outbox.clear()

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        vectors = len(self.collector.shares) * self.settings.chunks
        if self.collector.held() > vectors:
            raise AssertionError(f"node {self.node} keeps more chunks than its children can deliver")
        for child, outbox in self.outboxes.items():
            if outbox.in_flight > self.settings.window + 1:
                raise AssertionError(f"node {self.node} has {outbox.in_flight} chunks in flight to {child}")
            if outbox.waiting > self.settings.chunks:
                raise AssertionError(f"node {self.node} keeps a queue of old rounds for {child}")
        if not set(self.collector.assigned) <= set(self.children):
            raise AssertionError(f"node {self.node} waits for somebody else's children")
