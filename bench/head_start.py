"""What the head start costs under stragglers and what it saves in calm: round time and work over its length, simulated.

python -m bench.head_start [--traces DIR] [--out FILE.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.measure import save
from codedreduce.comparison.simulated_runs import run_scenario
from codedreduce.simulator import Gradients
from codedreduce.simulator.scenario import Scenario

LENGTHS = (0.0, 0.1, 0.2, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    delays = ["calm", "exponential", "bursty", "sticky", "stalls:0.05:2s"]
    if options.traces:
        delays += [
            f"{options.traces}/lambda_heavy_tail.npz:Canada_load0.000",
            f"{options.traces}/gpu_llm_mild.npz:SE_stage0",
        ]
    gradients = Gradients(6300, 5800, 0)
    rows = []
    print(f"{'seconds a round (work over the batch)':34}" + "".join(f"head start {length:<9}" for length in LENGTHS))
    for name in delays:
        cells = []
        for length in LENGTHS:
            scenario = Scenario(delays=name, head_start=length, rounds=100)
            result = run_scenario(scenario, "progressive", gradients).result
            cells.append({"head_start": length, "mean": result.mean, "work": result.work})
        rows.append({"delays": name.rpartition("/")[2], "head_starts": cells})
        shown = "".join(f"{cell['mean']:8.3f} s ({cell['work']:.2f}x) " for cell in cells)
        print(f"{name.rpartition('/')[2]:34}{shown}", flush=True)
    save(options.out, {"conditions": rows})


if __name__ == "__main__":
    main()
