"""What redundancy costs where cores are few and nobody is late: 84 workers (4x3) with real arithmetic on this machine.

python -m bench.starved [calm|busy|first|lab ...] [--repeats 5] [--out FILE.json]

calm: nothing injected. busy: as many processes as there are cores spin beside it. first: the first round, from when all
workers are ready, and what memory the workers have of their own by then. lab: the first round and the mean of ten more
in a lab at 60 Mbit/s, where a worker computes for 0.1 s (as root; only if it is named). All schemes take turns; medians
over repeats of the mean and of the median of a round, the first two rounds left out (`first` is about these).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bench.measure import save
from codedreduce import CodedReduce, MasterWorker, Scheme, Tree
from codedreduce.lab import Lab
from codedreduce.node.local import LocalCluster, new_meeting
from codedreduce.training import SGD, LinearRegression, synthetic
from codedreduce.training.gradient import BatchGradient
from codedreduce.training.loop import Job, run_job

TREE = Tree.regular(fanout=4, depth=3)
SCHEMES: dict[str, Scheme] = {
    "master-worker": MasterWorker(84),
    "s=0": CodedReduce(TREE, 0),
    "s=1": CodedReduce(TREE, 1),
    "s=3": CodedReduce(TREE, 3),
}
DATA = synthetic(6300, 5800, kind="linear")
ROUNDS, WARM_UP = 40, 2
PARTS = ("calm", "busy", "first", "lab")


def job_of(scheme: Scheme, rounds: int) -> Job:
    return Job(objective=LinearRegression(), source=DATA, scheme=scheme, rounds=rounds, optimizer=SGD(1e-5))


@contextlib.contextmanager
def cores_kept_busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core from others."""
    context = multiprocessing.get_context("fork")
    spinning = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def rounds_of(scheme: Scheme) -> tuple[float, float]:
    seconds = [log.seconds for log in run_job(job_of(scheme, ROUNDS + WARM_UP)).history[WARM_UP:]]
    return statistics.fmean(seconds), statistics.median(seconds)


def compared(repeats: int, busy: int) -> dict[str, Any]:
    """Mean seconds of a round by scheme, and over master-worker's."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SCHEMES}
    with cores_kept_busy(busy):
        for _ in range(repeats):
            for name, scheme in SCHEMES.items():
                found[name].append(rounds_of(scheme))
    rows: dict[str, Any] = {}
    for name, runs in found.items():
        rows[name] = {}
        for index, kind in enumerate(("mean", "median")):
            seconds, uncoded = ([run[index] for run in of] for of in (runs, found["master-worker"]))
            over = statistics.median(one / other for one, other in zip(seconds, uncoded, strict=True))
            rows[name] |= {kind: statistics.median(seconds), f"{kind}_over_master_worker": over}
        print(
            f"  {name:14} mean {1000 * rows[name]['mean']:6.1f} ms, {rows[name]['mean_over_master_worker']:.2f} of "
            f"master-worker; median {1000 * rows[name]['median']:6.1f} ms, "
            f"{rows[name]['median_over_master_worker']:.2f}",
            flush=True,
        )
    return rows


def first(repeats: int) -> dict[str, Any]:
    """The first round, and the memory that workers have of their own after three."""
    seconds: dict[str, list[float]] = {name: [] for name in SCHEMES}
    memory: dict[str, list[float]] = {name: [] for name in SCHEMES}
    for _ in range(repeats):
        for name, scheme in SCHEMES.items():
            job = job_of(scheme, 3)
            plan = job.plan()
            gradient = BatchGradient(job.objective, DATA, plan, batch=None, seed=0)
            model = job.model()
            sent = [0.0] * (len(model) + 1)
            with LocalCluster(job.run(new_meeting(), plan), gradient) as cluster:
                times = [cluster.sum_of(sent).seconds for _ in range(3)]  # type: ignore[arg-type]
                own = [psutil.Process(pid).memory_full_info().uss for pid in cluster.processes.values()]
            seconds[name].append(times[0])
            memory[name].append(sum(own) / 1e6)
    rows = {}
    for name, times in seconds.items():
        over = statistics.median(one / other for one, other in zip(times, seconds["master-worker"], strict=True))
        own_megabytes = statistics.median(memory[name])
        rows[name] = {"seconds": statistics.median(times), "over_master_worker": over, "own_megabytes": own_megabytes}
        print(
            f"  {name:14} first round {1000 * rows[name]['seconds']:7.1f} ms, {over:.2f} of master-worker; "
            f"84 workers have {rows[name]['own_megabytes']:.0f} MB of their own",
            flush=True,
        )
    return rows


def in_lab(repeats: int) -> dict[str, Any]:
    """The first round in the lab, and the mean of ten more."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SCHEMES}
    lab = Lab.up(nodes=85, rate=60e6 / 8, name="starved")
    try:
        for _ in range(repeats):
            for name, scheme in SCHEMES.items():
                history = run_job(replace(job_of(scheme, 11), site=lab, compute=8.4)).history
                found[name].append((history[0].seconds, statistics.fmean(log.seconds for log in history[1:])))
    finally:
        lab.down()
    rows = {}
    for name, runs in found.items():
        first_round, more = (statistics.median(run[index] for run in runs) for index in (0, 1))
        rows[name] = {"first": first_round, "mean_of_ten_more": more}
        print(f"  {name:14} first round {first_round:.3f} s, mean of ten more {more:.3f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["calm", "busy", "first"], choices=PARTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for part in options.parts:
        print(part, flush=True)
        if part == "first":
            results[part] = first(options.repeats)
        elif part == "lab":
            results[part] = in_lab(options.repeats)
        else:
            results[part] = compared(options.repeats, busy=(os.cpu_count() or 1) if part == "busy" else 0)
    save(options.out, {"rounds": ROUNDS, "repeats": options.repeats, **results})


if __name__ == "__main__":
    main()
