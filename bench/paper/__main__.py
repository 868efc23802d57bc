"""The paper's experiments, in the lab: all schemes, and real peers, under calm and under real stragglers.

python -m bench.paper [--traces DIR] [--rounds 100] [--only 84] [--out bench/results/paper.json]

Needs root and iproute2 (it makes labs of 85 and 157 nodes and takes them away). What has been measured is kept after
every run, and without --again only what is missing in the results is measured: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.paper.experiments import EXPERIMENTS, NOTHING_INJECTED, RATE, UNIT, Experiment, conditions
from bench.paper.figure import draw, table
from bench.paper.measured import Measuring
from bench.paper.peers import run_gloo, run_mpi
from bench.paper.simulated import Choice, best_schemes, scenario, simulate_all
from codedreduce.comparison.selection import ALL, scenario_for
from codedreduce.lab import Lab
from codedreduce.simulator.scenario import Scenario
from codedreduce.training.data import Arrays

PEERS = {"gloo": run_gloo, "mpi": run_mpi}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="the folder of measured latencies; without it, models like them")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", help="one experiment: 84 or 156")
    parser.add_argument("--conditions", help="some of the conditions, by name")
    parser.add_argument("--schemes", help="some of the schemes and peers, by name")
    parser.add_argument("--again", action="store_true", help="measure again what has been measured")
    parser.add_argument("--out", type=Path, default=Path("bench/results/paper.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/paper.svg"))
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.update({"unit": UNIT, "rate": RATE, "rounds": options.rounds})
    for experiment in EXPERIMENTS:
        if options.only in (None, experiment.name):
            _run(experiment, options, found)
    draw(found, options.figure)
    print(table(found))
    print(f"wrote {options.out} and {options.figure}")


def _run(experiment: Experiment, options: argparse.Namespace, found: dict[str, Any]) -> None:
    everything = conditions(options.traces)
    wanted = {name: everything[name] for name in _some_of(list(everything), options.conditions)}
    results = found.setdefault("experiments", {}).setdefault(experiment.name, {})
    todo = [
        (condition, name)
        for condition in wanted
        for name in _some_of([*ALL, *PEERS], options.schemes)
        if options.again or name not in results.get(condition, {})
    ]
    _say(f"{experiment.workers} workers ({experiment.tree}): choosing tolerances by simulation")
    chosen = best_schemes(experiment, wanted, [job for job in todo if job[1] in ALL])
    lab = Lab.up(nodes=experiment.workers + 1, rate=RATE, name=f"p{experiment.name}")
    try:
        measuring = Measuring(experiment, lab, options.rounds)
        costs = _calibrate(measuring, chosen, options, found)
        for condition, name in todo:
            result = _measure(measuring, name, wanted[condition], chosen[condition], costs)
            results.setdefault(condition, {})[name] = result
            _say(f"  {condition:20} {_line(result)}")
            _save(options.out, found)
    finally:
        lab.down()
    _simulate(results, options, found["arithmetic_seconds"][experiment.name])
    _save(options.out, found)


def _some_of(everything: list[str], names: str | None) -> list[str]:
    """Those named in a list with commas, in their order, or all."""
    chosen = everything if names is None else names.split(",")
    if unknown := set(chosen) - set(everything):
        raise SystemExit(f"there is no {', '.join(sorted(unknown))} among {', '.join(everything)}")
    return [name for name in everything if name in chosen]


def _calibrate(
    measuring: Measuring, chosen: dict[str, dict[str, Choice]], options: argparse.Namespace, found: dict[str, Any]
) -> dict[str, float]:
    """What a message of each scheme, and a sample, cost a core of this machine; the former are returned."""
    name = measuring.experiment.name
    costs: dict[str, float] = found.setdefault("message_seconds", {}).setdefault(name, {})
    arithmetic: dict[str, float] = found.setdefault("arithmetic_seconds", {})
    if options.again:
        costs.clear()
        arithmetic.pop(name, None)
    plain = scenario_for(scenario(measuring.experiment, "calm"), "master-worker")
    for one in (plain, *(one for by_name in chosen.values() for one, _ in by_name.values())):
        label = one.plan().scheme.label
        if label not in costs:
            costs[label] = measuring.message_seconds(one)
            _save(options.out, found)
            _say(f"  {label}: {1e6 * costs[label]:.0f} us a message")
    if name not in arithmetic:
        arithmetic[name] = measuring.arithmetic_seconds(plain, costs["master-worker"])
        _say(f"  {1e6 * arithmetic[name]:.1f} us a sample")
    return costs


def _simulate(results: dict[str, dict[str, Any]], options: argparse.Namespace, arithmetic_seconds: float) -> None:
    """Put the simulated mean beside the measured one: on this machine's cores, and with a machine for every node."""
    delays = conditions(options.traces)
    found = [
        (condition, one)
        for condition, row in results.items()
        for one in row.values()
        if condition in delays and condition != NOTHING_INJECTED and "scenario" in one and "simulated" not in one
    ]
    _say(f"simulating {len(found)} runs")
    apart = [
        msgspec.structs.replace(Scenario.from_json(one["scenario"]), delays=delays[condition])
        for condition, one in found
    ]
    here = [
        msgspec.structs.replace(
            scenario, cores=os.cpu_count() or 1, message_seconds=one["message_seconds"],
            arithmetic_seconds=arithmetic_seconds,
        )
        for scenario, (_, one) in zip(apart, found, strict=True)
    ]  # fmt: skip
    means = zip(simulate_all(here, options.rounds), simulate_all(apart, options.rounds), strict=True)
    for (_, one), (shared, own) in zip(found, means, strict=True):
        one["simulated"], one["simulated_own_machines"] = shared, own


def _measure(
    measuring: Measuring, name: str, delays: str, chosen: dict[str, Choice],
    costs: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    if name in PEERS:
        assert isinstance(measuring.data, Arrays)
        truth = measuring.truth()
        return PEERS[name](measuring.experiment, measuring.data, measuring.lab, delays, measuring.rounds, truth)
    one, sweep = chosen[name]
    scheme = one.plan().scheme
    result = measuring.run(scheme, delays)
    known_as = msgspec.structs.replace(one, delays=Path(delays).name)  # wherever the traces may lie
    return {**result, "message_seconds": costs[scheme.label], "sweep": sweep, "scenario": known_as.to_json()}


def _line(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{result['scheme']:30} failed: {result['failed']}"
    bits = "exact" if result["exact"] else "NOT EXACT"
    return f"{result['scheme']:30} {result['mean']:.3f} s, work {result['work']:.2f}, {bits}"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _save(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
