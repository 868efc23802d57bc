"""The common part of root and inner workers: send models to children, and collect shares from them.

A part of their machines, not a machine of its own. The node passes on the messages of its children and its own
requests. The methods append actions, and return what follows for the node.
"""

from __future__ import annotations

from collections.abc import Iterable

from codedreduce.protocol.core.events import Actions, Note, SetTimer, Transmit
from codedreduce.protocol.core.membership import Roster, run_name
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Enough,
    Goodbye,
    Hello,
    Late,
    Leaving,
    ModelChunk,
    Next,
    Offer,
    Refuse,
    Send,
    ShareChunk,
    Trouble,
    Unable,
    Welcome,
)
from codedreduce.protocol.core.outbox import Outbox
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.ledger import Ledger
from codedreduce.protocol.tree.shares import Arrival
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector

#: Past rounds for which a parent keeps the end time, to report how late a result is.
REMEMBERED_ROUNDS = 16


class Collecting:
    """A node's children: which have joined, what the node sends them, and what they deliver."""

    def __init__(self, actions: Actions, node: int, plan: TreePlan, settings: Settings) -> None:
        self._actions = actions
        self.node = node
        self.plan = plan
        self.settings = settings
        self._generation = settings.generation
        self.round = 0
        self.children = plan.tree.children(node)
        self._parent = plan.tree.parent(node) if node else None
        self.roster = Roster(self.children, run_name(plan, settings))
        self.ledger = Ledger(plan, node, settings)
        self.late: set[int] = set()  # nodes here and below that had not delivered in time in this round
        self._leaving: set[int] = set()  # children that leave after this round
        self._outboxes = {child: Outbox(self._actions, child, settings.window) for child in self.children}
        self._over: dict[int, tuple[float, set[int]]] = {}  # by round: its end time, and late children since

    # -- children join and leave

    def adopt(self, generation: int) -> None:
        """Follow another root: drop the state of the old one, and inform the children that have joined."""
        self._generation = generation
        self.new_round(0)
        self.ledger.clear()
        self._over.clear()
        self.tell_all(Welcome(generation=generation, round=self.round))

    def hello(self, hello: Hello, child: int, *, is_needed: bool) -> bool:
        """Answer a child's hello. Return whether the child has joined and works in the current round."""
        answer = self.roster.answer(child, hello, self._generation, self.round)
        self._actions.append(Transmit(to=child, message=answer))
        if isinstance(answer, Refuse):
            self._actions.append(Note(kind="refused", reason=answer.reason, round=self.round, nodes=(child,)))
            return False
        self._outboxes[child].reset()
        self._leaving.discard(child)
        self.ledger.returned(child)
        if is_needed:
            self.ledger.put_to_work(child)
        return is_needed

    def lost(self, child: int) -> None:
        """A child cannot be reached."""
        if child in self._outboxes:
            self.roster.gone(child)
            self.ledger.lost(child)
            self._outboxes[child].reset()

    def goodbye(self, goodbye: Goodbye, child: int) -> None:
        """A child has left."""
        reason = f"rank {child} left: {goodbye.reason}"
        self._actions.append(Note(kind="left", reason=reason, round=self.round, nodes=(child,)))
        self.lost(child)

    def leaving(self, leaving: Leaving, child: int, *, at_once: bool) -> None:
        """A child leaves after this round, or at once if there is none."""
        reason = f"rank {child} leaves after round {self.round}: {leaving.reason}"
        self._actions.append(Note(kind="leaving", reason=reason, round=self.round, nodes=(child,)))
        self._leaving.add(child)
        if at_once:
            self.let_go()

    def let_go(self) -> None:
        """Release the children that asked to leave: nothing of the last round is needed any more."""
        for child in sorted(self._leaving):
            goodbye = Goodbye(generation=self._generation, round=self.round, reason="it asked to leave")
            self._actions.append(Transmit(to=child, message=goodbye))
            self.lost(child)
        self._leaving.clear()

    def drained(self, child: int) -> None:
        """A marked message has arrived at a child."""
        if child in self._outboxes:
            self._outboxes[child].drained()

    def tell_all(self, message: AnyMessage) -> None:
        """Send a message to every child that has joined."""
        self._actions.extend(Transmit(to=child, message=message) for child in self.roster.present())

    # -- models go down

    def new_round(self, round_: int) -> None:
        """A new model has arrived, or begins to arrive: drop queued chunks of an old one."""
        self.round = round_
        self.late.clear()
        for outbox in self._outboxes.values():
            outbox.clear()

    def send_model(self, model: Vector, indices: Iterable[int], to: int | None = None) -> None:
        """Send chunks of the model to one child, or to all that have joined: all chunks to one before the next."""
        for child in self.children if to is None else (to,):
            if self.roster.has(child):
                for index in indices:
                    message = ModelChunk(generation=self._generation, round=self.round, index=index)
                    self._outboxes[child].put(message, model[self.settings.chunk_slice(index)])

    # -- shares come up

    def share_chunk(self, chunk: ShareChunk, child: int, data: Vector, now: float) -> bool:
        """Take a chunk of a child's sum. Return whether the node can make progress with it."""
        if chunk.round != self.round:
            self._old_chunk(chunk, child, data, now)
            return False
        arrival = self.ledger.arrived(child, chunk.task, chunk.index, data, chunk.covered, now)
        if arrival is Arrival.REPEATED:
            return False
        if arrival is Arrival.NOT_NEEDED:
            self._report_late(child, chunk.round, now)
        else:
            self.late.update(node for node in chunk.late if self.plan.is_worker(node))
        instead = self.ledger.asked_instead(child, chunk.task) and self.plan.is_worker(chunk.task)
        if arrival is Arrival.COMPLETED and instead:
            self.late.add(chunk.task)  # a replica delivered first, whether or not this worker has offered its share
        if arrival in (Arrival.COMPLETED, Arrival.NOT_NEEDED):
            self._delivered(child, chunk.task, chunk.worked, now)
        if arrival is Arrival.COMPLETED:
            self.dismiss(self.ledger.at_work_on(chunk.task), chunk.task, now)
        return arrival is not Arrival.NOT_NEEDED

    def _old_chunk(self, chunk: ShareChunk, child: int, data: Vector, now: float) -> None:
        if chunk.round < self.round:
            if chunk.round == self.round - 1:
                self.ledger.arrived_late(child, chunk.index, data, chunk.covered)
            self._report_late(child, chunk.round, now)

    def offer(self, offer: Offer, child: int, now: float) -> bool:
        """A child offers a sum. Return whether the node can make progress with it."""
        if offer.round != self.round:
            self._report_late(child, offer.round, now)
            return False
        missing = self.ledger.offered(child, offer.task, now)
        if missing is None:
            self._report_late(child, offer.round, now)
        self._delivered(child, offer.task, offer.worked, now)
        if missing is None:
            return False
        if self.ledger.asked_instead(child, offer.task):  # redundant: pull only what is still missing
            wanted = () if len(missing) == self.settings.chunks else missing
            pull = Send(generation=self._generation, round=self.round, task=offer.task, chunks=wanted[:4096])
            self._actions.append(Transmit(to=child, message=pull))
        return True

    def _delivered(self, child: int, task: int, worked: float, now: float) -> None:
        self._look(self.ledger.delivered(child, task, worked, now))

    def dismiss(self, children: list[int], task: int, now: float) -> None:
        """Stop children that work on a share that is here already, and count them as late."""
        for child in children:
            self.late.add(child)
            message = Enough(generation=self._generation, round=self.round, task=task)
            self._actions.append(Transmit(to=child, message=message))
            self._look(self.ledger.dismissed(child, now))

    def own_is_done(self, now: float) -> None:
        """The node has computed its own unit: children that were asked for it in the meantime can stop."""
        self.dismiss(self.ledger.own_done(), self.plan.delegated(self.ledger.shares.task), now)

    def stood_in(self, task: int, vector: Vector, now: float) -> None:
        """The root has computed a share itself: children at work on it can stop, and are late."""
        self.ledger.stood_in(task, vector)
        if self.plan.is_worker(task):
            self.late.add(task)
        self.dismiss(self.ledger.at_work_on(task), task, now)

    # -- failures

    def unable(self, unable: Unable, child: int, now: float) -> tuple[Trouble, ...]:
        """A child cannot do a task. Return the failures if they mean that no child can."""
        if unable.round != self.round:
            return ()
        troubles = tuple(trouble for trouble in unable.troubles if self.plan.is_worker(trouble[0]))
        self._look(self.ledger.failed(child, unable.task, troubles or ((child, "no reason given"),), now))
        self.late.add(child)
        return self.ledger.beyond_help()

    def own_failed(self, trouble: Trouble, now: float) -> tuple[Trouble, ...]:
        """The node failed at its own unit, which a child can do. Return the failures if they mean that no child can."""
        assert self.ledger.shares.own is not None, "only where a child can compute it"
        self._look(self.ledger.failed(self.node, self.ledger.shares.own.task, (trouble,), now))
        self.late.add(self.node)
        return self.ledger.beyond_help()

    def _look(self, moment: float | None) -> None:
        if moment is not None and not self.ledger.shares.satisfied:
            self._actions.append(SetTimer(name=Timer.REDUNDANCY, at=moment))

    def ask_replicas(self, now: float) -> None:
        """The redundancy timer fired: ask idle replicas for late shares."""
        asked, moment = self.ledger.due(now)
        for child, task in asked:
            self.ask(child, task, push=False)
            what = "this rank's own unit" if self.plan.is_delegated(task) else f"the share of rank {task}"
            reason = f"asked rank {child} for {what}, which is late"
            self._actions.append(Note(kind="redundant", reason=reason, round=self.round, nodes=(child,)))
        self._look(moment)

    def ask(self, child: int, task: int, *, push: bool) -> None:
        """Ask a child for a task."""
        message = Next(generation=self._generation, round=self.round, task=task, push=push)
        self._actions.append(Transmit(to=child, message=message))

    def enough(self, child: int, task: int) -> None:
        """Send `Enough` to a child: its task is no longer needed."""
        if self.roster.has(child):
            message = Enough(generation=self._generation, round=self.round, task=task)
            self._actions.append(Transmit(to=child, message=message))

    def ask_all_for(self, task: int, now: float) -> None:
        """Collect for a task that is not the first: ask every child for its share of it."""
        self.ledger.start(task, now)
        for child, share in self.ledger.assignments():
            if self.roster.has(child):
                self.ask(child, share, push=True)

    def end(self, now: float) -> None:
        """All shares are here: children that are still at work are late and can stop."""
        for child, task in self.ledger.end():
            self.late.add(child)
            self.enough(child, task)
        self._over[self.round] = now, set()
        while len(self._over) > REMEMBERED_ROUNDS:
            del self._over[next(iter(self._over))]

    def _report_late(self, child: int, round_: int, now: float) -> None:
        over, reported = self._over.get(round_, (now, {child}))
        if child not in reported:
            reported.add(child)
            self.tell_late(child, round_, now - over)

    def tell_late(self, node: int, round_: int, seconds: float) -> None:
        """Report to the root that a node's result of a past round came this long after the round's end."""
        if self._parent is not None:
            late = Late(generation=self._generation, round=round_, node=node, seconds=seconds)
            self._actions.append(Transmit(to=self._parent, message=late))
        reason = f"rank {node} was {seconds:.3f} s late in round {round_}"
        self._actions.append(Note(kind="late", reason=reason, round=round_, nodes=(node,), seconds=seconds))

    def check(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        self.ledger.check()
        for child, outbox in self._outboxes.items():
            if outbox.in_flight > self.settings.window + 1:
                raise AssertionError(f"node {self.node} has {outbox.in_flight} chunks in flight to {child}")
            if outbox.waiting > self.settings.chunks:
                raise AssertionError(f"node {self.node} keeps a queue of old rounds for {child}")
