"""The configuration of a simulated run: from the command line, in the first line of a trace, or drawn by a test."""

from __future__ import annotations

from dataclasses import replace
from typing import IO, Any

import msgspec
import numpy as np

from codedreduce.errors import UsageError
from codedreduce.protocol import Settings
from codedreduce.protocol.core.audits import QUARANTINE, Auditing, check_auditable
from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.protocol.core.settings import Excess
from codedreduce.run.delays import Delays, parse_delays
from codedreduce.schemes import Plan, Scheme, Striped, StripedPlan, TreePlan
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.simulator.faults import (
    KNOWN_AFTER,
    Fault,
    Kind,
    random_faults,
    random_faults_of_the_root,
    random_rank_faults,
)
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.network import Host, Link
from codedreduce.simulator.record import Recorder
from codedreduce.simulator.simulated_cluster import Conditions, SimulatedCluster
from codedreduce.simulator.wrong import Wrong

#: Longer than any run, in seconds: nothing may wait for the end of such a fault.
ENDLESS = 1e6

#: The part of random scenarios that is striped.
STRIPED_ONES = 0.2


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
        Excess(self.on_excess, self.say_waiting_after)

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
        self, *, gradients: Gradients | None = None, recorder: Recorder | None = None, checking: bool = False,
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
        audit = Auditing(self.audit, self.quarantine).of(self.seed)
        if audit is not None:
            check_auditable(plan)
        chunk = self.chunk
        if isinstance(plan, StripedPlan):
            chunk = plan.chunk(self.parameters, 4, chunk * 4)
        settings = Settings(
            length=self.parameters, chunk=chunk, head_start=self.head_start,
            least_head_start=self.least_head_start, say_waiting_after=self.say_waiting_after,
            on_excess=self.on_excess, replan_after=self.replan_after, announce=self.announce, state_chunk=2,
            audit=audit, policy=policy,
        )  # fmt: skip
        gradients = gradients or Gradients(self.samples, self.parameters, self.seed)
        return SimulatedCluster(plan, settings, conditions, gradients, recorder=recorder, checking=checking)

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


def random_scenario(seed: int) -> Scenario:
    """A small tree, any scheme, some delays, and faults that are short or practically endless.

    The order of the draws must not change: otherwise a seed would give another scenario.
    """
    if np.random.default_rng([seed, 6]).random() < STRIPED_ONES:
        return random_striped(seed)
    random = np.random.default_rng([seed, 5])
    scheme = _random_scheme(random)
    workers = scheme.workers
    rounds = int(random.integers(3, 9))
    compute = float(random.uniform(0.5, 3.0)) * workers
    faults = random_faults(workers, rounds, compute / workers, seed)
    if random.random() < 0.5:
        faults = [replace(fault, seconds=ENDLESS) for fault in faults]
    faults += random_faults_of_the_root(rounds, compute / workers, seed)
    return msgspec.structs.replace(
        scheme, tolerance=min(scheme.stragglers, workers - 1), compute=compute, rounds=rounds, seed=seed,
        say_waiting_after=2000.0, faults=tuple(faults), checkpoint_every=1 + seed % 3,
        replan_after=0.0 if seed % 5 < 3 else (5 + seed % 40) * compute / workers,
        **_random_conditions(random, workers),
    )  # fmt: skip


def random_striped(seed: int) -> Scenario:
    """Few ranks that can read all samples or some; all or some ranks are reducers; delays and faults as elsewhere."""
    random = np.random.default_rng([seed, 8])
    ranks = 1 + int(random.integers(0, 9))
    rounds = int(random.integers(3, 12))
    compute = float(random.uniform(0.5, 3.0)) * ranks
    faults = random_rank_faults(ranks, rounds, compute / ranks, seed) if ranks > 1 else []
    if random.random() < 0.3:
        faults = [replace(fault, seconds=ENDLESS) for fault in faults]
    shape: dict[str, Any] = {
        "reach": 0 if random.random() < 0.6 else int(random.integers(1, ranks + 1)),
        "blocks": [None, 1, 2, 4, 8][int(random.integers(5))],
        "stripes": None if random.random() < 0.2 else int(random.integers(1, ranks + 1)),
    }
    conditions = _random_conditions(random, ranks)
    conditions["on_excess"] = "wait"
    return Scenario(
        tree=f"{ranks}x1", stragglers=0, scheme="striped", compute=compute, rounds=rounds, seed=seed,
        say_waiting_after=2000.0, faults=tuple(faults), **shape, **conditions,
    )  # fmt: skip


