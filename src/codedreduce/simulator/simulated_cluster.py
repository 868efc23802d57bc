"""The simulated cluster: the protocol's state machines over virtual time, with real vectors and an oracle."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from codedreduce.protocol import Rank, Settings
from codedreduce.protocol.core.events import (
    Aggregated,
    Begin,
    Cancel,
    Compute,
    Ended,
    EveryoneIn,
    Finished,
    Leave,
    Note,
    Pack,
    PeerLost,
    Renewed,
    Started,
    StatePacked,
    Transmit,
)
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.run.delays import Delays
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Plan, StripedPlan, TreePlan
from codedreduce.simulator.computations import Computations
from codedreduce.simulator.faults import Fault, FaultInjector
from codedreduce.simulator.gradients import Gradients, Oracle
from codedreduce.simulator.kernel import Kernel
from codedreduce.simulator.network import Cores, Host, Link, Network
from codedreduce.simulator.nodes import Nodes, Observer
from codedreduce.simulator.post import Post, Tampering
from codedreduce.simulator.record import Recorder
from codedreduce.simulator.wrong import Wrong, Wrongs
from codedreduce.vectors import Vector, empty

#: Numbers in the state of a simulated rank.
STATE = 25

OnSum = Callable[[Aggregated], None]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The properties of the simulated hosts and links."""

    link: Link = field(default_factory=Link)
    sample_seconds: float = 0.003
    delays: Delays
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    host: Host | None = None  # the host of all nodes, if they share one
    root_computes: bool = False  # whether the root stands in for missing workers
    checkpoint_every: int = 1  # rounds between two checkpoints of a root
    wrongs: tuple[Wrong, ...] = ()  # nodes that compute wrongly


