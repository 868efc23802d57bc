"""Many random fault schedules, on all cores: python -m tests.simulation.soak --runs 100000 [--first SEED --striped]."""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.progress import Progress

from codedreduce.worlds.simulated.scenario import Scenario, random_scenario, random_striped
from tests.simulation.check_run import check_seed

BATCH = 200


def batch(first: int, draw: Callable[[int], Scenario]) -> list[str]:
    failures = []
    for seed in range(first, first + BATCH):
        try:
            check_seed(seed, Path("traces"), draw)
        except AssertionError as error:
            failures.append(str(error))
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--striped", action="store_true", help="nothing but ranks")
    options = parser.parse_args()
    one = partial(batch, draw=random_striped if options.striped else random_scenario)
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