def random_units(seed: int) -> Scenario:
    """The same, with more units than ranks."""
    scenario = random_striped(seed)
    random = np.random.default_rng([seed, 80])
    units = scenario.workers + int(random.integers(1, 2 * scenario.workers + 1))
    samples = units * max(scenario.blocks or 1, int(random.integers(1, 12))) + int(random.integers(0, units))
    return msgspec.structs.replace(scenario, units=units, samples=samples)


def random_failing_ranks(seed: int) -> Scenario:
    """The same, with computations that fail."""
    scenario = random_striped(seed)
    random = np.random.default_rng([seed, 79])
    unit = scenario.compute / scenario.workers
    failing = tuple(
        Fault(
            kind="fail", node=int(random.integers(scenario.workers)),
            round=int(random.integers(1, scenario.rounds + 1)),
            after=float(random.uniform(0, 2 * unit)), seconds=float(random.exponential(2 * unit)),
        )
        for _ in range(int(random.integers(1, 4)))
    )  # fmt: skip
    return msgspec.structs.replace(scenario, faults=(*scenario.faults, *failing))


def random_leaving_ranks(seed: int) -> Scenario:
    """The same, with ranks that are asked to leave between two rounds; most of them come back."""
    scenario = random_striped(seed)
    random = np.random.default_rng([seed, 80])
    unit = scenario.compute / scenario.workers
    leaving = tuple(
        Fault(
            kind="leave", node=int(random.integers(scenario.workers)),
            round=int(random.integers(1, scenario.rounds + 1)),
            after=float(random.uniform(0, 2 * unit)), seconds=float(random.exponential(3 * unit)),
        )
        for _ in range(int(random.integers(1, 4)) if scenario.workers > 1 else 0)
    )  # fmt: skip
    return msgspec.structs.replace(scenario, faults=(*scenario.faults, *leaving))


def random_late_ranks(seed: int) -> Scenario:
    """The same, with ranks that are absent when the run begins, and join later.

    They join in the first round if others cannot read their samples: the round does not end without them.
    """
    scenario = random_striped(seed)
    random = np.random.default_rng([seed, 81])
    ranks, unit = scenario.workers, scenario.compute / scenario.workers
    count = int(random.integers(1, max(2, ranks))) if ranks > 1 else 0
    late = tuple(
        Fault(
            kind="late", node=int(node), round=1 if scenario.reach else int(random.integers(1, scenario.rounds)),
            after=float(random.uniform(0, 3 * unit)), seconds=0.0,
        )
        for node in sorted(random.permutation(np.arange(1, ranks))[:count])
    )  # fmt: skip
    faults = scenario.faults if random.random() < 0.6 else ()
    return msgspec.structs.replace(scenario, faults=(*faults, *late))


