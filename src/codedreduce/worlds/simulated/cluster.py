"""The simulated world: the protocol's machines over virtual time, with real vectors, and an oracle looking on."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from codedreduce.protocol import Settings
from codedreduce.protocol.events import Aggregated, Begin, Cancel, Compute, Started, Transmit
from codedreduce.protocol.root import Root
from codedreduce.schemes import Plan
from codedreduce.worlds.delays import Delays
from codedreduce.worlds.journal import RoundLog
from codedreduce.worlds.simulated.computing import Computing
from codedreduce.worlds.simulated.faults import Fault, Injector
from codedreduce.worlds.simulated.gradients import Gradients
from codedreduce.worlds.simulated.kernel import Kernel
from codedreduce.worlds.simulated.network import Cores, Host, Link, Network
from codedreduce.worlds.simulated.nodes import Nodes
from codedreduce.worlds.simulated.oracle import Oracle
from codedreduce.worlds.simulated.post import Post, Tampering
from codedreduce.worlds.simulated.record import Recorder

OnSum = Callable[[Aggregated], None]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the simulated machines and wires are like."""

    link: Link = field(default_factory=Link)
    sample_seconds: float = 0.003
    delays: Delays
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    host: Host | None = None  # what all nodes share, if they do


class SimulatedCluster:
    """All nodes of a plan, their network, and virtual time: puts the rooms together, and leads through the rounds."""

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
        self.recorder = recorder or Recorder()
        self.network = Network(kernel := Kernel(), plan.workers + 1, conditions.link)
        latency = conditions.link.latency
        cores = Cores(conditions.host) if conditions.host is not None else None
        tampering = Tampering(settings, latency=latency, seed=conditions.seed)
        self._kernel = kernel
        self._gradients = gradients
        self._nodes = Nodes(plan, settings, kernel, self.recorder, latency=latency, checking=checking)
        self._computing = Computing(self._nodes, gradients, conditions.delays, conditions.sample_seconds, cores)
        self._injector = Injector(conditions.faults, self._nodes, self._computing, self.network, tampering)
        self._oracle = Oracle(plan, gradients, checking=checking)
        self._rounds = 0
        self._round_began = 0.0
        self._sums: Counter[int] = Counter()  # on a ring: how many have the sum of a round
        self._on_sum: OnSum | None = None
        self._nodes.have_done(
            {
                Transmit: Post(self._nodes, self.network, tampering, cores).transmit,
                Compute: self._computing.start,
                Cancel: self._computing.stop,
                Aggregated: self._aggregated if self._nodes.rooted else self._aggregated_by_one,
            }
        )

    def run(self, rounds: int, *, latest: float = float("inf"), on_sum: OnSum | None = None) -> Recorder:
        """Run this many rounds, or until nothing more can happen; `on_sum` is called with every gradient."""
        self._rounds = rounds
        self._on_sum = on_sum
        enabled = gc.isenabled()
        gc.disable()  # events make no cycles; looking for some among 100,000 machines takes half the time
        try:
            self._start()
            kernel, done = self._kernel, self.recorder.rounds
            while len(done) < rounds and kernel.now <= latest and kernel.step():
                pass
        finally:
            if enabled:
                gc.enable()
        self.recorder.run_over(busiest_bytes=self.network.busiest_bytes(), steps=self._kernel.steps)
        return self.recorder

    def _start(self) -> None:
        """Bring all nodes up, and begin the first round when they have met."""
        for node in self._nodes.numbers:
            self._nodes.dispatch(node, Started())
        if self._nodes.rooted:
            root = self._nodes.machine(0)
            assert isinstance(root, Root)
            self._kernel.run(lambda: root.everyone_is_in)
        self._begin_round(1)

    def _begin_round(self, round_: int) -> None:
        self._round_began = self._kernel.now
        self._injector.round_begins(round_)
        begin = self._begin(round_)
        for node in [0] if self._nodes.rooted else self._nodes.numbers:
            self._nodes.dispatch(node, begin)

    def _begin(self, round_: int) -> Begin:
        return Begin(round=round_, model=self._gradients.model(round_))

    def _aggregated(self, _: int, action: Aggregated) -> None:
        """The root has a sum: the round is over, and the next one begins."""
        self._judge(action)
        self._round_over(action)
        if action.round < self._rounds:
            self._kernel.at(self._kernel.now, self._begin_round, action.round + 1)

    def _aggregated_by_one(self, node: int, action: Aggregated) -> None:
        """One node of a ring has the sum and goes on by itself; the round is over when the last one has it."""
        self._judge(action)
        self._sums[action.round] += 1
        if self._sums[action.round] == len(self._nodes.numbers):
            self._round_over(action)
            self._round_began = self._kernel.now
        if action.round < self._rounds:
            if self._sums[action.round] == 1:
                self._injector.round_begins(action.round + 1)
            self._kernel.at(self._kernel.now, self._nodes.dispatch, node, self._begin(action.round + 1))

    def _judge(self, action: Aggregated) -> None:
        if self._on_sum is not None:
            self._on_sum(action)
        self.recorder.judged(*self._oracle.judge(action))

    def _round_over(self, action: Aggregated) -> None:
        seconds = self._kernel.now - self._round_began
        work = self._computing.take_samples() / self.plan.samples
        late, residual = tuple(action.late), action.residual
        self.recorder.round_over(RoundLog(round=action.round, seconds=seconds, late=late, residual=residual, work=work))
