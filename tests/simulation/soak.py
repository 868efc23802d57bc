"""Many random fault schedules, on all cores: python -m tests.simulation.soak --runs 1000 [--first SEED --draw KIND]."""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.progress import Progress

from codedreduce.simulator.scenario import Scenario
from tests.simulation.check_run import check_seed
from tests.simulation.random_scenarios import (
    random_audits,
    random_failing_ranks,
    random_late_ranks,
    random_leaving_ranks,
    random_one_way_cuts,
    random_scenario,
    random_striped,
    random_units,
    random_wrong_ranks,
)

BATCH = 200

#: What may be drawn: trees, rings and ranks; nothing but ranks; ranks that fail, that leave, that have several units,
#: that come late, that are heard by some and not by others, that compute wrongly what is audited, that compute all
#: wrongly and come back.
DRAWS: dict[str, Callable[[int], Scenario]] = {
    "mixed": random_scenario, "ranks": random_striped, "failing": random_failing_ranks,
    "leaving": random_leaving_ranks, "units": random_units, "late": random_late_ranks, "one-way": random_one_way_cuts,
    "audits": random_audits, "wrong": random_wrong_ranks,
}  # fmt: skip


def batch(first: int, draw: str) -> list[str]:
    failures = []
    for seed in range(first, first + BATCH):
        try:
            check_seed(seed, Path("traces"), DRAWS[draw])
        except AssertionError as error:
            failures.append(str(error))
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--draw", choices=DRAWS, default="mixed", help="which schedules")
    options = parser.parse_args()
    one = partial(batch, draw=options.draw)
    failures: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, Progress() as bar:
        task = bar.add_task("random fault schedules", total=options.runs)
        for found in pool.map(one, range(options.first, options.first + options.runs, BATCH)):
            failures += found
            bar.advance(task, BATCH)
            for failure in found:
                bar.console.print(failure)
    print(f"{options.runs} runs, {len(failures)} failures")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
