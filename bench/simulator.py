"""How the cost of a simulated round grows with the number of workers.

python -m bench.simulator [--out FILE.json]
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from pathlib import Path
from typing import Any

from bench.measure import save
from codedreduce.run.journal import listening
from codedreduce.simulator import Recorder
from codedreduce.simulator.scenario import Scenario


def one_size(depth: int, rounds: int, parameters: int) -> dict[str, Any]:
    """A tree 10xDEPTH with stragglers: seconds a round, and in all with setting up."""
    workers = sum(10**level for level in range(1, depth + 1))
    scenario = Scenario(
        tree=f"10x{depth}", samples=2 * workers, parameters=parameters, delays="bursty", rounds=rounds,
        compute=0.24 * workers,
    )  # fmt: skip
    begin = time.perf_counter()
    ends: list[float] = []
    recorder = Recorder(listening(on_round=lambda _: ends.append(time.perf_counter())))
    cluster = scenario.cluster(recorder=recorder)
    ready = time.perf_counter()
    cluster.run(rounds)
    end = time.perf_counter()
    each = (ends[-1] - ends[0]) / (rounds - 1)  # the first round also joins everybody and lays out their plans
    return {
        "workers": workers,
        "rounds": rounds,
        "parameters": parameters,
        "seconds_per_round": each,
        "microseconds_per_worker_log": 1e6 * each / (workers * math.log2(workers)),
        "seconds": end - begin,
        "events_per_second": recorder.steps / (end - ready),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "exact": recorder.identical,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    jobs = [(2, 20, 100), (3, 20, 100), (4, 10, 100), (5, 4, 100), (4, 20, 5800)]
    for depth, rounds, parameters in jobs:
        rows.append(row := one_size(depth, rounds, parameters))
        print(
            f"{row['workers']:8,} workers, {parameters:4} parameters: {row['seconds_per_round']:8.3f} s a round, "
            f"{row['microseconds_per_worker_log']:5.2f} us per N log N, {row['seconds']:6.1f} s for {rounds} rounds, "
            f"{row['gigabytes']:.2f} GB, {row['events_per_second']:,.0f} events/s",
            flush=True,
        )
    save(options.out, {"sizes": rows})


if __name__ == "__main__":
    main()
