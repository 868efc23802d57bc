"""What audits cost: the same training with none, with 2 % and with nothing asked for; all sides take turns.

python -m bench.audits [--out bench/results/audits.json] [--parameters 1000000] [--repeats 3]

6 ranks in stripes, by shared memory and by sockets. Each rank is played a core of its own: a round computes for 0.2 s,
in which nothing but the sums and digests is really calculated. Means, since only some rounds are audited: of 200
rounds about 64, a block of each unit.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

from bench.checkpoints import Pull
from bench.measure import save
from codedreduce.protocol.core.audits import NO_AUDIT, Audit
from codedreduce.run.configuration import Configuration
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme, Striped
from codedreduce.training import SGD
from codedreduce.training.data import synthetic
from codedreduce.training.loop import Job, run_job

RANKS, ROUNDS = 6, 200
SECONDS = 0.2
WARM_UP = 5

SIDES = {"none": NO_AUDIT, "2 %": Audit(0.02), "none again": NO_AUDIT}


def seconds_a_round(scheme: Scheme, parameters: int, audit: Audit, *, shared_memory: bool) -> dict[str, float]:
    """The mean and the longest of all rounds but the first ones, which are given beside."""
    times: list[float] = []

    def on_round(log: RoundLog) -> None:
        times.append(log.seconds)

    job = Job(
        objective=Pull(parameters), source=synthetic(RANKS * 160, 4), scheme=scheme, rounds=ROUNDS,
        optimizer=SGD(0.01), configuration=Configuration(audit=audit), shared_memory=shared_memory,
        compute=SECONDS * scheme.workers,
    )  # fmt: skip
    run_job(job, on_round=on_round)
    rest = np.array(times[WARM_UP:])
    return {"mean": float(rest.mean()), "longest": float(rest.max()), "first": times[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = []
    scheme = Striped(RANKS)
    for name, shared in (("striped, shared memory", True), ("striped, sockets", False)):
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        for repeat in range(options.repeats):
            names = list(SIDES) if repeat % 2 else list(SIDES)[::-1]
            for side in names:
                one = seconds_a_round(scheme, options.parameters, SIDES[side], shared_memory=shared)
                found[side].append(one["mean"])
                rows.append({"case": name, "side": side, "repeat": repeat, **one})
                print(rows[-1], flush=True)
                save(options.out, {"parameters": options.parameters, "audits": rows}, quietly=True)
        for side in ("2 %", "none again"):
            ratios = [a / b for a, b in zip(found[side], found["none"], strict=True)]
            print(f"{name}: {side} takes {statistics.median(ratios):.3f} of none", flush=True)


if __name__ == "__main__":
    main()
