"""The root: sends models down, collects the sum, and reports when a round is over or cannot end."""

from __future__ import annotations

import math

from codedreduce.errors import ProtocolError
from codedreduce.protocol.core.events import (
    Aggregated,
    Begin,
    ComputationStopped,
    Computed,
    Drained,
    EveryoneIn,
    Failed,
    Finished,
    Leave,
    Note,
    PeerFound,
    PeerLost,
    SetTimer,
    Started,
    TimerFired,
)
from codedreduce.protocol.core.machine import CHILD, OWN, STAY, STRANGER, From, Machine, Row, State
from codedreduce.protocol.core.membership import is_ahead
from codedreduce.protocol.core.messages import (
    AnyMessage,
    Failure,
    Goodbye,
    Hello,
    Late,
    Leaving,
    Offer,
    Ready,
    Settle,
    ShareChunk,
    Trouble,
    Unable,
)
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.protocol.tree.standing_in import StandingIn
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector, empty


class RootState(State):
    """The state of the root."""

    IDLE = "between rounds"
    COLLECTING = "a round is on"
    SETTLING = "asked everyone for what they have"
    STOPPED = "the run is over"


IDLE, COLLECTING, SETTLING, STOPPED = RootState
IN_ROUND = (COLLECTING, SETTLING)
_RUNNING = (IDLE, *IN_ROUND)

#: States, trigger and sender; the method that handles the trigger, of `Root` or of a part; the states it may lead to.
ROWS = (
    Row((IDLE,), Started, OWN, "_on_started"),
    Row((IDLE,), Begin, OWN, "_on_begin", (COLLECTING,)),
    Row(IN_ROUND, ShareChunk, CHILD, "_on_share_chunk", (STAY, IDLE)),
    Row((COLLECTING,), TimerFired, OWN, "_on_timer", (STAY, SETTLING)),
    Row((SETTLING,), TimerFired, OWN, "_on_timer", (STAY, IDLE)),
    Row(_RUNNING, Leave, OWN, "_on_leave", (STOPPED,)),
    Row(IN_ROUND, Unable, CHILD, "_on_unable", (STAY, STOPPED)),
    Row(IN_ROUND, Failure, CHILD, "_on_failure", (STAY, STOPPED)),
    Row((IDLE,), Failure, CHILD, "_note_failure"),
    Row(IN_ROUND, Computed, OWN, "_on_computed", (STAY, IDLE)),
    Row(IN_ROUND, Failed, OWN, "_standing_in.on_failed"),
    Row(IN_ROUND, ComputationStopped, OWN),
    *(Row((IDLE, STOPPED), what, OWN) for what in (Computed, Failed, ComputationStopped)),
    Row((IDLE,), ShareChunk, CHILD, "_on_share_chunk"),
    Row((IDLE,), TimerFired, OWN, "_on_timer"),
    Row(_RUNNING, Offer, CHILD, "_on_offer"),
    Row(_RUNNING, Hello, CHILD, "_on_hello"),
    Row(_RUNNING, Ready, CHILD, "_on_ready"),
    Row(_RUNNING, Late, CHILD, "_on_late"),
    Row(_RUNNING, Goodbye, CHILD, "_on_goodbye"),
    Row(_RUNNING, Leaving, CHILD, "_on_leaving"),
    Row(_RUNNING, PeerLost, OWN, "_on_peer_lost"),
    Row(_RUNNING, PeerFound, OWN),
    Row(_RUNNING, Drained, OWN, "_on_drained"),
    *(Row((STOPPED,), trigger, OWN) for trigger in (PeerLost, PeerFound, Drained, TimerFired)),
)


