"""Is what the default chooses the quickest? Stripes beside ring and trees, simulated, for short and long vectors.

python -m bench.default [--rounds 8] [--workers 84] [--out bench/results/default.json]

84 workers, 60 Mbit/s, 0.5 ms. Vectors of 5,800, 580,000 and 58 million numbers as the wire sees them: simulated with
5,800 numbers over a link that is as much slower, with messages that are as much smaller. `choose` is told the rate, as
its cost model has it. Every sum is compared with the true gradient, and its bits with those of a calm round.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bench.conditions import COMPUTE, MODELS
from bench.measure import save
from codedreduce.comparison.names import scenario_for
from codedreduce.comparison.simulated import run_scenario
from codedreduce.schemes.choice import choose
from codedreduce.worlds.simulated import network
from codedreduce.worlds.simulated.gradients import Gradients
from codedreduce.worlds.simulated.scenario import Scenario

PARAMETERS = 5800
RATE = 60e6 / 8
#: How many times longer vectors are on the wire, and chunks that a tree cuts them into.
LENGTHS = ((1, 1), (100, 16), (10_000, 16))
SCHEMES = ("ring", "progressive", "progressive s=3", "striped")


def one(job: tuple[str, float, int, int, int, int]) -> dict[str, Any]:
    """All schemes under one condition."""
    delays, compute, times, chunks, rounds, workers = job
    network.SMALL_BYTES = 100 // times  # messages do not grow with the vector
    tree = "4x3" if workers == 84 else f"{workers}/4"
    base = Scenario(tree=tree, delays=delays, compute=compute, rounds=rounds, parameters=PARAMETERS, rate=RATE / times)
    gradients = Gradients(base.samples, base.parameters, base.seed)
    choice = choose(workers, PARAMETERS * times, shared_memory=False, rate=RATE)
    results = {}
    for name in SCHEMES:
        scenario = scenario_for(base, name.partition(" ")[0])
        chunk = PARAMETERS if name == "striped" else -(-PARAMETERS // chunks)
        stragglers = 3 if "s=3" in name else 1
        found = run_scenario(
            msgspec.structs.replace(
                scenario, chunk=chunk, stragglers=stragglers, stripes=workers if name == "striped" else None
            ),
            name,
            gradients,
        ).result
        results[name] = {"mean": found.mean, "work": found.work, "bit_identical": found.bit_identical}
    chosen = "striped" if choice.scheme.name == "striped" else "progressive"
    best = min(result["mean"] for result in results.values())
    return {
        "delays": delays, "compute": compute, "numbers": PARAMETERS * times, "chosen": chosen, "results": results,
        "of_best": results[chosen]["mean"] / best,
        "of_progressive": results[chosen]["mean"] / results["progressive"]["mean"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=84)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jobs = [
        (delays, compute, times, chunks, options.rounds, options.workers)
        for times, chunks in LENGTHS for compute in COMPUTE for delays in MODELS
    ]  # fmt: skip
    print(
        f"{'numbers':>11} {'compute':>8} {'delays':16}"
        + "".join(f"{name:>18}" for name in SCHEMES)
        + "   chosen / best"
    )
    table = []
    with ProcessPoolExecutor(options.processes) as pool:
        for row in pool.map(one, jobs):
            table.append(row)
            cells = "".join(f"{row['results'][name]['mean']:16.3f} s" for name in SCHEMES)
            found = f"{row['chosen']} {row['of_best']:.3f}"
            print(f"{row['numbers']:11,} {row['compute']:6.0f} s {row['delays']:16}{cells}   {found}", flush=True)
    worst = max(row["of_best"] for row in table)
    print(f"what is chosen over the best, at worst: {worst:.3f}")
    save(options.out, {"rounds": options.rounds, "workers": options.workers, "worst": worst, "conditions": table})


if __name__ == "__main__":
    main()
