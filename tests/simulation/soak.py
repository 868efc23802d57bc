"""Many random fault schedules, on all cores: python -m tests.simulation.soak --runs 100000 [--first SEED]."""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.progress import Progress

from tests.simulation.check_run import check_seed

BATCH = 200


def batch(first: int) -> list[str]:
    failures = []
    for seed in range(first, first + BATCH):
        try:
            check_seed(seed, Path("traces"))
        except AssertionError as error:
            failures.append(str(error))
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000)
    options = parser.parse_args()
    failures: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, Progress() as bar:
        task = bar.add_task("random fault schedules", total=options.runs)
        for found in pool.map(batch, range(options.first, options.first + options.runs, BATCH)):
            failures += found
            bar.advance(task, BATCH)
            for failure in found:
                bar.console.print(failure)
    print(f"{options.runs} runs, {len(failures)} failures")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
