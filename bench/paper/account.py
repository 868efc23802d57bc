"""What bounds the speed-up: the cluster of 84 with longer vectors, and with nothing to compute.

python -m bench.paper.account              simulated, with a machine for every node
python -m bench.paper.account --measure    in the lab, vectors ten times as long; needs root and iproute2
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import msgspec

from bench.paper.experiments import EXPERIMENTS, RATE, Experiment
from bench.paper.measured import Measuring
from bench.paper.simulated import mean_round, scenario
from codedreduce.comparison.selection import scenario_for
from codedreduce.lab import Lab
from codedreduce.run.tuning import chunk_over_network

#: Numbers in a vector.
SHORT, LONG = 5801, 58010

#: Numbers in a chunk that takes a millisecond on the wire: right for nodes that handle a message in much less.
SMALL_CHUNK = 1 << 11

#: Rounds that are measured.
ROUNDS = 10

SCHEMES = ("progressive", "master-worker", "gradient-coding", "ring")

#: The paper's first cluster, with few samples: longer vectors have more to send, and should not have more to compute.
CLUSTER = dataclasses.replace(EXPERIMENTS[0], samples=840, learning_rate=0.001)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="in the lab instead of simulated")
    parser.add_argument("--out", type=Path, default=Path("bench/results/account.json"))
    options = parser.parse_args()
    if options.measure:
        found = measure(with_vectors_of(LONG))
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {options.out}")
    else:
        simulate()


def with_vectors_of(length: int) -> Experiment:
    """The cluster with a model so large that the vectors, which carry the loss too, have this length."""
    return dataclasses.replace(CLUSTER, parameters=length - 1)


def simulate() -> None:
    """Every node has a machine of its own. Vectors in chunks as nodes choose them, and in small ones."""
    usual = chunk_over_network(LONG)
    for length, chunk in ((SHORT, usual), (LONG, usual), (LONG, SMALL_CHUNK)):
        base = msgspec.structs.replace(scenario(with_vectors_of(length), "calm"), turn=0, chunk=chunk)
        for compute in (CLUSTER.compute("calm"), CLUSTER.compute("calm") / 1000):
            one = msgspec.structs.replace(base, compute=compute)
            times = {name: mean_round(scenario_for(one, name), 2) for name in SCHEMES}
            show(f"{length} numbers by {chunk}, {compute / CLUSTER.workers:.4f} s computed", times)


def measure(experiment: Experiment) -> dict[str, dict[str, float]]:
    """All nodes share this machine's cores; the mean round of each scheme, by condition."""
    found: dict[str, dict[str, float]] = {}
    lab = Lab.up(nodes=experiment.workers + 1, rate=RATE, name="account")
    try:
        measuring = Measuring(experiment, lab, ROUNDS)
        for delays in ("calm", "exponential"):
            base = scenario(experiment, delays)
            found[delays] = {}
            for name in SCHEMES:
                result = measuring.run(scenario_for(base, name).plan().scheme, delays)
                if not result["exact"]:
                    raise SystemExit(f"{name} did not compute the gradient")
                found[delays][name] = result["mean"]
            show(f"{experiment.parameters + 1} numbers, {delays}", found[delays])
    finally:
        lab.down()
    return found


def show(what: str, times: dict[str, float]) -> None:
    mine = times["progressive"]
    ratios = "  ".join(f"{name} {time / mine:.1f}x" for name, time in times.items() if name != "progressive")
    print(f"{what:42}  progressive {mine:.3f} s; over it: {ratios}", flush=True)


if __name__ == "__main__":
    main()
