"""Is progressive CodedReduce ever slower than another scheme? All schemes under all conditions, simulated.

python -m bench.conditions [--traces DIR] [--rounds 60] [--out FILE.json]

84 workers as 4x3, s=1, d=6300, p=5800, 60 Mbit/s, 0.5 ms. Without --traces the built-in models serve alone.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.measure import save
from codedreduce.comparison.selection import ALL
from codedreduce.comparison.simulated_runs import simulate_schemes
from codedreduce.simulator.scenario import Scenario

MODELS = ("calm", "exponential", "bursty", "sticky", "stalls:0.05:2s")
COMPUTE = (2.0, 20.0, 84.0)


def conditions(traces: Path | None) -> list[str]:
    """Delay models, and every matrix of every trace."""
    found = list(MODELS)
    for path in sorted(traces.glob("*.npz")) if traces else ():
        with np.load(path) as archive:
            found += [f"{path}:{key}" for key in archive]
    return found


def one_condition(job: tuple[str, float, int]) -> dict[str, Any]:
    """All schemes under one condition."""
    delays, compute, rounds = job
    comparison = simulate_schemes(Scenario(delays=delays, compute=compute, rounds=rounds), ALL)
    if comparison.stopped_by is not None:
        raise comparison.stopped_by
    results = {result.name: msgspec.to_builtins(result) for result in comparison.results}
    for result in results.values():
        del result["round_seconds"]
    return {"delays": delays.rpartition("/")[2], "compute": compute, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jobs = [(delays, compute, options.rounds) for compute in COMPUTE for delays in conditions(options.traces)]
    print(f"{'compute':>8} {'delays':40}" + "".join(f"{name:>18}" for name in ALL) + "   progressive/best other")
    table = []
    with ProcessPoolExecutor(2) as pool:
        for row in pool.map(one_condition, jobs):
            means = {name: row["results"][name]["mean"] for name in ALL}
            row["of_best_other"] = means["progressive"] / min(v for k, v in means.items() if k != "progressive")
            table.append(row)
            cells = "".join(f"{means[name]:16.3f} s" for name in ALL)
            print(f"{row['compute']:6.0f} s {row['delays']:40}{cells}   {row['of_best_other']:.2f}", flush=True)
    worst = max(row["of_best_other"] for row in table)
    print(f"progressive over the best other scheme, at worst: {worst:.3f}")
    save(options.out, {"rounds": options.rounds, "worst": worst, "conditions": table})


if __name__ == "__main__":
    main()
