"""What it costs a worker to know its samples of a round: laying the whole epoch out against asking for the places.

python -m bench.sampling [--out FILE]

A batch of 1,024 for 8 workers: each asks for its 128 samples. Laid out: a permutation of all samples, which is made at
the first round of every epoch, and kept. Asked for: `Batches`, which has nothing to begin with. Each in a process of
its own, whose peak of memory is what it needs above an idle one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import save
from codedreduce.training.batches import Batches

BATCH, WORKERS, ROUNDS = 1024, 8, 21
UNIT = range(3 * BATCH // WORKERS, 4 * BATCH // WORKERS)
LAID_OUT = "laid out"
SIZES = (100_000, 10_000_000, 100_000_000, 10**12)


def lay_out(samples: int, rounds: int) -> float:
    """The first of so many rounds lays out its epoch."""
    began = time.perf_counter()
    order = np.random.default_rng([0, 0]).permutation(samples).astype(np.intp)
    for round_ in range(rounds):
        order[round_ * BATCH + UNIT.start : round_ * BATCH + UNIT.stop].copy()
    return time.perf_counter() - began


def ask(samples: int, rounds: int) -> float:
    """All rounds alike."""
    began = time.perf_counter()
    batches = Batches(samples, BATCH)
    for round_ in range(1, rounds + 1):
        batches.indices(round_, UNIT.start, UNIT.stop)
    return time.perf_counter() - began


def _measured(way: Callable[[int, int], float], samples: int, answer: Connection) -> None:
    way(1000 * BATCH, 1)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = way(samples, 1)
    others = statistics.median((way(samples, ROUNDS) - first) / (ROUNDS - 1) for _ in range(3)) if way is ask else 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.send({"first round s": first, "other rounds s": max(0.0, others), "memory MB": (peak - idle) / 1000})


def measure(way: Callable[[int, int], float], samples: int) -> dict[str, Any]:
    """In a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_measured, args=(way, samples, theirs))
    process.start()
    found: dict[str, Any] = ours.recv()
    process.join()
    return {"samples": samples, "way": LAID_OUT if way is lay_out else "asked for", **found}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for samples in SIZES:
        for way in (lay_out, ask):
            if way is ask or samples < 10**9:
                rows.append(measure(way, samples))
                print(json.dumps(rows[-1]))
    if arguments.out is not None:
        save(arguments.out, {"batch": BATCH, "workers": WORKERS, "rows": rows})


if __name__ == "__main__":
    main()
