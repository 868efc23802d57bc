"""What checkpoints cost: the same training with none, and with one every 10 rounds; both sides take turns.

python -m bench.checkpoints [--out bench/results/checkpoints.json] [--parameters 10000000] [--repeats 5]

6 workers on this machine, over a tree and in stripes. The model has 10 million parameters and momentum, so that a
checkpoint has 80 MB. A round computes little: what a checkpoint costs is then the greater part.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import save
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme, Striped
from codedreduce.schemes.names import default_scheme
from codedreduce.training import SGD
from codedreduce.training.checkpoints import saving_to
from codedreduce.training.data import synthetic
from codedreduce.training.loop import Job, run_job

WORKERS = 6
EVERY = 10
ROUNDS = 40


@dataclass(frozen=True)
class Pull:
    """A model of any length that every sample pulls towards its label: a pass over the vector a piece."""

    length: int

    def parameters(self, features: int) -> int:
        return self.length

    def evaluate(self, model: Any, x: Any, y: Any, weights: Any, gradient: Any) -> float:
        count = np.float32(len(y))
        np.multiply(model, count, out=gradient)
        gradient -= np.float32(y.sum())
        return float(count)


@contextmanager
def _folder(wanted: bool) -> Iterator[Path | None]:
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "checkpoints"


def seconds_a_round(scheme: Scheme, parameters: int, *, checkpoints: bool) -> tuple[float, float]:
    """The mean time of a round, the last ones' checkpoint included, and of the longest."""
    times: list[float] = []

    def on_round(log: RoundLog) -> None:
        times.append(time.monotonic())

    with _folder(checkpoints) as folder:
        job = Job(
            objective=Pull(parameters), source=synthetic(60, 4), scheme=scheme, rounds=ROUNDS,
            optimizer=SGD(0.01, 0.9), saving=saving_to(folder, EVERY, resume=False),
        )  # fmt: skip
        run_job(job, on_round=on_round)
    gaps = np.diff(times)
    return float(gaps.mean()), float(gaps.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for name, scheme in (("tree", default_scheme(WORKERS)), ("striped", Striped(WORKERS))):
        ratios = []
        for repeat in range(options.repeats):
            order = (False, True) if repeat % 2 else (True, False)
            found = {which: seconds_a_round(scheme, options.parameters, checkpoints=which) for which in order}
            ratios.append(found[True][0] / found[False][0])
            rows.append(
                {
                    "scheme": name, "repeat": repeat, "without": found[False][0], "with": found[True][0],
                    "longest_without": found[False][1], "longest_with": found[True][1],
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
            save(options.out, {"parameters": options.parameters, "every": EVERY, "checkpoints": rows}, quietly=True)
        print(f"{name}: with checkpoints a round takes {statistics.median(ratios):.3f} of one without")


if __name__ == "__main__":
    main()
