"""The configuration of a simulated run: from the command line, or in the first line of a trace."""

from __future__ import annotations

from typing import IO

import msgspec

from codedreduce.errors import UsageError
from codedreduce.protocol import Settings
from codedreduce.protocol.core.audits import QUARANTINE, Audit, check_auditable
from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.protocol.core.settings import Excess
from codedreduce.run.delays import Delays, parse_delays
from codedreduce.schemes import Plan, Scheme, Striped, StripedPlan, TreePlan
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.simulator.faults import Fault
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.network import Host, Link
from codedreduce.simulator.nodes import Observer
from codedreduce.simulator.record import Recorder
from codedreduce.simulator.simulated_cluster import Conditions, SimulatedCluster
from codedreduce.simulator.wrong import Wrong

#: Longer than any run, in seconds: nothing may wait for the end of such a fault.
ENDLESS = 1e6


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The complete configuration of a simulated run; two runs of one scenario are identical to the byte."""

    tree: str = "4x3"
    stragglers: int = 1
    scheme: str = "coded-reduce"
    order: str = "progressive"
    code: str = "repetition"
    tolerance: int | None = None  # gradient coding's S, or the workers that live compensation does not wait for
    delays: str = "calm"
    rate: float = 60e6 / 8
    latency: float = 0.0005
    parameters: int = 5800
    samples: int = 6300
    compute: float = 20.0
    rounds: int = 200
    seed: int = 0
    chunk: int = 1 << 18
    head_start: float = 0.2
    say_waiting_after: float = 30.0  # seconds until a round reports missing workers
    on_excess: str = "wait"
    faults: tuple[Fault, ...] = ()
    least_head_start: float = 0.0
    cores: int = 0  # of one host for all nodes; 0: each has its own
    turn: int = 0  # bytes an interface sends for one receiver before the next one's turn; 0: whole chunks
    message_seconds: float = 0.0  # core time of a message on such a host
    arithmetic_seconds: float = 0.0  # core time of a sample on such a host, whatever `compute` is
    announce: bool = True  # offer a pushed sum ahead of its bytes
    reach: int = 0  # striped: how many ranks can read a unit's samples; 0: all
    blocks: int | None = None  # striped: blocks per unit
    units: int | None = None  # striped: number of units; default: one per rank
    stripes: int | None = None  # striped: how many ranks are reducers
    replan_after: float = 0.0  # seconds until a root stands in for missing workers; 0: it cannot
    checkpoint_every: int = 1  # rounds between two checkpoints of a root, for its restart
    audit: float = 0.0  # the part of all gradients that is computed twice and compared
    quarantine: int = QUARANTINE  # verdicts against a node until it is quarantined
    wrongs: tuple[Wrong, ...] = ()  # nodes that compute wrongly

    def __post_init__(self) -> None:
        if not self.compute > 0:
            raise UsageError(f"the compute time of the batch must be above zero, got {self.compute}")
        if self.rounds < 1:
            raise UsageError(f"at least one round is needed, got {self.rounds}")
        self.excess()

    def excess(self) -> Excess:
        """What a round does if more workers are late than tolerated."""
        return Excess(self.on_excess, self.say_waiting_after, self.replan_after)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return parse_tree(self.tree, self.stragglers).workers

    def parsed_scheme(self) -> Scheme:
        """The scheme with this name and tolerance."""
        if self.scheme == Striped.name:
            return Striped(
                self.workers, reach=self.reach or "all", blocks=self.blocks, stripes=self.stripes, units=self.units
            )  # fmt: skip
        tolerance = self.stragglers if self.tolerance is None else self.tolerance
        return parse_scheme(
            self.scheme, tree=parse_tree(self.tree, self.stragglers), code=self.code, order=self.order,
            stragglers=self.stragglers if self.scheme == "coded-reduce" else tolerance,
        )  # fmt: skip

    def plan(self) -> Plan:
        """The plan: which node computes which samples."""
        return self.parsed_scheme().plan(samples=self.samples)

    def delay_model(self) -> Delays:
        """The delays of the workers."""
        return parse_delays(self.delays, workers=self.workers, unit=self.compute / self.workers, seed=self.seed)

    def cluster(
        self, *, gradients: Gradients | None = None, recorder: Recorder | None = None, observer: Observer | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> SimulatedCluster:  # fmt: skip
        """The simulated cluster of this scenario, ready to run."""
        plan = self.plan()
        for fault in self.faults:
            if fault.node not in plan.nodes:
                raise UsageError(f"a fault at node {fault.node}, but the plan has nodes up to {plan.nodes.stop - 1}")
            if isinstance(plan, TreePlan) and fault.node == 0 and fault.kind in ("cut", "fail", "leave"):
                raise UsageError(f"{fault.kind!r} is no fault for node 0: a root computes nothing and has no parent")
        conditions = Conditions(
            link=Link(rate=self.rate, latency=self.latency, turn=self.turn), delays=self.delay_model(),
            sample_seconds=self.compute / self.samples, faults=self.faults, seed=self.seed, host=self._host(),
            checkpoint_every=self.checkpoint_every, root_computes=self.replan_after > 0,
            wrongs=self.wrongs,
        )  # fmt: skip
        audit = Audit(self.audit, self.quarantine).of(self.seed)
        if audit is not None:
            check_auditable(plan)
        chunk = self.chunk
        if isinstance(plan, StripedPlan):
            chunk = plan.chunk(self.parameters, 4, chunk * 4)
        settings = Settings(
            length=self.parameters, chunk=chunk, head_start=self.head_start,
            least_head_start=self.least_head_start, excess=self.excess(), announce=self.announce, state_chunk=2,
            audit=audit, policy=policy,
        )  # fmt: skip
        gradients = gradients or Gradients(self.samples, self.parameters, self.seed)
        return SimulatedCluster(plan, settings, conditions, gradients, recorder=recorder, observer=observer)

    def _host(self) -> Host | None:
        if not self.cores:
            return None
        return Host(cores=self.cores, message_seconds=self.message_seconds, arithmetic_seconds=self.arithmetic_seconds)

    def to_json(self) -> str:
        """The scenario as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """The scenario from such a line."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise UsageError(f"not a scenario: {error}") from None


def write_trace(scenario: Scenario, file: IO[str], *, latest: float = float("inf")) -> Recorder:
    """Run a scenario and write a trace of all events; the first line is the scenario."""
    file.write(scenario.to_json() + "\n")
    return scenario.cluster(recorder=Recorder(trace=file)).run(scenario.rounds, latest=latest)