class Root(Machine):
    """The state machine of node 0."""

    ROWS = ROWS

    def __init__(self, plan: TreePlan, settings: Settings, *, computes: bool = False) -> None:
        super().__init__()
        self.node = 0
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: RootState = IDLE
        self.round = settings.after
        self.below = Collecting(self._actions, 0, plan, settings)
        self._model: Vector | None = None
        self._result: Vector | None = None
        self._next_chunk = 0  # chunks up to here are summed
        self._since = 0.0  # when the root started
        self._standing_in = StandingIn(self._actions, plan, settings, self.below, computes=computes)
        self._may_begin = False  # whether enough workers have joined

    def lacking(self) -> list[int]:
        """The missing workers, without those below them."""
        return self.below.roster.lacking()

    def _role_of(self, sender: int) -> From:
        return CHILD if sender in self.below.children else STRANGER

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        assert isinstance(message, ShareChunk)
        return self.settings.is_chunk(message.index, len(data))

    # -- children join and leave

    def _on_started(self, event: Started, now: float) -> None:
        self._since = now
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.excess.say_waiting_after))

    def _on_hello(self, hello: Hello, child: int, now: float) -> None:
        if hello.plan == self.below.roster.run and is_ahead(hello, self.generation, self.round):
            self._succeed(hello.generation + 1, now)
        is_needed = self.state in IN_ROUND and not self.below.ledger.shares.satisfied
        if self.below.hello(hello, child, is_needed=is_needed):
            assert self._model is not None
            self.below.send_model(self._model, range(self.settings.chunks), to=child)

    def _succeed(self, generation: int, now: float) -> None:
        """Take a new generation: workers have seen rounds of another root, and must not mix them with this root's."""
        self.generation = generation
        reason = f"this root succeeds another: it continues after round {self.round}, with generation {generation}"
        self._actions.append(Note(kind="succeeds", reason=reason, round=self.round))
        self.below.adopt(generation)
        self.below.new_round(self.round)
        if self.state in IN_ROUND:
            assert self._model is not None
            self._send_out(self._model, now)

    def _on_ready(self, ready: Ready, child: int, now: float) -> None:
        if not self.below.roster.ready(child, ready.missing):
            return
        if self._may_begin:
            self._somebody_went(now)
            return
        if self.below.roster.complete:
            self._may_begin = True
            self._actions.append(EveryoneIn())
        elif self._suffices:
            passed = now - self._since
            self._actions.append(SetTimer(name=Timer.ENOUGH, at=now + max(self.settings.timing.latecomer_wait, passed)))

    @property
    def _suffices(self) -> bool:
        """Whether the workers that have joined suffice for a round."""
        missing = self.below.roster.lacking()
        return all(map(self.plan.is_worker, missing)) and self.plan.tolerates(missing)

    def _begin_with_those(self, now: float) -> None:
        """Begin without the others: twice the time has passed that enough workers took to join."""
        if self._may_begin or not self._suffices:
            return
        self._may_begin = True
        missing = self.lacking()
        reason = f"begins without {missing}, which did not join within {now - self._since:.3g} s: the others suffice"
        self._actions.append(Note(kind="begins", reason=reason, round=self.round, nodes=tuple(missing)))
        self._actions.append(EveryoneIn())

    def _on_goodbye(self, goodbye: Goodbye, child: int, now: float) -> None:
        self.below.goodbye(goodbye, child)
        self._somebody_went(now)

    def _on_leaving(self, leaving: Leaving, child: int, now: float) -> None:
        self.below.leaving(leaving, child, at_once=self.state is IDLE)

    def _on_peer_lost(self, event: PeerLost, now: float) -> None:
        self.below.lost(event.peer)
        self._somebody_went(now)

    def _on_drained(self, event: Drained, now: float) -> None:
        self.below.drained(event.peer)

    def _on_leave(self, event: Leave, now: float) -> None:
        self._stop(event.reason)

    def _stop(self, reason: str, troubles: tuple[Trouble, ...] = ()) -> None:
        goodbye = Goodbye(generation=self.generation, round=self.round, reason=reason[:1000])
        self.below.tell_all(goodbye)
        self.state = STOPPED
        self._actions.append(Finished(reason=reason, troubles=troubles))

    # -- a round

    def _on_begin(self, event: Begin, now: float) -> None:
        if event.round <= self.round:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        if len(event.model) != self.settings.length:
            raise ProtocolError(f"a model of {len(event.model)} numbers; the run was set up for {self.settings.length}")
        self.state = COLLECTING
        self.round = event.round
        self._model = event.model
        self.below.new_round(event.round)
        self.below.let_go()
        self._send_out(event.model, now)
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.excess.say_waiting_after))
        self._standing_in.begin(event.model, now)

    def _send_out(self, model: Vector, now: float) -> None:
        self._result = empty(len(model), model.dtype) if self.settings.chunks > 1 else None
        self._next_chunk = 0
        self.below.ledger.start(0, now)
        self.below.send_model(model, range(self.settings.chunks))

    def _on_share_chunk(self, chunk: ShareChunk, child: int, data: Vector, now: float) -> None:
        self._standing_in.heard_of(chunk.task)
        if self.below.share_chunk(chunk, child, data, now) and self.state is not IDLE:
            self._add_up(now)

    def _on_offer(self, offer: Offer, child: int, now: float) -> None:
        self._standing_in.heard_of(offer.task)
        self.below.offer(offer, child, now)

    def _on_late(self, late: Late, child: int, now: float) -> None:
        if self.plan.is_worker(late.node):
            self.below.tell_late(late.node, late.round, late.seconds)

    # -- failures

    def _on_unable(self, unable: Unable, child: int, now: float) -> None:
        self._stop_if_lost(self.below.unable(unable, child, now))

    def _on_failure(self, failure: Failure, child: int, now: float) -> None:
        if failure.ends and failure.round == self.round:
            named = tuple(trouble for trouble in failure.troubles if self.plan.is_worker(trouble[0]))
            self._stop_if_lost(named)
        self._note_failure(failure, child, now)

    def _note_failure(self, failure: Failure, child: int, now: float) -> None:
        for node, reason in () if failure.ends else failure.troubles:
            if self.plan.is_worker(node):
                words = f"worker {node} failed in round {failure.round}: {reason}"
                self._actions.append(Note(kind="failed", reason=words, round=failure.round, nodes=(node,)))

    def _stop_if_lost(self, troubles: tuple[Trouble, ...]) -> None:
        """End the run, and name the workers that failed, if no worker can do a part of this round."""
        if troubles:
            failed = sorted({node for node, _ in troubles})
            self._stop(f"round {self.round} cannot be computed: workers {failed} failed", troubles)

    # -- the sum

    def _add_up(self, now: float) -> None:
        shares = self.below.ledger.shares
        while self._next_chunk < self.settings.chunks and shares.can_sum(self._next_chunk):
            total = shares.total(self._next_chunk, None)
            if self._result is None:
                self._result = total
            else:
                self._result[self.settings.chunk_slice(self._next_chunk)] = total
            self._next_chunk += 1
        if self._next_chunk == self.settings.chunks:
            self._standing_in.end(now)
            self.below.end(now)
            self._end(0.0)

    def _end(self, residual: float) -> None:
        assert self._result is not None
        self.state = IDLE
        late = tuple(sorted(self.below.late))
        self._actions.append(Aggregated(round=self.round, vector=self._result, residual=residual, late=late))
        self._model = self._result = None

    # -- the root in place of missing workers

    def _on_computed(self, event: Computed, now: float) -> None:
        if self._standing_in.computed(event, now):
            self._add_up(now)
            if self.state is not IDLE:
                self._standing_in.go_on()

    def _somebody_went(self, now: float) -> None:
        if self.state in IN_ROUND:
            self._standing_in.somebody_went(now)

    # -- a round that cannot end

    def _on_timer(self, event: TimerFired, now: float) -> None:
        if event.name == Timer.ENOUGH:
            self._begin_with_those(now)
        elif event.name == Timer.REPLAN and self.state in IN_ROUND:
            self._standing_in.look(now)
        elif event.name == Timer.REDUNDANCY and self.state in IN_ROUND:
            self.below.ask_replicas(now)
        elif event.name == Timer.WAITING and self.state is IDLE and not self._may_begin:
            self._say_who_is_missing(now)
        elif event.name == Timer.WAITING and self.state is COLLECTING:
            self._say_waiting(now)
        elif event.name == Timer.SETTLED and self.state is SETTLING:
            self._settle(now)

    def _say_who_is_missing(self, now: float) -> None:
        missing = self.lacking()
        reason = f"has waited {now - self._since:.3g} s for workers to join; {missing} are missing"
        self._actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=tuple(missing)))
        self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.excess.say_waiting_after))

    def _say_waiting(self, now: float) -> None:
        waiting = self.below.ledger.shares.waiting_for()
        absent = [child for child in waiting if not self.below.roster.has(child)]
        reason = f"round {self.round} has waited {now - self.below.ledger.since:.3g} s for one of {list(waiting)}"
        if absent:
            reason += f"; {absent} are not connected"
        self._actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        if self.settings.excess.do == "approximate":
            self.state = SETTLING
            self.below.tell_all(Settle(generation=self.generation, round=self.round))
            self._actions.append(SetTimer(name=Timer.SETTLED, at=now + self.settings.to_settle(self.plan.tree.depth)))
        else:
            self._actions.append(SetTimer(name=Timer.WAITING, at=now + self.settings.excess.say_waiting_after))

    def _settle(self, now: float) -> None:
        result, covered = self.below.ledger.shares.settle(None)
        if result is None:
            self._actions.append(SetTimer(name=Timer.SETTLED, at=now + self.settings.excess.say_waiting_after))
            return
        self._result = result
        residual = math.sqrt(max(0.0, 1.0 - covered))
        waiting = self.below.ledger.shares.waiting_for()
        reason = f"round {self.round} goes on without all of {list(waiting)}; residual {residual:.3g}"
        self._actions.append(Note(kind="approximate", reason=reason, round=self.round, nodes=waiting))
        self._standing_in.end(now)
        self.below.end(now)
        self._end(residual)

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        self.below.check()
