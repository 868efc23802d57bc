"""What a worker delivers: the sum of a task, made chunk by chunk of its own unit and its children's shares.

A part of the worker's machine. A sum that belongs to the round anyway is pushed as it grows, with an offer ahead of it
when only bytes are missing; one that was asked for in another's place is offered when it is whole, and sent on request.
"""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.protocol.core.events import AnyAction, Transmit
from codedreduce.protocol.core.messages import Offer, ShareChunk
from codedreduce.protocol.core.outbox import Outbox
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector


class Delivering:
    """The task that a worker is at, and what its parent is sent. `below` are its children, if it has any."""

    def __init__(self, node: int, plan: TreePlan, settings: Settings, below: Collecting | None) -> None:
        self._node = node
        self._plan = plan
        self._settings = settings
        self._below = below
        self._parent = plan.tree.parent(node)
        self._outbox = Outbox(self._parent, settings.window)
        self._announces = plan.has_redundancy and settings.announce
        self._of = (settings.generation, 0)  # the generation and round of the task
        self.task = next(plan.tasks(node))
        self.collecting = below  # unless the task needs nothing of the children
        self.total: Vector | None = None  # what this worker computed; turns into the sum, chunk by chunk
        self._began = 0.0  # when the task could begin
        self._push = True
        self._next_chunk = 0  # chunks up to here are summed
        self._offered = False

    # -- the task

    def begin(self, task: int, generation: int, round_: int, *, push: bool, now: float) -> None:
        """Turn to a task, which is pushed or only offered when it is done."""
        self._of = (generation, round_)
        self.task = task
        self.collecting = None if self._plan.is_delegated(task) else self._below
        self.total = None
        self._began = now
        self._push = push
        self._offered = False
        self._next_chunk = 0

    def can_compute(self, now: float) -> None:
        """The model is here: only from now on can the worker be late."""
        self._began = now

    @property
    def is_pushed(self) -> bool:
        """Whether the parent counts on this task's sum without asking for it again."""
        return self._push

    @property
    def has_summed(self) -> bool:
        """Whether a part of the sum is made."""
        return self._next_chunk > 0

    @property
    def is_done(self) -> bool:
        """Whether the whole sum is made."""
        return self._next_chunk == self._settings.chunks

    # -- the sum

    def add_own(self, vector: Vector, now: float, actions: list[AnyAction]) -> None:
        """The worker has computed its unit."""
        self.total = vector
        if self.collecting is not None:
            self.collecting.own_is_done(now, actions)

    def takes_own_from_child(self) -> bool:
        """Whether the worker's own unit, which it has not computed yet, has just come from a child instead."""
        if self.collecting is None or self.total is not None:
            return False
        self.total = self.collecting.ledger.shares.own_delivered()
        if self.total is None:
            return False
        self.collecting.late.add(self._node)
        return True

    def go_on(self, now: float, actions: list[AnyAction]) -> bool:
        """Sum and pass on every chunk that can be, in order; whether that was the last of them."""
        if self.total is None:
            return False
        self.offer_early(now, actions)
        chunks, below = self._settings.chunks, self.collecting
        while self._next_chunk < chunks and (below is None or below.ledger.shares.can_sum(self._next_chunk)):
            if below is not None and len(below.ledger.shares):
                below.ledger.shares.total(self._next_chunk, self.total[self._settings.chunk_slice(self._next_chunk)])
            if self._push:
                self._send_chunk(self._next_chunk, now, actions)
            self._next_chunk += 1
        if not self.is_done:
            return False
        if below is not None:
            below.end(now, actions)
        if not self._push and not self._offered:
            self._offer(now, actions)
        return True

    def give_up(self, now: float, actions: list[AnyAction]) -> None:
        """Nobody needs the sum, or this worker cannot make it: children stop, and what waits to be sent is left."""
        if self.collecting is not None:
            self.collecting.end(now, actions)
        self._outbox.clear()

    # -- what the parent is sent

    def offer_early(self, now: float, actions: list[AnyAction]) -> None:
        """Tell the parent that a pushed sum is on its way: all is computed here, and below only bytes are missing."""
        if self._offered or not self._announces or not self._push or self.total is None:
            return
        if self.collecting is None or self.collecting.ledger.only_bytes_are_missing:
            self._offer(now, actions)

    def _offer(self, now: float, actions: list[AnyAction]) -> None:
        self._offered = True
        generation, round_ = self._of
        offer = Offer(generation=generation, round=round_, task=self.task, worked=now - self._began)
        actions.append(Transmit(to=self._parent, message=offer))

    def _send_chunk(self, index: int, now: float, actions: list[AnyAction]) -> None:
        assert self.total is not None
        generation, round_ = self._of
        late = tuple(sorted(self._below.late))[:4096] if self._below is not None else ()
        message = ShareChunk(
            generation=generation, round=round_, task=self.task, index=index, late=late, worked=now - self._began
        )
        self._outbox.put(message, self.total[self._settings.chunk_slice(index)], actions)

    def send(self, chunks: Sequence[int], now: float, actions: list[AnyAction]) -> None:
        """Send chunks that the parent asks for, or all of them, if the sum is made."""
        if not self.is_done:
            return
        for index in chunks or range(self._settings.chunks):
            if index < self._settings.chunks:
                self._send_chunk(index, now, actions)

    def repeat(self, now: float, actions: list[AnyAction], *, push: bool) -> None:
        """The parent asks for what this worker has done: something must have been lost."""
        if not self.is_done:
            return
        if push:
            self.send((), now, actions)
        else:
            self._offer(now, actions)

    def send_part(self, vector: Vector, round_: int, task: int, covered: float, actions: list[AnyAction]) -> None:
        """Send a sum that is not of the whole task."""
        for index in range(self._settings.chunks):
            message = ShareChunk(generation=self._of[0], round=round_, task=task, index=index, covered=covered)
            self._outbox.put(message, vector[self._settings.chunk_slice(index)], actions)

    # -- the way to the parent

    def drained(self, actions: list[AnyAction]) -> None:
        """What the parent was sent has arrived there."""
        self._outbox.drained(actions)

    def drop(self) -> None:
        """What waits to be sent is of an old round."""
        self._outbox.clear()

    def connection_is_new(self) -> None:
        """Nothing is in flight to the parent, nor will be of what was."""
        self._outbox.reset()

    def check(self, tasks: int) -> None:
        """Raise if more is kept for the parent than of so many tasks, or more is in flight than may be."""
        if self._outbox.in_flight > self._settings.window + 1:
            raise AssertionError(f"node {self._node} has {self._outbox.in_flight} chunks in flight to its parent")
        if self._outbox.waiting > self._settings.chunks * tasks:
            raise AssertionError(f"node {self._node} keeps {self._outbox.waiting} chunks for its parent")
