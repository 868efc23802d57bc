"""20,000 rounds with a kill every 50: whether memory, open files or the time of a round grow.

python -m bench.endurance [--out bench/results/endurance.json] [--rounds 20000] [--every 50]

6 workers on this machine, over a tree (with its root) and in stripes. Every 50 rounds the worker that is the oldest is
killed with SIGKILL and started again. A round computes for 42 ms, slept, so that each lives for more than 10 s: who
dies earlier five times in a row is not started again. Memory and open files are those of the first process.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from bench.measure import save
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme, Striped
from codedreduce.schemes.names import default_scheme
from codedreduce.training import SGD, LogisticRegression
from codedreduce.training.data import synthetic
from codedreduce.training.loop import Job, reference_run, run_job

WORKERS = 6
COMPUTE = 0.042


def resident(process: int | str = "self") -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(process: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that they did, oldest first."""
    found = []
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def workers() -> list[int]:
    """Those that have no children themselves: a process that only starts others is none."""
    return [one for one in descendants(os.getpid()) if not descendants(one)]


def began(process: int) -> int:
    """When a process was started, in ticks of the machine."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])


def one(scheme: Scheme, rounds: int, every: int) -> dict[str, Any]:
    """A run; figures at its quarters, and whether its model has the right bits."""
    seconds: list[float] = []
    samples: list[dict[str, float]] = []
    kills = 0
    last = time.monotonic()

    def on_round(log: RoundLog) -> None:
        nonlocal kills, last
        now = time.monotonic()
        seconds.append(now - last)
        last = now
        if log.round % every == 0:
            found = workers()
            if len(found) >= WORKERS - 1:
                os.kill(min(found, key=began), signal.SIGKILL)
                kills += 1
        if log.round % max(1, rounds // 20) == 0:
            recent = seconds[-rounds // 20 :]
            row = {
                "round": log.round, "median_round": statistics.median(recent), "longest_round": max(recent),
                "resident": resident(), "open_files": open_files(), "processes": len(workers()),
            }  # fmt: skip
            samples.append(row)
            print(row, flush=True)

    def job() -> Job:
        """With an optimizer of its own."""
        return Job(
            objective=LogisticRegression(), source=synthetic(240, 1000), scheme=scheme, rounds=rounds, batch=60,
            optimizer=SGD(0.05, 0.9), compute=COMPUTE * WORKERS,
        )  # fmt: skip

    result = run_job(job(), on_round=on_round, on_note=lambda note: None)
    same = result.parameters.tobytes() == reference_run(job(), rounds)[0].tobytes()
    return {"kills": kills, "rounds": rounds, "same_bits": same, "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--schemes", nargs="+", default=["tree", "striped"], choices=["tree", "striped"])
    options = parser.parse_args()
    found = {}
    for name in options.schemes:
        scheme = default_scheme(WORKERS) if name == "tree" else Striped(WORKERS)
        found[name] = result = one(scheme, options.rounds, options.every)
        print(f"{name}: {result['kills']} kills in {result['rounds']} rounds, same bits: {result['same_bits']}")
        for when, row in (("at a tenth", result["samples"][1]), ("at the end", result["samples"][-1])):
            print(
                f"  {when}: a round {1000 * row['median_round']:.2f} ms, {row['resident'] / 1e6:.0f} MB, "
                f"{row['open_files']} open files"
            )
        save(options.out, {"endurance": found}, quietly=True)


if __name__ == "__main__":
    main()
