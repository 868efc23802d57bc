"""The root: sends models down, collects the sum, and says when a round is over or cannot end."""

from __future__ import annotations

import math

import numpy as np

from codedreduce.errors import ProtocolError
from codedreduce.protocol.events import (
    Aggregated,
    AnyAction,
    Begin,
    Drained,
    Finished,
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
from codedreduce.protocol.messages import Goodbye, Heartbeat, Hello, Late, Offer, Ready, Settle, ShareChunk
from codedreduce.protocol.parent import REDUNDANCY, Parent
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import TreePlan

#: The timer after which a round that cannot end says so, and the one after which an approximation is final.
PATIENCE = "patience"
SETTLED = "settled"


class RootState(State):
    """Where the root stands."""

    IDLE = "between rounds"
    COLLECTING = "a round is on"
    SETTLING = "asked everyone for what they have"
    STOPPED = "the run is over"


IDLE, COLLECTING, SETTLING, STOPPED = RootState
_RUNNING = (IDLE, COLLECTING, SETTLING)


class Root(Parent):
    """The state machine of node 0."""

    ROWS = (
        Row((IDLE,), Started, "_nothing", (IDLE,)),
        Row((IDLE,), Begin, "_on_begin", (COLLECTING,)),
        Row((COLLECTING,), ShareChunk, "_on_share_chunk", (COLLECTING, IDLE)),
        Row((IDLE,), ShareChunk, "_on_share_chunk", (IDLE,)),
        Row((SETTLING,), ShareChunk, "_on_share_chunk", (SETTLING, IDLE)),
        Row((COLLECTING, SETTLING), Offer, "_on_offer", (COLLECTING, SETTLING)),
        Row((IDLE,), Offer, "_on_offer", (IDLE,)),
        Row((COLLECTING,), TimerFired, "_on_timer", (COLLECTING, SETTLING)),
        Row((SETTLING,), TimerFired, "_on_timer", (SETTLING, IDLE)),
        Row((IDLE,), TimerFired, "_nothing", (IDLE,)),
        *(Row((state,), Hello, "_on_hello", (state,)) for state in _RUNNING),
        *(Row((state,), Ready, "_on_ready", (state,)) for state in _RUNNING),
        *(Row((state,), Late, "_on_late", (state,)) for state in _RUNNING),
        *(Row((state,), Heartbeat, "_nothing", (state,)) for state in _RUNNING),
        *(Row((state,), Goodbye, "_on_child_goodbye", (state,)) for state in _RUNNING),
        *(Row((state,), PeerLost, "_on_peer_lost", (state,)) for state in _RUNNING),
        *(Row((state,), PeerFound, "_nothing", (state,)) for state in _RUNNING),
        *(Row((state,), Drained, "_on_drained", (state,)) for state in _RUNNING),
        Row(_RUNNING, Leave, "_on_leave", (STOPPED,)),
        Row((STOPPED,), PeerLost, "_nothing", (STOPPED,)),
        Row((STOPPED,), PeerFound, "_nothing", (STOPPED,)),
        Row((STOPPED,), Drained, "_nothing", (STOPPED,)),
        Row((STOPPED,), TimerFired, "_nothing", (STOPPED,)),
    )

    def __init__(self, plan: TreePlan, settings: Settings) -> None:
        super().__init__(0, plan, settings)
        self.state: RootState = IDLE
        self._result: Vector | None = None

    @property
    def everyone_is_in(self) -> bool:
        """Whether all workers, on all levels, have joined."""
        return len(self.ready) == len(self.children)

    def _nothing(self, event: object, now: float, actions: list[AnyAction]) -> None:
        """Nothing to do."""

    def _on_begin(self, event: Begin, now: float, actions: list[AnyAction]) -> None:
        if event.round <= self.round:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        if len(event.model) != self.settings.length:
            raise ProtocolError(f"a model of {len(event.model)} numbers; the run was set up for {self.settings.length}")
        self._new_round(event.round)
        self.state = COLLECTING
        self.model = event.model
        self.model_chunks = self.settings.chunks
        self._result = np.empty_like(event.model) if self.settings.chunks > 1 else None
        self._start_collecting(0, now)
        for child in self.children:
            if child in self.present:
                for index in range(self.settings.chunks):
                    self._put_model_chunk(child, index, actions)
        actions.append(SetTimer(name=PATIENCE, at=now + self.settings.say_waiting_after))

    def _collecting_first(self) -> bool:
        return self.state is COLLECTING

    def _on_ready(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        if event.sender in self.present:
            self.ready.add(event.sender)

    def _on_late(self, event: Received, now: float, actions: list[AnyAction]) -> None:
        message = event.message
        assert isinstance(message, Late)
        self._late_result(message.node, message.round, message.seconds, actions)

    def _late_result(self, child: int, round_: int, seconds: float, actions: list[AnyAction]) -> None:
        reason = f"node {child} was {seconds:.3f} s late in round {round_}"
        actions.append(Note(kind="late", reason=reason, round=round_, nodes=(child,), seconds=seconds))

    def _shares_advanced(self, now: float, actions: list[AnyAction]) -> None:
        if self.state is IDLE:
            return
        while self._next_chunk < self.settings.chunks and self.collector.ready(self._next_chunk):
            total = self.collector.total(self._next_chunk, None)
            if self._result is None:
                self._result = total
            else:
                self._result[self.settings.chunk_slice(self._next_chunk)] = total
            self._next_chunk += 1
        if self._next_chunk == self.settings.chunks:
            self._end(now, 0.0, actions)

    def _end(self, now: float, residual: float, actions: list[AnyAction]) -> None:
        assert self._result is not None
        self._end_collecting(now, actions)
        self.state = IDLE
        late = tuple(sorted(self.late))
        actions.append(Aggregated(round=self.round, vector=self._result, residual=residual, late=late))
        self._result = None
        self.model = None

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == REDUNDANCY:
            self._ask_replicas(now, actions)
        elif event.name == PATIENCE and self.state is COLLECTING:
            self._out_of_patience(now, actions)
        elif event.name == SETTLED and self.state is SETTLING:
            result, covered = self.collector.settle(None)
            if result is None:
                actions.append(SetTimer(name=SETTLED, at=now + self.settings.say_waiting_after))
                return
            self._result = result
            residual = math.sqrt(max(0.0, 1.0 - covered))
            waiting = self.collector.waiting_for()
            reason = f"round {self.round} goes on without all of {list(waiting)}; residual {residual:.3g}"
            actions.append(Note(kind="approximate", reason=reason, round=self.round, nodes=waiting))
            self._end(now, residual, actions)

    def _out_of_patience(self, now: float, actions: list[AnyAction]) -> None:
        waiting = self.collector.waiting_for()
        absent = sorted(set(waiting) - self.present)
        reason = f"round {self.round} has waited {now - self.collector.since:.3g} s for one of {list(waiting)}"
        if absent:
            reason += f"; {absent} are not connected"
        actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        if self.settings.on_excess == "approximate":
            self.state = SETTLING
            for child in self.present:
                actions.append(Transmit(to=child, message=Settle(generation=self.generation, round=self.round)))
            wait = self.settings.say_waiting_after * 0.1 * self.plan.tree.depth
            actions.append(SetTimer(name=SETTLED, at=now + wait))
        else:
            actions.append(SetTimer(name=PATIENCE, at=now + self.settings.say_waiting_after))

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        for child in sorted(self.present):
            message = Goodbye(generation=self.generation, round=self.round, reason=event.reason)
            actions.append(Transmit(to=child, message=message))
        self.state = STOPPED
        actions.append(Finished(reason=event.reason))
