"""A ring node: computes, then reduces segments around the ring and passes the finished ones on."""

from __future__ import annotations

import numpy as np

from codedreduce.errors import ProtocolError
from codedreduce.protocol.events import (
    Aggregated,
    AnyAction,
    Begin,
    Compute,
    Computed,
    Drained,
    Finished,
    Interrupted,
    Leave,
    PeerFound,
    PeerLost,
    Received,
    Started,
    TimerFired,
    Vector,
)
from codedreduce.protocol.machine import Machine, Row, State
from codedreduce.protocol.messages import Heartbeat, RingChunk
from codedreduce.protocol.outbox import Outbox
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import RingPlan


class RingState(State):
    """Where a ring node stands."""

    WAITING = "between rounds"
    COMPUTING = "computes its gradient"
    EXCHANGING = "segments go round"
    LEFT = "has left"


WAITING, COMPUTING, EXCHANGING, LEFT = RingState
_IN = (WAITING, COMPUTING, EXCHANGING)


#: Segments a node of a ring sends ahead of their acknowledgement, at most.
MOST_IN_FLIGHT = 64


class RingNode(Machine):
    """The state machine of a ring node.

    Every node holds the model, and ends a round with the gradient sum, from which it makes the next model by itself:
    there is no root. A segment's chunks go round once to be added to and once more to be known to all.
    """

    ROWS = (
        Row((WAITING,), Started, "_nothing", (WAITING,)),
        Row((WAITING,), Begin, "_on_begin", (COMPUTING,)),
        Row((COMPUTING,), Computed, "_on_computed", (EXCHANGING, WAITING)),
        Row((WAITING, COMPUTING), RingChunk, "_on_early_chunk", (WAITING, COMPUTING)),
        Row((EXCHANGING,), RingChunk, "_on_chunk", (EXCHANGING, WAITING)),
        *(Row((state,), Drained, "_on_drained", (state,)) for state in _IN),
        *(Row((state,), trigger, "_nothing", (state,)) for state in _IN for trigger in (PeerFound, PeerLost)),
        *(
            Row((state,), trigger, "_nothing", (state,))
            for state in _IN
            for trigger in (TimerFired, Heartbeat, Interrupted)
        ),
        Row(_IN, Leave, "_on_leave", (LEFT,)),
        *(Row((LEFT,), trigger, "_nothing", (LEFT,)) for trigger in (Computed, TimerFired, Interrupted)),
        *(Row((LEFT,), trigger, "_nothing", (LEFT,)) for trigger in (PeerFound, PeerLost, Drained)),
    )

    def __init__(self, node: int, plan: RingPlan, settings: Settings) -> None:
        super().__init__()
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: RingState = WAITING
        self.round = 0
        self.next = plan.ring.next(node)
        self.out = Outbox(self.next, self._window(plan, settings))
        self.workers = plan.workers
        self._pieces = plan.unit(node).pieces
        self._segments = plan.segments(settings.length)
        self._vector: Vector | None = None
        self._left = 0
        self._early: dict[tuple[int, int, int, bool], Vector] = {}

    @staticmethod
    def _window(plan: RingPlan, settings: Settings) -> int:
        """As many segments as fit in a window of chunks: in a large ring they are small, and 2N of them go round."""
        longest = max(1, -(-settings.length // plan.workers))
        return max(settings.window, min(MOST_IN_FLIGHT, settings.window * settings.chunk // longest))

    def _nothing(self, event: object, now: float, actions: list[AnyAction]) -> None:
        """Nothing to do."""

    def _on_begin(self, event: Begin, now: float, actions: list[AnyAction]) -> None:
        if event.round <= self.round:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        self.round = event.round
        self.state = COMPUTING
        actions.append(Compute(round=self.round, task=self.node, pieces=self._pieces, model=event.model))

    def _parts(self, segment: int) -> list[slice]:
        """The chunks of a segment, as places in the vector."""
        where = self._segments[segment]
        starts = range(where.start, where.stop, self.settings.chunk)
        return [slice(start, min(start + self.settings.chunk, where.stop)) for start in starts]

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round:
            raise ProtocolError(f"round {event.round} was computed in round {self.round}")
        self._vector = event.vector
        self.state = EXCHANGING
        # every chunk of the vector is finished once at this node: as the last to add to it, or from the neighbour
        self._left = sum(len(self._parts(segment)) for segment in range(self.workers))
        if self.workers == 1:
            self._left = 0
        for index, where in enumerate(self._parts(self.node - 1)):
            self._send(self.node - 1, index, finished=False, data=self._vector[where], actions=actions)
        for key in sorted(key for key in self._early if key[0] == self.round):
            self._take(key[1], key[2], key[3], self._early.pop(key), actions)
        self._finish_if_done(actions)

    def _on_early_chunk(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        """A neighbour is ahead: keep its chunk until this node has something to add."""
        message = event.message
        assert isinstance(message, RingChunk)
        assert event.data is not None
        if message.round in (self.round, self.round + 1):
            self._early.setdefault((message.round, message.segment, message.index, message.finished), event.data)

    def _on_chunk(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, RingChunk)
        assert event.data is not None
        if message.round == self.round:
            self._take(message.segment, message.index, message.finished, event.data, actions)
            self._finish_if_done(actions)
        else:
            self._on_early_chunk(event, now, actions)

    def _take(self, segment: int, index: int, finished: bool, data: Vector, actions: list[AnyAction]) -> None:
        if segment >= self.workers or self._vector is None:
            return
        parts = self._parts(segment)
        if index >= len(parts) or parts[index].stop - parts[index].start != len(data):
            return
        where = parts[index]
        last = (segment - 1) % self.workers + 1  # the worker that adds to this segment last
        if finished:
            self._vector[where] = data
            self._left -= 1
            if self.plan.ring.next(self.node) != last:
                self._send(segment, index, finished=True, data=data, actions=actions)
        else:
            total = np.add(data, self._vector[where])
            if self.node == last:
                self._vector[where] = total
                self._left -= 1
            self._send(segment, index, finished=self.node == last, data=total, actions=actions)

    def _send(self, segment: int, index: int, *, finished: bool, data: Vector, actions: list[AnyAction]) -> None:
        if self.workers > 1:
            message = RingChunk(
                generation=self.generation, round=self.round, segment=segment, index=index, finished=finished
            )
            self.out.put(message, data, actions)

    def _finish_if_done(self, actions: list[AnyAction]) -> None:
        if self.state is EXCHANGING and self._left == 0:
            assert self._vector is not None
            self.state = WAITING
            actions.append(Aggregated(round=self.round, vector=self._vector))
            self._vector = None

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        self.out.drained(actions)

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        self.state = LEFT
        actions.append(Finished(reason=event.reason))

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        if self._left < 0:
            raise AssertionError(f"node {self.node} finished more chunks than there are")
        if len(self._early) > 2 * 2 * sum(len(self._parts(segment)) for segment in range(self.workers)):
            raise AssertionError(f"node {self.node} keeps {len(self._early)} early chunks")
