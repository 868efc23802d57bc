"""A ring node: computes, then reduces segments around the ring and passes the finished ones on."""

from __future__ import annotations

from codedreduce.errors import ProtocolError
from codedreduce.protocol.core.events import (
    Aggregated,
    Begin,
    ComputationStopped,
    Compute,
    Computed,
    Drained,
    Finished,
    Leave,
    PeerFound,
    PeerLost,
    Started,
    TimerFired,
)
from codedreduce.protocol.core.machine import OWN, PREVIOUS, STAY, STRANGER, From, Machine, Row, State
from codedreduce.protocol.core.messages import AnyMessage, RingChunk
from codedreduce.protocol.core.outbox import Outbox
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import RingPlan
from codedreduce.vectors import Vector, combine, empty


class RingState(State):
    """The state of a ring node."""

    WAITING = "between rounds"
    COMPUTING = "computes its gradient"
    EXCHANGING = "segments go round"
    LEFT = "has left"


WAITING, COMPUTING, EXCHANGING, LEFT = RingState
_IN = (WAITING, COMPUTING, EXCHANGING)


#: The most segments that a ring node sends ahead of their acknowledgement.
MOST_IN_FLIGHT = 64


class RingNode(Machine):
    """The state machine of a ring node.

    There is no root. Every node holds the model, ends a round with the gradient sum, and makes the next model from it.
    A segment's chunks go round once to be added up, and once more to distribute the sum.
    """

    ROWS = (
        Row((WAITING,), Started, OWN),
        Row((WAITING,), Begin, OWN, "_on_begin", (COMPUTING,)),
        Row((COMPUTING,), Computed, OWN, "_on_computed", (EXCHANGING, WAITING)),
        Row((EXCHANGING,), RingChunk, PREVIOUS, "_on_chunk", (STAY, WAITING)),
        Row(_IN, Leave, OWN, "_on_leave", (LEFT,)),
        Row((WAITING, COMPUTING), RingChunk, PREVIOUS, "_on_early_chunk"),
        Row(_IN, Drained, OWN, "_on_drained"),
        *(Row(_IN, trigger, OWN) for trigger in (PeerFound, PeerLost, TimerFired, ComputationStopped)),
        *(Row((LEFT,), what, OWN) for what in (Computed, TimerFired, ComputationStopped, PeerFound, PeerLost, Drained)),
    )

    def __init__(self, node: int, plan: RingPlan, settings: Settings) -> None:
        super().__init__()
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: RingState = WAITING
        self.round = settings.after
        self.next = plan.next(node)
        self.out = Outbox(self._actions, self.next, self._window(plan, settings))
        self.workers = plan.workers
        self._pieces = plan.unit(node).pieces
        self._segments = plan.segments(settings.length)
        self._vector: Vector | None = None
        self._left = 0
        self._taken: set[tuple[int, int, bool]] = set()  # chunks received in this round
        self._early: dict[tuple[int, int, int, bool], Vector] = {}

    @staticmethod
    def _window(plan: RingPlan, settings: Settings) -> int:
        """As many segments as fit in a window of chunks: in a large ring they are small, and 2N of them go round."""
        longest = max(1, -(-settings.length // plan.workers))
        return max(settings.window, min(MOST_IN_FLIGHT, settings.window * settings.chunk // longest))

    def _role_of(self, sender: int) -> From:
        return PREVIOUS if sender == self.plan.previous(self.node) else STRANGER

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        assert isinstance(message, RingChunk)
        if message.segment >= self.workers or self.workers == 1:
            return False
        parts = self._parts(message.segment)
        return message.index < len(parts) and parts[message.index].stop - parts[message.index].start == len(data)

    def _on_begin(self, event: Begin, now: float) -> None:
        if event.round <= self.round:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        self.round = event.round
        self.state = COMPUTING
        self._early = {key: data for key, data in self._early.items() if key[0] >= event.round}
        self._actions.append(Compute(round=self.round, task=self.node, pieces=self._pieces, model=event.model))

    def _parts(self, segment: int) -> list[slice]:
        """The chunks of a segment, as slices of the vector."""
        where = self._segments[segment]
        starts = range(where.start, where.stop, self.settings.chunk)
        return [slice(start, min(start + self.settings.chunk, where.stop)) for start in starts]

    def _on_computed(self, event: Computed, now: float) -> None:
        if event.round != self.round:
            raise ProtocolError(f"round {event.round} was computed in round {self.round}")
        self._vector = event.vector
        self._taken.clear()
        self.state = EXCHANGING
        # every chunk of the vector is finished once at this node: the node adds to it last, or the neighbour sends it
        self._left = sum(len(self._parts(segment)) for segment in range(self.workers))
        if self.workers == 1:
            self._left = 0
        for index, where in enumerate(self._parts(self.node - 1)):
            self._send(self.node - 1, index, finished=False, data=self._vector[where])
        for key in sorted(key for key in self._early if key[0] == self.round):
            self._take(key[1], key[2], key[3], self._early.pop(key))
        self._finish_if_done()

    def _on_early_chunk(self, chunk: RingChunk, sender: int, data: Vector, now: float) -> None:
        """A neighbour is ahead: keep its chunk until this node has something to add."""
        if chunk.round in (self.round, self.round + 1) and not self._is_over(chunk.round):
            self._early.setdefault((chunk.round, chunk.segment, chunk.index, chunk.finished), data)

    def _is_over(self, round_: int) -> bool:
        return round_ == self.round and self.state is WAITING

    def _on_chunk(self, chunk: RingChunk, sender: int, data: Vector, now: float) -> None:
        if chunk.round == self.round:
            self._take(chunk.segment, chunk.index, chunk.finished, data)
            self._finish_if_done()
        else:
            self._on_early_chunk(chunk, sender, data, now)

    def _take(self, segment: int, index: int, finished: bool, data: Vector) -> None:
        assert self._vector is not None
        if not self._comes_next(segment, index, finished):
            return
        self._taken.add((segment, index, finished))
        last = self._last(segment)
        where = self._parts(segment)[index]
        if finished:
            self._vector[where] = data
            self._left -= 1
            if self.next != last:
                self._send(segment, index, finished=True, data=data)
        else:
            total = combine([data, self._vector[where]], None, empty(len(data), data.dtype))
            if self.node == last:
                self._vector[where] = total
                self._left -= 1
            self._send(segment, index, finished=self.node == last, data=total)

    def _last(self, segment: int) -> int:
        """The worker that adds to a segment last, and so is the first to have its sum."""
        return (segment - 1) % self.workers + 1

    def _comes_next(self, segment: int, index: int, finished: bool) -> bool:
        """Whether a chunk is due: partial once, unless it began here; then finished once, unless it ended here."""
        if (segment, index, finished) in self._taken:
            return False
        began_here = segment == self.node - 1
        if finished:
            return self.node != self._last(segment) and (began_here or (segment, index, False) in self._taken)
        return not began_here

    def _send(self, segment: int, index: int, *, finished: bool, data: Vector) -> None:
        if self.workers > 1:
            message = RingChunk(
                generation=self.generation, round=self.round, segment=segment, index=index, finished=finished
            )
            self.out.put(message, data)

    def _finish_if_done(self) -> None:
        if self.state is EXCHANGING and self._left == 0:
            assert self._vector is not None
            self.state = WAITING
            self._actions.append(Aggregated(round=self.round, vector=self._vector))
            self._vector = None

    def _on_drained(self, event: Drained, now: float) -> None:
        self.out.drained()

    def _on_leave(self, event: Leave, now: float) -> None:
        self.state = LEFT
        self._actions.append(Finished(reason=event.reason))

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        if self._left < 0:
            raise AssertionError(f"node {self.node} finished more chunks than there are")
        if len(self._early) > 2 * 2 * sum(len(self._parts(segment)) for segment in range(self.workers)):
            raise AssertionError(f"node {self.node} keeps {len(self._early)} early chunks")
