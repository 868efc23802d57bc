"""Is what the default chooses the quickest? Stripes beside ring and trees, simulated, for short and long vectors.

python -m bench.default [--traces DIR] [--rounds 8] [--workers 84] [--out bench/results/default.json]

84 workers, 60 Mbit/s, 0.5 ms. Vectors of 5,800, 580,000 and 58 million numbers as the wire sees them: simulated with
5,800 numbers over a link that is as much slower, with messages that are as much smaller. A stripe is one chunk, of 58
million two (in chunks of 64 KiB, as over a real network, it would be 42). `choose` is told the rate, as its cost model
has it. Every sum is compared with the true gradient, and its bits with those of a calm round.

With --traces the first matrix of every trace is a further condition, with 20 s of computing. Rows are saved as they
come; with --go-on those that are in the file are kept, and only the others are run.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bench.conditions import COMPUTE, MODELS, conditions
from bench.measure import save
from codedreduce.comparison.selection import scenario_for
from codedreduce.comparison.simulated_runs import run_scenario
from codedreduce.schemes.choice import choose
from codedreduce.simulator import network
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.scenario import Scenario

PARAMETERS = 5800
RATE = 60e6 / 8
#: How many times longer vectors are on the wire, chunks that a tree cuts them into, and those of a stripe.
LENGTHS = ((1, 1, 1), (100, 16, 1), (10_000, 16, 2))
#: Seconds that the batch takes one worker, in conditions that are a trace.
TRACE_COMPUTE = 20.0
SCHEMES = ("ring", "progressive", "progressive s=3", "striped")


#: Delays, seconds of computing; how many times longer, chunks of a tree's vector and of a stripe; rounds, workers.
Job = tuple[str, float, tuple[int, int, int], int, int]


def jobs(traces: Path | None, rounds: int, workers: int) -> list[Job]:
    """Every condition with every length of vectors."""
    firsts = {name.rpartition(":")[0]: name for name in reversed(conditions(traces)[len(MODELS) :])}
    pairs = [(delays, compute) for compute in COMPUTE for delays in MODELS]
    pairs += [(firsts[path], TRACE_COMPUTE) for path in sorted(firsts)]
    return [(delays, compute, length, rounds, workers) for length in LENGTHS for delays, compute in pairs]


def name_of(job: Job) -> tuple[str, float, int]:
    """What a row of the table is known by; of a trace's path the file's name."""
    delays, compute, (times, _, _), _, _ = job
    return delays.rpartition("/")[2], compute, PARAMETERS * times


def one(job: Job) -> dict[str, Any]:
    """All schemes under one condition."""
    delays, compute, (times, chunks, of_a_stripe), rounds, workers = job
    network.SMALL_BYTES = 100 // times  # messages do not grow with the vector
    tree = "4x3" if workers == 84 else f"{workers}/4"
    base = Scenario(tree=tree, delays=delays, compute=compute, rounds=rounds, parameters=PARAMETERS, rate=RATE / times)
    gradients = Gradients(base.samples, base.parameters, base.seed)
    choice = choose(workers, PARAMETERS * times, shared_memory=False, rate=RATE)
    results = {}
    for name in SCHEMES:
        scenario = scenario_for(base, name.partition(" ")[0])
        chunk = -(-PARAMETERS // (workers * of_a_stripe if name == "striped" else chunks))
        stragglers = 3 if "s=3" in name else 1
        found = run_scenario(
            msgspec.structs.replace(
                scenario, chunk=chunk, stragglers=stragglers, stripes=workers if name == "striped" else None
            ),
            name,
            gradients,
        ).result
        results[name] = {"mean": found.mean, "work": found.work, "bit_identical": found.bit_identical}
    chosen = "striped" if choice.scheme.name == "striped" else "progressive"
    best = min(result["mean"] for result in results.values())
    condition = dict(zip(("delays", "compute", "numbers"), name_of(job), strict=True))
    return condition | {
        "chosen": chosen, "results": results,
        "of_best": results[chosen]["mean"] / best,
        "of_progressive": results[chosen]["mean"] / results["progressive"]["mean"],
    }  # fmt: skip


def row_of(row: dict[str, Any]) -> str:
    """A row of the table in words."""
    cells = "".join(f"{row['results'][name]['mean']:16.3f} s" for name in SCHEMES)
    found = f"{row['chosen']} {row['of_best']:.3f}   {row['of_progressive']:.3f}"
    return f"{row['numbers']:11,} {row['compute']:6.0f} s {row['delays']:40}{cells}   {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=84)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--go-on", action="store_true", help="keep the rows that are in the file")
    options = parser.parse_args()
    header = "".join(f"{name:>18}" for name in SCHEMES)
    print(f"{'numbers':>11} {'compute':>8} {'delays':40}{header}   chosen / best   chosen / progressive")
    shape = {"rounds": options.rounds, "workers": options.workers}
    table: list[dict[str, Any]] = []
    if options.go_on and options.out and options.out.exists():
        before = msgspec.json.decode(options.out.read_bytes())
        if any(before[key] != value for key, value in shape.items()):
            parser.error(f"{options.out} has {before['rounds']} rounds of {before['workers']} workers")
        table = before["conditions"]
    known = {(row["delays"], row["compute"], row["numbers"]) for row in table}
    todo = [job for job in jobs(options.traces, options.rounds, options.workers) if name_of(job) not in known]
    with ProcessPoolExecutor(options.processes) as pool:
        for row in pool.map(one, todo):
            table.append(row)
            print(row_of(row), flush=True)
            worst = max(row["of_best"] for row in table)
            save(options.out, {**shape, "worst": worst, "conditions": table}, quietly=True)
    print(f"what is chosen over the best, at worst: {max(row['of_best'] for row in table):.3f}")


if __name__ == "__main__":
    main()
