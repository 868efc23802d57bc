"""Every fault by itself, at every place: how long rounds waited for it, and what came of the run.

python -m bench.faults [--out bench/results/faults.json] [--only kill,cut] [--schemes striped,tree]

6 workers in a lab at 100 Mbit/s, 0.4 s of computing a round, in stripes and as a 2x2 tree with a root, under
`codedreduce run --restart`. A fault comes 4 s after the first round, or (early) while processes come up. A round waited
if it took more than 1.5 times the median.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from bench.measure import save
from codedreduce.errors import CodedReduceError
from codedreduce.lab.chaos.chaos_run import ChaosProgress, Outcome, Setup, run
from codedreduce.lab.chaos.schedule import ChaosFault, Kind

RATE = 100e6 / 8

#: What happens for how long, and how long the run goes on in all.
FAULTS: dict[str, tuple[Kind, float, float]] = {
    "kill": ("kill", 1.0, 14.0),
    "stop 5 s": ("stop", 5.0, 16.0),
    "leave (SIGTERM)": ("leave", 3.0, 14.0),
    "MemoryError": ("fail", 1.0, 10.0),
    "connection reset": ("reset", 1.0, 10.0),
    "cable out 5 s": ("cut", 5.0, 18.0),
    "cable out 60 s": ("cut", 60.0, 75.0),
    "cable out for good": ("cut", 1000.0, 25.0),
    "link at 1 % for 8 s": ("slow", 8.0, 20.0),
    "parted from the rest 8 s": ("partition", 8.0, 22.0),
}

#: Nodes by their place.
PLACES = {
    "tree": {"leaf": 6, "inner worker": 2, "root": 0},
    "striped": {"rank": 4, "rank that leads": 0},
}


def one(scheme: str, fault: str, place: str, *, early: bool = False) -> dict[str, Any]:
    """A run with one fault."""
    kind, lasts, seconds = FAULTS[fault]
    node = PLACES[scheme][place]
    row: dict[str, Any] = {"scheme": scheme, "fault": fault, "place": place, "early": early}
    pauses: list[float] = []

    def look(progress: ChaosProgress) -> None:
        pauses[:] = progress.pauses()

    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(
            workers=6, shape="2x2" if scheme == "tree" else None, kind="numpy", rate=RATE, folder=Path(folder),
            lab="faults", early=early,
        )  # fmt: skip
        schedule = [ChaosFault(at=1.0 if early else 4.0, kind=kind, nodes=(node,), seconds=lasts)]
        try:
            outcome = run(setup, schedule, seconds + 8.0 * early, look)
        except CodedReduceError as error:
            return {**row, "error": str(error)[:300]}
    return {**row, **_figures(outcome, pauses)}


def _figures(outcome: Outcome, pauses: list[float]) -> dict[str, Any]:
    return {
        "happened": outcome.survived, "rounds": outcome.rounds, "lost": outcome.rounds_lost,
        "again": outcome.rounds_again, "median": outcome.median_round, "longest": outcome.longest_pause,
        "waited": sum(pause > 1.5 * outcome.median_round for pause in pauses), "same_bits": outcome.same_bits,
        "finished": outcome.finished, "left_processes": outcome.left_processes, "left_files": outcome.left_files,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--schemes", default="striped,tree")
    parser.add_argument("--table", type=Path, help="print what is in this file as a table, and measure nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())["faults"]))
        return
    rows = []
    for scheme in options.schemes.split(","):
        for fault in FAULTS:
            if options.only and not any(word in fault for word in options.only.split(",")):
                continue
            for place in PLACES[scheme]:
                for early in (False, True) if fault in ("kill", "stop 5 s", "cable out 5 s") else (False,):
                    rows.append(row := one(scheme, fault, place, early=early))
                    print(_line(row), flush=True)
                    save(options.out, {"faults": rows}, quietly=True)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as docs/faults.md has them."""
    lines = [
        "| fault | where | rounds that waited | the longest | same bits | left behind |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        where = f"{row['place']}, {row['scheme']}" + (", while processes come up" if row["early"] else "")
        if "error" in row:
            lines.append(f"| {row['fault']} | {where} | the run ended: {row['error']} | | | |")
            continue
        again = f", {row['again']} done again" if row["again"] else ""
        left = row["left_processes"] + row["left_files"] or "nothing"
        same = "yes" if row["same_bits"] and not row["lost"] else "NO"
        longest = f"{row['longest']:.2f} s of {row['median']:.2f}"
        lines.append(f"| {row['fault']} | {where} | {row['waited']}{again} | {longest} | {same} | {left} |")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    what = f"{row['scheme']:8} {row['fault']:26} {row['place']:16} {'early' if row['early'] else '':6}"
    if "error" in row:
        return f"{what} ERROR {row['error']}"
    return (
        f"{what} {row['rounds']:4} rounds of {row['median']:.2f} s, {row['waited']} waited, the longest "
        f"{row['longest']:.2f} s, {row['lost']} lost, {row['again']} again, same bits {row['same_bits']}, left "
        f"{row['left_processes']}"
    )


if __name__ == "__main__":
    main()
