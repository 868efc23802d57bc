"""Delivery of a task's sum: a worker makes it chunk by chunk from its own unit and its children's shares.

A part of the worker's machine. The worker pushes a regular sum as it grows, with an offer ahead of it when only bytes
are missing. It offers a redundant sum when it is whole, and sends it on request.
"""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.protocol.core.events import Actions, Transmit
from codedreduce.protocol.core.messages import Offer, ShareChunk
from codedreduce.protocol.core.outbox import Outbox
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector


class Delivering:
    """The current task of a worker, and what it sends to its parent. `below` are its children, if it has any."""

    def __init__(
        self, actions: Actions, node: int, plan: TreePlan, settings: Settings, below: Collecting | None
    ) -> None:
        self._actions = actions
        self._node = node
        self._plan = plan
        self._settings = settings
        self._below = below
        self._parent = plan.tree.parent(node)
        self.outbox = Outbox(self._actions, self._parent, settings.window)
        self._announces = plan.has_redundancy and settings.announce
        self._of = (settings.generation, 0)  # the generation and round of the task
        self.task = next(plan.tasks(node))
        self.collecting = below  # None if the task needs nothing from the children
        self.total: Vector | None = None  # what this worker computed; becomes the sum, chunk by chunk
        self._began = 0.0  # when the task could begin
        self.is_pushed = True  # whether the parent expects the sum without asking for it again
        self._next_chunk = 0  # chunks up to here are summed
        self._offered = False

    # -- the task

    def begin(self, task: int, generation: int, round_: int, *, push: bool, now: float) -> None:
        """Begin a task: its sum is pushed, or only offered when it is done."""
        self._of = (generation, round_)
        self.task = task
        self.collecting = None if self._plan.is_delegated(task) else self._below
        self.total = None
        self._began = now
        self.is_pushed = push
        self._offered = False
        self._next_chunk = 0

    def can_compute(self, now: float) -> None:
        """The model has arrived: the worker's time counts from now on."""
        self._began = now

    @property
    def has_summed(self) -> bool:
        """Whether at least one chunk is summed."""
        return self._next_chunk > 0

    @property
    def is_done(self) -> bool:
        """Whether all chunks are summed."""
        return self._next_chunk == self._settings.chunks

    # -- the sum

    def add_own(self, vector: Vector, now: float) -> None:
        """The worker has computed its unit."""
        self.total = vector
        if self.collecting is not None:
            self.collecting.own_is_done(now)

    def takes_own_from_child(self) -> bool:
        """Use the own unit that a child delivered, if the worker has not computed it. Return whether it was used."""
        if self.collecting is None or self.total is not None:
            return False
        self.total = self.collecting.ledger.shares.own_delivered()
        if self.total is None:
            return False
        self.collecting.late.add(self._node)
        return True

    def go_on(self, now: float) -> bool:
        """Sum and send every chunk that is ready, in order. Return whether the sum is now complete."""
        if self.total is None:
            return False
        self.offer_early(now)
        chunks, below = self._settings.chunks, self.collecting
        while self._next_chunk < chunks and (below is None or below.ledger.shares.can_sum(self._next_chunk)):
            if below is not None and len(below.ledger.shares):
                below.ledger.shares.total(self._next_chunk, self.total[self._settings.chunk_slice(self._next_chunk)])
            if self.is_pushed:
                self._send_chunk(self._next_chunk, now)
            self._next_chunk += 1
        if not self.is_done:
            return False
        if below is not None:
            below.end(now)
        if not self.is_pushed and not self._offered:
            self._offer(now)
        return True

    def give_up(self, now: float) -> None:
        """The sum is not needed, or this worker cannot make it: stop the children, and drop queued chunks."""
        if self.collecting is not None:
            self.collecting.end(now)
        self.outbox.clear()

    # -- messages to the parent

    def offer_early(self, now: float) -> None:
        """Offer a pushed sum ahead of its bytes, if all is computed here and below only bytes are missing."""
        if self._offered or not self._announces or not self.is_pushed or self.total is None:
            return
        if self.collecting is None or self.collecting.ledger.only_bytes_are_missing:
            self._offer(now)

    def _offer(self, now: float) -> None:
        self._offered = True
        generation, round_ = self._of
        offer = Offer(generation=generation, round=round_, task=self.task, worked=now - self._began)
        self._actions.append(Transmit(to=self._parent, message=offer))

    def _send_chunk(self, index: int, now: float) -> None:
        assert self.total is not None
        generation, round_ = self._of
        late = tuple(sorted(self._below.late))[:4096] if self._below is not None else ()
        message = ShareChunk(
            generation=generation, round=round_, task=self.task, index=index, late=late, worked=now - self._began
        )
        self.outbox.put(message, self.total[self._settings.chunk_slice(index)])

    def send(self, chunks: Sequence[int], now: float) -> None:
        """Send the chunks that the parent asks for, or all if it names none, if the sum is complete."""
        if not self.is_done:
            return
        for index in chunks or range(self._settings.chunks):
            if index < self._settings.chunks:
                self._send_chunk(index, now)

    def repeat(self, now: float, *, push: bool) -> None:
        """The parent asks for the same task again: a message must have been lost."""
        if not self.is_done:
            return
        if push:
            self.send((), now)
        else:
            self._offer(now)

    def send_part(self, vector: Vector, round_: int, task: int, covered: float) -> None:
        """Send a sum that covers a part of the task."""
        for index in range(self._settings.chunks):
            message = ShareChunk(generation=self._of[0], round=round_, task=task, index=index, covered=covered)
            self.outbox.put(message, vector[self._settings.chunk_slice(index)])

    def check(self, tasks: int) -> None:
        """Raise if more than the chunks of `tasks` tasks wait for the parent, or too many are in flight."""
        if self.outbox.in_flight > self._settings.window + 1:
            raise AssertionError(f"node {self._node} has {self.outbox.in_flight} chunks in flight to its parent")
        if self.outbox.waiting > self._settings.chunks * tasks:
            raise AssertionError(f"node {self._node} keeps {self.outbox.waiting} chunks for its parent")
