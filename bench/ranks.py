"""How the cost of a simulated round of striped grows with the number of ranks, calm and with stalls.

python -m bench.ranks [--out FILE.json]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from bench.measure import save
from codedreduce.simulator.scenario import Scenario

ROUNDS = 2


def one_size(ranks: int, delays: str) -> dict[str, Any]:
    """So many ranks with four stripes, of which a vector has few chunks: seconds, and what a message costs."""
    scenario = Scenario(
        tree=f"{ranks}x1", stragglers=0, scheme="striped", stripes=4, blocks=4, samples=8 * ranks, parameters=1000,
        compute=float(ranks), rounds=ROUNDS, delays=delays,
    )  # fmt: skip
    begin = time.perf_counter()
    cluster = scenario.cluster()
    ready = time.perf_counter()
    recorder = cluster.run(ROUNDS)
    each = (time.perf_counter() - ready) / ROUNDS
    return {
        "ranks": ranks,
        "delays": delays,
        "seconds_to_set_up": ready - begin,
        "seconds_per_round": each,
        "microseconds_per_message": 1e6 * each * ROUNDS / cluster.network.messages,
        "simulated_seconds": recorder.seconds().tolist(),
        "exact": recorder.identical,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 200, 400, 1000])
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        for delays in ("calm", "stalls:0.05:3s"):
            rows.append(row := one_size(ranks, delays))
            print(
                f"{ranks:5,} ranks, {delays:>14}: {row['seconds_per_round']:6.2f} s a round, "
                f"{row['microseconds_per_message']:6.1f} us a message, {row['seconds_to_set_up']:.2f} s to set up",
                flush=True,
            )
    save(options.out, {"ranks": rows})


if __name__ == "__main__":
    main()
