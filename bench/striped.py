"""What stripes cost and what they tolerate: PyTorch in a lab, beside DDP, MPI, our tree and our ring.

python -m bench.striped [calm] [faults] [unequal] [--sides striped,ddp,...] [--most 6] [--out FILE.json]

As root: every rank is a process in a network namespace of its own, behind a link of the given rate. All sides train the
same model on the same batches, with as many processes that compute. Computing is slept, so that 2 cores carry all
ranks: so many seconds a sample, whoever computes it. A step is timed on rank 0, from one end of the loop body to the
next.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.measure import save
from bench.sides import Case, run_side

CALM = (
    Case(2, 2_000_000, 100e6), Case(4, 2_000_000, 100e6), Case(6, 2_000_000, 100e6),
    Case(6, 8_000_000, 100e6, steps=6), Case(12, 600_000, 30e6),
)  # fmt: skip

#: Where the network takes most of a step, and where computing does.
FAULTY = (Case(6, 2_000_000, 100e6, unit=0.1, steps=30), Case(6, 100_000, 100e6, unit=0.6, steps=30))
TROUBLES = ("stall:0.25", "stall:1", "slow:3", "kill", "link:10")


#: Sides that are so much slower that one run of each says enough.
ONCE = ("tree",)


def usual(seconds: list[float], skip: int = 1) -> float:
    """The median step, the first ones left out."""
    return statistics.median(seconds[skip:]) if len(seconds) > skip else float("nan")


def calm(sides: list[str], most: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Every side, nobody late, taking turns."""
    for case in [one for one in CALM if one.ranks <= most and one.parameters <= most * 1e6]:
        print(f"\n{case}; vector {case.wire:.2f} s, limit {case.limit:.2f} s")
        runs: dict[str, list[list[float]]] = {}
        for turn in range(repeats):
            for side in sides:
                if not turn or side not in ONCE:
                    runs.setdefault(side, []).append(run_side(side, case)["seconds"])
        row: dict[str, Any] = {"case": asdict(case), "limit": case.limit, "sides": {}}
        for side, found in runs.items():
            steps = [usual(seconds) for seconds in found]
            first = [seconds[0] for seconds in found if seconds]
            row["sides"][side] = {
                "step": statistics.median(steps),
                "first": statistics.median(first or [0.0]),
                "runs": found,
            }
            print(f"  {side:8} step {statistics.median(steps):6.2f} s   first {statistics.median(first or [0]):6.2f} s")
        peers = [one["step"] for side, one in row["sides"].items() if side in ("ddp", "mpi", "ring")]
        best = min(peers, default=float("nan"))
        row["of_best_peer"] = row["sides"]["striped"]["step"] / best
        of_limit = row["sides"]["striped"]["step"] / case.limit
        print(f"  striped / best peer {row['of_best_peer']:.2f}   / limit {of_limit:.2f}", flush=True)
        yield row


def faults(sides: list[str], most: int, repeats: int) -> Iterator[dict[str, Any]]:
    """One of six in trouble: its step against its own calm one, and DDP's."""
    pair = [side for side in ("striped", "ddp") if side in sides]
    for base in FAULTY:
        calm_steps = {side: usual(run_side(side, replace(base, steps=10))["seconds"], 2) for side in pair}
        print(f"\n{base}: calm step " + ", ".join(f"{side} {step:.2f} s" for side, step in calm_steps.items()))
        for trouble in TROUBLES:
            row: dict[str, Any] = {"case": asdict(base), "trouble": trouble, "calm": calm_steps, "sides": {}}
            for side in pair:
                case = replace(
                    base, trouble=trouble, calm_step=calm_steps[side], steps=base.steps if side == "striped" else 8
                )
                if side == "ddp" and trouble == "kill":
                    row["sides"][side] = {"mean": None, "note": "ends"}
                    continue
                found = [run_side(side, case)["seconds"] for _ in range(repeats)]
                settled = [one[len(one) // 3 :] for one in found]
                row["sides"][side] = {
                    "mean": statistics.median(statistics.mean(one) for one in settled),
                    "median": statistics.median(statistics.median(one) for one in settled),
                    "first third": statistics.median(statistics.mean(one[: len(one) // 3]) for one in found),
                    "runs": found,
                }  # fmt: skip
            mine = row["sides"]["striped"]
            row["of_calm"] = mine["mean"] / calm_steps["striped"]
            other = row["sides"].get("ddp", {}).get("mean")
            theirs = f";  DDP {other / calm_steps['ddp']:.2f} of its calm step" if other else ""
            first = mine["first third"] / calm_steps["striped"]
            found_is = f"{row['of_calm']:.2f} of calm (first third {first:.2f}){theirs}"
            print(f"  {trouble:10} striped mean {mine['mean']:.2f} s, {found_is}", flush=True)
            yield row


def unequal(sides: list[str], most: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Speeds 1, 1, 2, 2, 4, 4: against the time in which all together would be through at once."""
    base = Case(6, 100_000, 100e6, unit=0.6, steps=16, samples=64)
    calm_step = usual(run_side("striped", replace(base, steps=8))["seconds"], 2)
    pair = [side for side in ("striped", "ddp") if side in sides]
    troubled = replace(base, trouble="unequal")
    found = {side: [run_side(side, troubled)["seconds"] for _ in range(repeats)] for side in pair}
    steps = {side: statistics.median(usual(one, len(one) // 2) for one in runs) for side, runs in found.items()}
    told = ", ".join(f"{side} {step:.2f} s ({step / calm_step:.2f})" for side, step in steps.items())
    print(f"\nunequal ranks: as quick together as six equal ones, which take {calm_step:.2f} s; {told}", flush=True)
    yield {"case": asdict(base), "balanced": calm_step, "steps": steps, "runs": found}


def _same_question(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["case"] == other["case"] and one.get("trouble") == other.get("trouble")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["calm", "faults", "unequal"])
    parser.add_argument("--sides", default="striped,ddp,mpi,ring,tree")
    parser.add_argument("--most", type=int, default=12, help="ranks, and million parameters")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known = {"calm": calm, "faults": faults, "unequal": unequal}
    results: dict[str, Any] = {}
    if options.out is not None and options.out.exists():
        results = json.loads(options.out.read_text())
    for part in options.parts:
        rows = results.setdefault(part, [])
        for row in known[part](options.sides.split(","), options.most, options.repeats):
            rows[:] = [one for one in rows if not _same_question(one, row)] + [row]
            save(options.out, results)  # row by row: what is interrupted keeps what it has


if __name__ == "__main__":
    main()
