"""What does each constant of the leader's policy change? All simulated conditions, with one constant moved at a time.

python -m bench.ablation [--only NAME ...] [--jobs 2] [--out FILE.json]

Every constant is halved, doubled, and set to values that switch its mechanism off. A row is a move: the ratios of the
mean and the 99th percentile of the round time, and of the work, to those of the default policy, in the condition in
which the ratio differs most from 1. Time is simulated, so the results do not depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.simulation.random_scenarios import random_audits, random_failing_ranks, random_late_ranks, random_striped

from bench.measure import save
from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.simulator.faults import Fault
from codedreduce.simulator.scenario import ENDLESS, Scenario
from codedreduce.simulator.wrong import Wrong

SEEDS = range(2)

#: Seeds of random scenarios.
DRAWN = range(3000, 3015)

#: A longer round, in units, counts as this: it waits for the end of a fault.
LONGEST = 100.0

INFINITE = float("inf")

#: Values that switch a mechanism off, or make it as strong as possible.
EXTREMES: dict[str, tuple[float, ...]] = {
    "stuck_not_begun": (1.0,), "stuck_catching_up": (1.0, 1e9), "unknown_margin": (0.2,), "round_margin": (0.0,),
    "rounds_timed": (1,), "vector_margin": (0.0,), "vector_queue": (0.0,), "blocks_without_news": (0.0, 1e9),
    "answer_elapsed": (0.0,), "answer_round": (0.0,), "report_valid": (0.0, 1e9), "lost_after": (0.0, 1e9),
    "idle_searched": (10**9,), "least_saving": (0.0,), "open_bets": (0.0, 1e9),
    "bet_credit": (0.0, 1e9), "most_credit": (0.0, 1e9), "bets_unlimited": (1.0, INFINITE), "lags_needed": (10**9,),
    "recovered_within": (1.0, INFINITE), "begun_late": (INFINITE,), "spread_part": (0.0,), "slow_link": (INFINITE,),
    "slow_link_round": (0.0,), "slow_link_rounds": (1,), "slow_link_ranks": (1,), "vectors_timed": (1,),
    "trial_every": (1, 10**9), "late_start": (0.0, INFINITE), "draft_saving": (0.0,), "vector_delay": (0.0,),
    "stripe_saving": (0.0, 1e9), "most_excluded_rounds": (4, 10**9), "begun_in_time": (0.0, 1e9), "sums_timed": (1,),
    "sum_retry_elapsed": (0.01,), "longest_elapsed": (INFINITE,), "least_sum_timeout": (1e-6,),
    "head_start_of_sum": (0.0,), "slow_checks": (0, 10**9), "unknown_slow_checks": (0, 6),
    "check_elapsed": (0.0,), "least_check_timeout": (1e-6,), "least_absent_wait": (0.0,),
}  # fmt: skip


def striped(ranks: int = 8, *, vector: float = 0.1, **other: Any) -> Scenario:
    """Ranks with units of 2 s, and a vector that takes so many seconds on a link."""
    return Scenario(**{
        "tree": f"{ranks}x1", "stragglers": 0, "scheme": "striped", "compute": 2.0 * ranks, "samples": 48 * ranks,
        "parameters": 600, "rate": 2400 / vector, "rounds": 40, **other,
    })  # fmt: skip


def drawn(draw: Any) -> list[Scenario]:
    """Random scenarios."""
    return [draw(seed) for seed in DRAWN]


def seeded(scenario: Scenario) -> list[Scenario]:
    """The same scenario with several seeds."""
    return [msgspec.structs.replace(scenario, seed=seed) for seed in SEEDS]


SLOW = Fault(kind="slow", node=3, round=5, seconds=ENDLESS)

CONDITIONS: dict[str, list[Scenario]] = {
    "calm": seeded(striped()),
    "exponential": seeded(striped(delays="exponential")),
    "24 ranks": seeded(striped(24, delays="exponential", rounds=20)),
    "3 ranks": seeded(striped(3, delays="exponential")),
    "one block": seeded(striped(delays="exponential", blocks=1)),
    "16 blocks": seeded(striped(delays="exponential", blocks=16, rounds=20)),
    "24 units": seeded(striped(delays="exponential", units=24, rounds=20)),
    "reach 2": seeded(striped(delays="exponential", reach=2)),
    "long vectors": seeded(striped(6, delays="exponential", vector=3.0)),
    "short rounds": seeded(striped(delays="exponential", compute=0.4, vector=0.002)),
    "persistent": seeded(striped(12, delays="sticky", rounds=60)),
    "late starts": seeded(striped(delays="rank:3:1.0:4s")),
    "bursts": seeded(striped(16, delays="bursty")),
    "heavy tail": seeded(striped(delays="stalls:0.03:30s")),
    "slow link": seeded(striped(vector=0.3, faults=(SLOW,))),
    "slow link, short vectors": seeded(striped(vector=0.01, delays="exponential", faults=(SLOW,))),
    "failures": seeded(
        striped(
            delays="exponential",
            faults=(
                Fault(kind="crash", node=3, round=5, after=1.0),
                Fault(kind="pause", node=5, round=12, after=0.5, seconds=15.0),
                Fault(kind="cut", node=2, round=20, after=1.9, seconds=9.0),
                Fault(kind="crash", node=6, round=30, after=2.02, seconds=20.0),
            ),
        )
    ),
    "audits": seeded(
        striped(delays="exponential", audit=0.3, quarantine=1000, wrongs=(Wrong(node=2, part=0.3, seed=1),))
    ),
    "random ranks": drawn(random_striped),
    "random failures": drawn(random_failing_ranks),
    "random late ranks": drawn(random_late_ranks),
    "random audits": drawn(random_audits),
}


def measured(condition: str, policy: Policy) -> tuple[float, float, float]:
    """The mean and the 99th percentile of round times, in units, and the work of a round."""
    seconds: list[float] = []
    work: list[float] = []
    for scenario in CONDITIONS[condition]:
        recorder = scenario.cluster(policy=policy).run(scenario.rounds, latest=1e5)
        unit = scenario.compute / scenario.workers
        seconds += [min(LONGEST, log.seconds / unit) for log in recorder.rounds]
        work += [log.work for log in recorder.rounds]
        seconds += [LONGEST] * (scenario.rounds - len(recorder.rounds))  # it did not end
    return float(np.mean(seconds)), float(np.percentile(seconds, 99)), float(np.mean(work))


def moves(name: str) -> Iterator[float]:
    """Other values of a constant."""
    value = getattr(DEFAULT_POLICY, name)
    as_type = type(value)
    yield from dict.fromkeys(
        one for one in (as_type(value / 2), as_type(value * 2), *EXTREMES.get(name, ())) if one != value
    )


def ratios(move: tuple[str, float], default: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """The three ratios in each condition."""
    name, value = move
    policy = replace(DEFAULT_POLICY, **{name: type(getattr(DEFAULT_POLICY, name))(value)})
    found = {condition: measured(condition, policy) for condition in CONDITIONS}
    return {
        condition: tuple(one / other for one, other in zip(values, default[condition], strict=True))
        for condition, values in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these constants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.only or [field.name for field in fields(Policy)]
    jobs = [(name, value) for name in names for value in moves(name)]
    table = []
    print(f"{'constant':20} {'value':>10}  mean of a round, 99th percentile, work: least and most over all conditions")
    with ProcessPoolExecutor(options.jobs) as pool:
        default = dict(zip(CONDITIONS, pool.map(measured, CONDITIONS, [DEFAULT_POLICY] * len(CONDITIONS)), strict=True))
        for (name, value), found in zip(jobs, pool.map(partial(ratios, default=default), jobs), strict=True):
            cells = []
            for column in range(3):
                least = min(found, key=lambda one: found[one][column])
                most = max(found, key=lambda one: found[one][column])
                cells.append(f"{found[least][column]:6.3f} {least:24.24} {found[most][column]:6.3f} {most:24.24}")
            print(f"{name:20} {value:10.6g}  {' | '.join(cells)}", flush=True)
            table.append({"constant": name, "value": value, "ratios": found})
    save(options.out, {"default": default, "moves": table})


if __name__ == "__main__":
    main()