class SimulatedCluster:
    """All nodes of a plan, their network, and virtual time: connects these parts and drives the rounds."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        conditions: Conditions,
        gradients: Gradients,
        *,
        recorder: Recorder | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.plan = plan
        self.recorder = recorder or Recorder()
        self.kernel = Kernel()
        self.network = Network(self.kernel, plan.workers + 1, conditions.link)
        latency = conditions.link.latency
        cores = Cores(conditions.host) if conditions.host is not None else None
        tampering = Tampering(settings, latency=latency, seed=conditions.seed)
        self._gradients = gradients
        self.nodes = Nodes(plan, settings, self.kernel, self.recorder, latency=latency, observer=observer,
            root_computes=conditions.root_computes,
        )  # fmt: skip
        self.wrongs = Wrongs(gradients, conditions.wrongs)
        self._computing = Computations(self.nodes, self.wrongs, conditions.delays, conditions.sample_seconds, cores)
        self._injector = FaultInjector(conditions.faults, self.nodes, self._computing, self.network, tampering)
        self._oracle = Oracle(plan, gradients)
        self._rounds = 0
        self._round_began = 0.0
        self._sums: Counter[int] = Counter()  # on a ring: how many nodes have the sum of a round
        self._on_sum: OnSum | None = None
        self._joined: set[int] = set()  # nodes that have reported `EveryoneIn`
        self._ending = False
        self._begun = False
        self._checkpoint_every = conditions.checkpoint_every
        self.nodes.have_done(
            {
                Transmit: Post(self.nodes, self.network, tampering, cores).transmit,
                Compute: self._computing.start,
                Cancel: self._computing.stop,
                Finished: self._finished,
                **self._leading(),
            }
        )

    def _leading(self) -> dict[type, Callable[..., None]]:
        """The functions for the actions that drive the rounds, by the kind of plan."""
        if isinstance(self.plan, StripedPlan):
            return {
                Aggregated: self._aggregated_by_rank, EveryoneIn: self._rank_joined, Renewed: self._renewed,
                Pack: self._pack, Ended: self._leave, Note: self._noted,
            }  # fmt: skip
        if isinstance(self.plan, TreePlan):
            return {Aggregated: self._aggregated, EveryoneIn: self._root_may_begin}
        return {Aggregated: self._aggregated_by_one}

    def run(self, rounds: int, *, latest: float = float("inf"), on_sum: OnSum | None = None) -> Recorder:
        """Run this many rounds, or until no event is left; call `on_sum` with every gradient."""
        self._rounds = rounds
        self._on_sum = on_sum
        enabled = gc.isenabled()
        gc.disable()  # events make no cycles; a search for cycles in 100,000 machines takes half the time
        try:
            self._start()
            kernel, done = self.kernel, self.recorder.rounds
            while len(done) < rounds and kernel.now <= latest and kernel.step():
                pass
        finally:
            if enabled:
                gc.enable()
        self.recorder.run_over(busiest_bytes=self.network.busiest_bytes(), steps=self.kernel.steps)
        return self.recorder

    def _start(self) -> None:
        """Start all nodes, and begin the first round when they have joined."""
        present = self.nodes.present()
        for node in present:
            self.nodes.dispatch(node, Started())
            for other in self.nodes.numbers:
                if other not in present:
                    self.nodes.dispatch(node, PeerLost(peer=other))
        if isinstance(self.plan, TreePlan):
            self.kernel.run(lambda: 0 in self._joined)
        elif isinstance(self.plan, StripedPlan):
            self.kernel.run(lambda: len(self._joined) >= len(present) - 1)
        self._begun = True
        self._begin_round(1)

    def _begin_round(self, round_: int) -> None:
        self._round_began = self.kernel.now
        self._injector.round_begins(round_)
        begin = self._begin(round_)
        for node in [0] if isinstance(self.plan, TreePlan) else self.nodes.numbers:
            self.nodes.dispatch(node, begin)

    def _begin(self, round_: int) -> Begin:
        return Begin(round=round_, model=self._gradients.model(round_))

    def _root_may_begin(self, node: int, _: EveryoneIn) -> None:
        """A root may begin; a restarted root continues from its checkpoint."""
        self._joined.add(node)
        if self._begun:
            self.kernel.at(self.kernel.now, self._begin_round, self.nodes.machine(node).round + 1)

    def _aggregated(self, _: int, action: Aggregated) -> None:
        """The root has a sum: the round is over, and the next one begins."""
        is_repeated = action.round <= len(self.recorder.rounds)  # by a restarted root
        if not is_repeated or not action.residual:
            self._judge(action)
        if not is_repeated:
            self._round_over(action.round, action.late, action.residual)
        if action.round % self._checkpoint_every == 0:
            self.nodes.checkpoint = action.round
        if action.round < self._rounds:
            self.kernel.at(self.kernel.now, self._begin_round, action.round + 1)

    def _aggregated_by_one(self, node: int, action: Aggregated) -> None:
        """One node of a ring has the sum and continues by itself; the round is over when the last node has it."""
        self._judge(action)
        self._sums[action.round] += 1
        if self._sums[action.round] == len(self.nodes.numbers):
            self._round_over(action.round, action.late, action.residual)
            self._round_began = self.kernel.now
        if action.round < self._rounds:
            if self._sums[action.round] == 1:
                self._injector.round_begins(action.round + 1)
            self.kernel.at(self.kernel.now, self.nodes.dispatch, node, self._begin(action.round + 1))

    def _aggregated_by_rank(self, node: int, action: Aggregated) -> None:
        """A rank has the sum and continues by itself; the round is over when a leader has it.

        A new leader may be further than the leader before it, or repeat a round.
        """
        self._judge(action)
        machine = self.nodes.machine(node)
        if isinstance(machine, Rank) and machine.leads:
            self._rounds_over(action.round, action.late)
        self._begin_at(node, action.round + 1)

    def _noted(self, node: int, action: Note) -> None:
        """Take a note; a new leader may have completed rounds that the leader before it had not."""
        self.nodes.note(node, action)
        machine = self.nodes.machine(node)
        if action.kind == "leads" and isinstance(machine, Rank):
            self._rounds_over(machine.through)

    def _rounds_over(self, last: int, late: tuple[int, ...] = ()) -> None:
        for round_ in range(len(self.recorder.rounds) + 1, last + 1):
            self._round_over(round_, late)
            self._round_began = self.kernel.now
            if round_ < self._rounds:
                self._injector.round_begins(round_ + 1)

    def _begin_at(self, node: int, round_: int) -> None:
        """Let a rank's script begin a round at once; or leave its loop, if all rounds are done and the run ends."""
        if round_ <= self._rounds:
            self.kernel.at(self.kernel.now, self.nodes.dispatch, node, self._begin(round_))
        elif self._ending:
            self._leave(node)

    def end(self, latest: float = float("inf")) -> None:
        """Let the scripts of all ranks leave their loops after the last round; run until all live ranks have left."""
        self._ending = True
        self.nodes.stay()
        for node in self.nodes.numbers:
            if self.nodes.machine(node).round == self._rounds and self.nodes.machine(node).state is RankState.RESTING:
                self._leave(node)
        self.kernel.run(lambda: not any(map(self.nodes.is_alive, self.nodes.numbers)), latest=latest)

    def _leave(self, node: int, _: Ended | None = None) -> None:
        self.kernel.at(self.kernel.now, self.nodes.dispatch, node, Leave(reason="all rounds are done"))

    def _rank_joined(self, node: int, action: EveryoneIn) -> None:
        """A rank has joined; a rank that joins later than the others begins by itself."""
        self._joined.add(node)
        if self._begun:
            self._begin_at(node, self.nodes.machine(node).round + 1)

    def _pack(self, node: int, action: Pack) -> None:
        """Pack the state of a simulated rank: the number of its next round, as a vector of several pieces."""
        machine = self.nodes.machine(node)
        assert isinstance(machine, Rank)
        round_ = machine.through + 1
        packed = StatePacked(round=round_ - 1, state=self._state(round_), digest=f"state {round_}")
        self.kernel.at(self.kernel.now, self.nodes.dispatch, node, packed)

    @staticmethod
    def _state(round_: int) -> Vector:
        state = empty(STATE, np.float32)
        state[:] = round_ + np.arange(STATE)
        return state

    def _renewed(self, node: int, action: Renewed) -> None:
        """A rank has another rank's state and continues from there."""
        machine = self.nodes.machine(node)
        if action.state is None and isinstance(machine, Rank) and machine.leads:
            pass  # no rank could send it another state
        elif action.state is None or action.state.tobytes() != self._state(action.round + 1).tobytes():
            raise AssertionError(f"rank {node} took a state that no rank had after round {action.round}")
        self._begin_at(node, action.round + 1)

    def _finished(self, node: int, action: Finished) -> None:
        """A node has left; the root perhaps because no worker could compute a round."""
        self.nodes.finished(node)
        self.recorder.troubles += action.troubles

    def _judge(self, action: Aggregated) -> None:
        if self._on_sum is not None:
            self._on_sum(action)
        self.recorder.judged(action.round, *self._oracle.judge(action))

    def _round_over(self, round_: int, late: tuple[int, ...], residual: float = 0.0) -> None:
        seconds = self.kernel.now - self._round_began
        work = self._computing.take_samples() / self.plan.samples
        self.recorder.round_over(RoundLog(round=round_, seconds=seconds, late=late, residual=residual, work=work))
