"""Random simulated runs, drawn by a seed: their schemes, conditions and faults.

The order of the draws must not change: otherwise a seed would give another scenario.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from codedreduce.simulator.faults import KINDS, Fault, Kind
from codedreduce.simulator.scenario import ENDLESS, Scenario
from codedreduce.simulator.wrong import Wrong

#: The part of random scenarios that is striped.
STRIPED_ONES = 0.2

#: The kinds of random faults for nodes of a tree, and for ranks.
OF_TREES, OF_RANKS = KINDS[:9], (*KINDS[:7], KINDS[9])

#: Seconds after which a silent rank counts as lost.
KNOWN_AFTER = 5.0


def random_scenario(seed: int) -> Scenario:
    """A small tree, any scheme, some delays, and faults that are short or practically endless."""
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


def random_rank_faults(ranks: int, rounds: int, unit: float, seed: int) -> list[Fault]:
    """A random schedule of faults for ranks; any of them may be the leader."""
    random = np.random.default_rng([seed, 78])
    faults = []
    for _ in range(int(random.integers(0, 2 * rounds))):
        kind = OF_RANKS[int(random.integers(len(OF_RANKS)))]
        node = 0 if random.random() < 0.2 else int(random.integers(0, ranks))
        others = tuple(int(one) for one in range(ranks) if one != node and random.random() < 0.4)
        faults.append(
            Fault(
                kind=kind, node=node, others=others if kind == "partition" else (),
                round=int(random.integers(1, rounds + 1)),
                after=float(random.uniform(0, 2 * unit)),
                seconds=float(random.exponential(3 * unit)),
                factor=float(random.uniform(2, 50)),
                known_after=KNOWN_AFTER,
            )
        )  # fmt: skip
    return faults


def random_faults(workers: int, rounds: int, unit: float, seed: int) -> list[Fault]:
    """A random schedule of faults: each lasts a fraction of a round up to several rounds."""
    random = np.random.default_rng([seed, 77])
    faults = []
    for _ in range(int(random.integers(0, 2 * rounds))):
        faults.append(
            Fault(
                kind=OF_TREES[int(random.integers(len(OF_TREES)))],
                node=int(random.integers(1, workers + 1)),
                round=int(random.integers(1, rounds + 1)),
                after=float(random.uniform(0, 2 * unit)),
                seconds=float(random.exponential(3 * unit)),
                factor=float(random.uniform(2, 50)),
            )
        )
    return faults


def random_faults_of_the_root(rounds: int, unit: float, seed: int) -> list[Fault]:
    """A random schedule for the root: none, one or two faults; it is killed and restarted, or paused."""
    random = np.random.default_rng([seed, 78])
    return [
        Fault(
            kind="crash" if random.random() < 0.8 else "pause", node=0, round=int(random.integers(1, rounds + 1)),
            after=float(random.uniform(0, 2 * unit)), seconds=float(random.exponential(3 * unit)),
        )
        for _ in range(int(random.choice([0, 0, 1, 2])))
    ]  # fmt: skip