def random_audits(seed: int) -> Scenario:
    """The same, with at least three ranks that can read each sample, and a few that compute audited pieces wrongly.

    If everything is audited, some scenarios also damage chunks on their way.
    """
    scenario = random_striped(seed)
    random = np.random.default_rng([seed, 83])
    ranks = max(3, scenario.workers)
    wrong = random.permutation(ranks)[: int(random.integers(0, (ranks - 1) // 2 + 1))]
    faults = scenario.faults if scenario.workers == ranks and random.random() < 0.5 else ()
    audit = float(random.choice([0.05, 0.3, 1.0]))
    if audit == 1.0 and random.random() < 0.5:
        node, round_ = int(random.integers(ranks)), int(random.integers(1, scenario.rounds + 1))
        faults = (*faults, Fault(kind="damage", node=node, round=round_, seconds=5 * scenario.compute / ranks))
    return msgspec.structs.replace(
        scenario, tree=f"{ranks}x1", samples=ranks * 8 * int(random.integers(1, 4)), faults=faults,
        reach=0 if random.random() < 0.7 else ranks, stripes=scenario.stripes or ranks,
        audit=audit, quarantine=int(random.integers(1, 4)),
        wrongs=tuple(
            Wrong(
                node=int(node), where_audited=True, sticky=bool(random.random() < 0.5), seed=seed,
                part=float(random.choice([0.1, 0.5, 1.0])), first=int(random.integers(1, scenario.rounds + 1)),
            )
            for node in sorted(wrong)
        ),
    )  # fmt: skip


def random_wrong_ranks(seed: int) -> Scenario:
    """The same, with ranks that compute everything wrongly, leave and come back, also in audited rounds."""
    scenario = random_audits(seed)
    random = np.random.default_rng([seed, 84])
    ranks, unit = scenario.workers, scenario.compute / scenario.workers
    wrong = random.permutation(ranks)[: int(random.integers(1, max(2, (ranks - 1) // 2 + 1)))]
    kinds: tuple[Kind, ...] = ("crash", "pause", "cut", "leave", "slow")
    coming_back = tuple(
        Fault(
            kind=kinds[int(random.integers(len(kinds)))], node=int(node),
            round=int(random.integers(1, scenario.rounds)), after=float(random.uniform(0, 1.5 * unit)),
            seconds=float(random.uniform(0, 6 * unit)), known_after=KNOWN_AFTER,
        )
        for node in wrong for _ in range(int(random.integers(0, 3)))
    )  # fmt: skip
    return msgspec.structs.replace(
        scenario, blocks=int(random.choice([2, 4, 8])),
        faults=(*(fault for fault in scenario.faults if fault.kind != "damage"), *coming_back),
        audit=float(random.choice([0.05, 0.2, 0.3])), quarantine=int(random.choice([1, 2, 3, 1000])),
        wrongs=tuple(Wrong(node=int(node), sticky=bool(random.random() < 0.7), seed=seed) for node in sorted(wrong)),
    )  # fmt: skip


def random_one_way_cuts(seed: int) -> Scenario:
    """The same, with ranks that receive messages of some others, but cannot send to them."""
    scenario = random_striped(seed)
    random = np.random.default_rng([seed, 82])
    ranks, unit = scenario.workers, scenario.compute / scenario.workers
    faults = scenario.faults
    if ranks > 1 and random.random() < 0.5:
        faults = ()  # nothing else goes wrong
    is_endless = any(fault.seconds >= ENDLESS for fault in faults)
    cuts = []
    for _ in range(int(random.integers(1, 5)) if ranks > 1 else 0):
        node = 0 if random.random() < 0.3 else int(random.integers(0, ranks))
        others = tuple(int(one) for one in range(ranks) if one != node and random.random() < 0.6)
        cuts.append(
            Fault(
                kind="one-way", node=node, others=others, known_after=KNOWN_AFTER,
                round=int(random.integers(1, scenario.rounds + 1)), after=float(random.uniform(0, 2 * unit)),
                seconds=ENDLESS if is_endless else float(random.exponential(5 * unit)),
            )
        )  # fmt: skip
    return msgspec.structs.replace(scenario, faults=(*faults, *cuts))


def _random_scheme(random: np.random.Generator) -> Scenario:
    """A scenario with a random tree and scheme."""
    fanout, depth = [(2, 1), (3, 1), (5, 1), (2, 2), (3, 2), (4, 2), (5, 2), (2, 3)][int(random.integers(8))]
    stragglers = int(random.integers(0, min(fanout, 3)))
    scheme, order, code = (
        ("coded-reduce", "progressive", "repetition"),
        ("coded-reduce", "progressive", "repetition"),
        ("coded-reduce", "progressive", "repetition"),
        ("coded-reduce", "eager", "repetition"),
        ("coded-reduce", "eager", "cyclic"),
        ("gradient-coding", "eager", "repetition"),
        ("gradient-coding", "eager", "cyclic"),
        ("master-worker", "eager", "repetition"),
        ("live-compensation", "eager", "repetition"),
    )[int(random.integers(9))]
    tree = f"{fanout}x{depth}"
    if scheme == "coded-reduce" and order == "progressive" and random.random() < 0.3:
        tree = f"{int(random.integers(6, 25))}/{fanout + 2}"
    return Scenario(tree=tree, stragglers=stragglers, scheme=scheme, order=order, code=code)


def _random_conditions(random: np.random.Generator, workers: int) -> dict[str, Any]:
    """Delays, links, sizes, and how parents handle late children."""
    return {
        "delays": ("calm", "exponential", "bursty", "sticky")[int(random.integers(4))],
        "rate": float(random.choice([1e4, 1e6])),
        "latency": float(random.choice([1e-4, 1e-2])),
        "parameters": int(random.integers(8, 60)),  # with few numbers a sum can vanish, and its relative error grow
        "samples": workers * 8 * int(random.integers(1, 4)),
        "chunk": int(random.choice([7, 1000])),
        "head_start": float(random.choice([0.0, 0.2, 1.0])),
        "on_excess": "approximate" if random.random() < 0.3 else "wait",
        "announce": bool(random.random() < 0.7),
    }
