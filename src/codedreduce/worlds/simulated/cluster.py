"""The simulated world: the protocol's machines over virtual time, with real vectors, and an oracle looking on."""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codedreduce.errors import CodedReduceError, WireError
from codedreduce.protocol import Machine, Settings, machine_for
from codedreduce.protocol.events import (
    Aggregated,
    Begin,
    Cancel,
    Compute,
    Computed,
    Drained,
    Event,
    EveryoneIn,
    Finished,
    Note,
    PeerFound,
    PeerLost,
    Received,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.messages import AnyMessage
from codedreduce.protocol.root import Root
from codedreduce.protocol.wire import decode, encode
from codedreduce.schemes import Plan, TreePlan
from codedreduce.schemes.work import samples_in
from codedreduce.vectors import Vector
from codedreduce.worlds.delays import Delays, Draw
from codedreduce.worlds.simulated.faults import Fault
from codedreduce.worlds.simulated.gradients import LEVELS, Gradients
from codedreduce.worlds.simulated.kernel import Kernel
from codedreduce.worlds.simulated.network import Cores, Host, Link, Network
from codedreduce.worlds.simulated.record import Recorder


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the simulated machines and wires are like."""

    link: Link = field(default_factory=Link)
    sample_seconds: float = 0.003
    delays: Delays
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    host: Host | None = None  # what all nodes share, if they do


class NodeRuntime:
    """What the world keeps of a node beside its machine."""

    __slots__ = (
        "alive", "compute", "compute_started", "cut", "epoch", "held", "machine", "paused", "stall", "tampering",
        "timers", "token",
    )  # fmt: skip

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.alive = True
        self.paused = 0
        self.cut = 0
        self.epoch = 0
        self.token = 0
        self.compute: Compute | None = None
        self.compute_started = 0.0
        self.stall = (0, 0.0)  # the round whose start-up delay was met, and when it ends
        self.timers: dict[str, int] = {}
        self.held: list[tuple[Event, int]] = []
        self.tampering: dict[str, int] = {}


class SimulatedCluster:
    """All nodes of a plan, their network, and virtual time."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        conditions: Conditions,
        gradients: Gradients,
        *,
        recorder: Recorder | None = None,
        checking: bool = False,
    ) -> None:
        self.plan = plan
        self.settings = settings
        self.conditions = conditions
        self.gradients = gradients
        self.recorder = recorder or Recorder()
        self.kernel = Kernel()
        self.network = Network(self.kernel, plan.workers + 1, conditions.link)
        self._cores = Cores(conditions.host) if conditions.host is not None else None
        self.is_tree = isinstance(plan, TreePlan)
        first = 0 if self.is_tree else 1
        self.nodes = {n: NodeRuntime(machine_for(n, plan, settings)) for n in range(first, plan.workers + 1)}
        self.work = 0.0  # samples computed in this round
        self.listener: Callable[[Aggregated], None] | None = None  # told of every gradient
        self._checking = checking
        self._draws: dict[int, Draw] = {}
        self._references: dict[int, bytes] = {}
        self._last: tuple[Vector, int] | None = None
        self._ring_done: dict[int, int] = {}
        self._round_began = 0.0
        self._rounds = 0
        self._random = random.Random(conditions.seed)  # tampering only
        self._performers: dict[type, Callable[[int, Any], None]] = {
            Transmit: self._transmit,
            Compute: self._compute,
            Cancel: self._cancel,
            SetTimer: self._set_timer,
            EveryoneIn: lambda node, action: None,
            Aggregated: self._aggregated,
            Note: self._note,
            Finished: self._finished,
        }

    # -- running

    def run(
        self, rounds: int, *, latest: float = float("inf"), progress: Callable[[int], None] | None = None
    ) -> Recorder:
        """Run this many rounds, or until nothing more can happen."""
        enabled = gc.isenabled()
        gc.disable()  # events make no cycles; looking for some among 100,000 machines takes half the time
        try:
            return self._run(rounds, latest, progress)
        finally:
            if enabled:
                gc.enable()

    def _run(self, rounds: int, latest: float, progress: Callable[[int], None] | None) -> Recorder:
        for node in self.nodes:
            self._dispatch(node, Started())
        if self.is_tree:
            root = self.nodes[0].machine
            assert isinstance(root, Root)
            self.kernel.run(lambda: root.everyone_is_in)
        self._rounds = rounds
        self._begin_round(1)
        reported = 0
        while len(self.recorder.rounds) < rounds and self.kernel.now <= latest:
            if not self.kernel.step():
                break
            if progress is not None and len(self.recorder.rounds) > reported:
                reported = len(self.recorder.rounds)
                progress(reported)
        self.recorder.busiest_bytes = self.network.busiest_bytes()
        self.recorder.steps = self.kernel.steps
        return self.recorder

    def _begin_round(self, round_: int) -> None:
        self._round_began = self.kernel.now
        self._inject(round_)
        model = self.gradients.model(round_)
        for node in [0] if self.is_tree else list(self.nodes):
            self._dispatch(node, Begin(round=round_, model=model))

    def _dispatch(self, node: int, event: Event, drained: int = -1) -> None:
        """Let a machine handle an event, and do what it says."""
        runtime = self.nodes[node]
        if not runtime.alive:
            return
        if runtime.paused:
            runtime.held.append((event, drained))
            return
        now = self.kernel.now
        actions = runtime.machine.handle(event, now)
        if self.recorder.tracing:
            self.recorder.trace(now, node, event, actions)
        if self._checking:
            runtime.machine.check_invariants()
        performers = self._performers
        for action in actions:
            performers[type(action)](node, action)
        if drained >= 0:
            self.kernel.at(now + self.conditions.link.latency, self._dispatch, drained, Drained(peer=node))

    # -- messages

    def _transmit(self, sender: int, action: Transmit) -> None:
        receiver = action.to
        one, other = self.nodes[sender], self.nodes[receiver]
        message, data = action.message, action.data
        arguments = (sender, receiver, message, data, action.marked, one.epoch, other.epoch)
        if one.tampering:
            self._tamper(arguments)
            return
        if data is None:
            self.network.small(sender, receiver, self._deliver, *arguments)
        else:
            begin, end = self.network.chunk(sender, receiver, data.nbytes, self._deliver, *arguments)
            if self.recorder.timeline_round == message.round:
                self.recorder.interval(sender, "send", begin, end)

    def _deliver(
        self, sender: int, receiver: int, message: AnyMessage, data: Vector | None, marked: bool, epoch: int, other: int
    ) -> None:
        one, two = self.nodes[sender], self.nodes[receiver]
        if one.epoch != epoch or two.epoch != other or ((one.cut or two.cut) and self._cuts(sender, receiver)):
            return  # the connection it was sent over is gone
        event = Received(sender=sender, message=message, data=data)
        acknowledge = sender if marked else -1
        if self._cores is None:
            self._dispatch(receiver, event, acknowledge)
        else:
            self.kernel.at(self._cores.handled_at(self.kernel.now), self._dispatch, receiver, event, acknowledge)

    def _cuts(self, sender: int, receiver: int) -> bool:
        """Whether the link between two nodes is cut; a cut is on the link from a node to its parent."""
        child = max(sender, receiver) if self.is_tree else sender
        return self.nodes[child].cut > 0

    def _tamper(self, arguments: tuple[Any, ...]) -> None:
        """Send a message as a faulty node does: twice, late, or damaged."""
        sender, receiver, message, data, marked = arguments[:5]
        kinds = self.nodes[sender].tampering
        if "corrupt" in kinds and self._random.random() < 0.3:
            header = bytearray(encode(message))
            header[self._random.randrange(len(header))] ^= 1 << self._random.randrange(8)
            try:
                decode(bytes(header), 0 if data is None else data.nbytes, self.settings.chunk_bytes)
            except WireError:
                if marked:
                    self.kernel.at(self.kernel.now, self._dispatch, sender, Drained(peer=receiver))
                return
            raise CodedReduceError(f"a damaged {type(message).__name__} was taken for a good one")
        extra = self._random.random() * 50 * self.conditions.link.latency if "reorder" in kinds else 0.0
        size = 0 if data is None else data.nbytes
        self.network.chunk(sender, receiver, size, self._later, extra, arguments)
        if "duplicate" in kinds:
            self.network.chunk(sender, receiver, size, self._later, extra / 2, (*arguments[:4], False, *arguments[5:]))

    def _later(self, extra: float, arguments: tuple[Any, ...]) -> None:
        self.kernel.at(self.kernel.now + extra, self._deliver, *arguments)

    # -- computing

    def _draw(self, round_: int) -> Draw:
        if round_ not in self._draws:
            while len(self._draws) > 4:
                del self._draws[next(iter(self._draws))]
            self._draws[round_] = self.conditions.delays.draw(round_)
        return self._draws[round_]

    def _compute(self, node: int, action: Compute) -> None:
        runtime = self.nodes[node]
        if runtime.compute is not None:
            self._stop(node, runtime)
        draw = self._draw(action.round)
        now = self.kernel.now
        if runtime.stall[0] != action.round:
            runtime.stall = (action.round, now + float(draw.startup[node - 1]))
        begin = max(now, runtime.stall[1])
        duration = samples_in(action.pieces) * self.conditions.sample_seconds * float(draw.slowness[node - 1])
        runtime.token += 1
        runtime.compute = action
        runtime.compute_started = begin
        if self._cores is None:
            self.kernel.at(begin + duration, self._computed, node, runtime.token, runtime.epoch)
        else:
            self.kernel.at(begin, self._calculate, node, runtime.token, runtime.epoch, begin + duration)

    def _calculate(self, node: int, token: int, epoch: int, due: float) -> None:
        """On shared cores a worker computes as long as it is said to, or longer, until a core has done it."""
        action = self.nodes[node].compute
        if action is not None and self.nodes[node].token == token:
            assert self._cores is not None
            done = self._cores.calculated_at(self.kernel.now, samples_in(action.pieces))
            self.kernel.at(max(due, done), self._computed, node, token, epoch)

    def _computed(self, node: int, token: int, epoch: int) -> None:
        runtime = self.nodes[node]
        action = runtime.compute
        if action is None or runtime.token != token or runtime.epoch != epoch:
            return
        runtime.compute = None
        self.work += samples_in(action.pieces)
        if self.recorder.timeline_round == action.round:
            self.recorder.interval(node, "compute", runtime.compute_started, self.kernel.now)
        vector = self.gradients.of_pieces(action.pieces, action.model)
        self._dispatch(node, Computed(round=action.round, task=action.task, vector=vector))

    def _cancel(self, node: int, action: Cancel) -> None:
        runtime = self.nodes[node]
        if runtime.compute is not None:
            self._stop(node, runtime)

    def _stop(self, node: int, runtime: NodeRuntime) -> None:
        """Interrupt a computation: what was done of it counts as work, and is reported if it is to be salvaged."""
        action = runtime.compute
        assert action is not None
        runtime.compute = None
        runtime.token += 1
        slowness = float(self._draw(action.round).slowness[node - 1])
        done = max(0.0, self.kernel.now - runtime.compute_started) / (self.conditions.sample_seconds * slowness)
        total = samples_in(action.pieces)
        self.work += min(done, total)
        if self.recorder.timeline_round == action.round:
            self.recorder.interval(node, "interrupted", min(runtime.compute_started, self.kernel.now), self.kernel.now)
        if action.salvage:
            finished: list[Any] = []
            for piece in action.pieces:
                done -= samples_in((piece,))
                if done < 0:
                    break
                finished.append(piece)
            if finished:
                vector = self.gradients.of_pieces(tuple(finished), action.model)
                covered = samples_in(finished) / total
                event = Computed(round=action.round, task=action.task, vector=vector, covered=covered)
                self.kernel.at(self.kernel.now, self._dispatch, node, event)

    def _set_timer(self, node: int, action: SetTimer) -> None:
        runtime = self.nodes[node]
        token = runtime.timers[action.name] = runtime.timers.get(action.name, 0) + 1
        self.kernel.at(action.at, self._fire, node, action.name, token, runtime.epoch)

    def _fire(self, node: int, name: str, token: int, epoch: int) -> None:
        runtime = self.nodes[node]
        if runtime.timers.get(name) == token and runtime.epoch == epoch:
            self._dispatch(node, TimerFired(name=name))

    # -- rounds end

    def _aggregated(self, node: int, action: Aggregated) -> None:
        if not self.is_tree:
            self._ring_done[action.round] = self._ring_done.get(action.round, 0) + 1
            self._judge(action)
            if self._ring_done[action.round] == len(self.nodes):
                self._record(action)
            if action.round < self._rounds:
                begin = Begin(round=action.round + 1, model=self.gradients.model(action.round + 1))
                if self._ring_done[action.round] == 1:
                    self._inject(action.round + 1)
                self.kernel.at(self.kernel.now, self._dispatch, node, begin)
            return
        self._judge(action)
        self._record(action)
        if action.round < self._rounds:
            self.kernel.at(self.kernel.now, self._begin_round, action.round + 1)

    def _record(self, action: Aggregated) -> None:
        draw = self._draw(action.round)
        self.recorder.round_over(
            round_=action.round,
            seconds=self.kernel.now - self._round_began,
            work=self.work / self.plan.samples,
            residual=action.residual,
            late=action.late,
            delays=draw.startup + (draw.slowness - 1) * self.conditions.delays.unit,
        )
        self.work = 0.0
        if not self.is_tree:
            self._round_began = self.kernel.now

    def _judge(self, action: Aggregated) -> None:
        """The oracle: compare with the true gradient, and with the bits of a calm round."""
        if self.listener is not None:
            self.listener(action)
        if self._last is not None and zlib.crc32(self._last[0].data) != self._last[1]:
            raise AssertionError(f"the gradient of round {action.round - 1} changed after the round was over")
        if self._checking:
            self._last = (action.vector, zlib.crc32(action.vector.data))
        truth = self.gradients.truth(action.round)
        error = float(np.linalg.norm(action.vector - truth) / np.linalg.norm(truth))
        level = action.round % len(LEVELS)
        if level not in self._references:
            model = self.gradients.model(action.round)
            calm = self.plan.reference(lambda piece: self.gradients.of_piece(piece, model))
            self._references[level] = calm.tobytes()
        self.recorder.judged(error, action.vector.tobytes() == self._references[level])

    def _note(self, node: int, action: Note) -> None:
        self.recorder.note(self.kernel.now, node, action)

    def _finished(self, node: int, action: Finished) -> None:
        self.nodes[node].alive = False

    # -- faults

    def _inject(self, round_: int) -> None:
        for fault in self.conditions.faults:
            if fault.round == round_:
                self.kernel.at(self.kernel.now + fault.after, self._fault_begins, fault, priority=0)

    def _fault_begins(self, fault: Fault) -> None:
        runtime = self.nodes[fault.node]
        match fault.kind:
            case "crash":
                if not runtime.alive:
                    return
                runtime.alive = False
                runtime.epoch += 1
                runtime.compute = None
                for peer in self._neighbours(fault.node):
                    self.kernel.at(
                        self.kernel.now + self.conditions.link.latency, self._dispatch, peer, PeerLost(peer=fault.node)
                    )
            case "pause":
                runtime.paused += 1
            case "cut":
                runtime.cut += 1
            case "slow":
                self.network.slow_down(fault.node, fault.factor)
            case "duplicate" | "reorder" | "corrupt":
                runtime.tampering[fault.kind] = runtime.tampering.get(fault.kind, 0) + 1
        if fault.seconds < float("inf"):
            self.kernel.at(self.kernel.now + fault.seconds, self._fault_ends, fault, runtime.epoch, priority=0)

    def _fault_ends(self, fault: Fault, epoch: int) -> None:
        node, runtime = fault.node, self.nodes[fault.node]
        match fault.kind:
            case "crash":
                if runtime.epoch == epoch:
                    self._come_back(node)
            case "pause":
                runtime.paused -= 1
                if not runtime.paused:
                    held, runtime.held = runtime.held, []
                    for event, drained in held:
                        self._dispatch(node, event, drained)
            case "cut":
                runtime.cut -= 1
                if not runtime.cut and runtime.alive:
                    self._dispatch(node, PeerFound(peer=self._neighbours(node)[0]))
            case "slow":
                self.network.slow_down(node, 1 / fault.factor)
            case "duplicate" | "reorder" | "corrupt":
                runtime.tampering[fault.kind] -= 1
                if not runtime.tampering[fault.kind]:
                    del runtime.tampering[fault.kind]

    def _come_back(self, node: int) -> None:
        """A new process in place of one that is gone."""
        runtime = self.nodes[node]
        runtime.epoch += 1
        runtime.alive = True
        runtime.machine = machine_for(node, self.plan, self.settings)
        runtime.held.clear()
        runtime.timers.clear()
        self._dispatch(node, Started())
        for peer in self._neighbours(node)[1:]:
            self._dispatch(peer, PeerFound(peer=node))

    def _neighbours(self, node: int) -> Sequence[int]:
        """A node's parent, then its children."""
        assert isinstance(self.plan, TreePlan)
        return [self.plan.tree.parent(node), *self.plan.tree.children(node)]
