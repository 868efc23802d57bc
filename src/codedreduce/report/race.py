"""The report of a race, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from codedreduce.report.figures import bars, delay_map, distributions, losses_over_time, timelines
from codedreduce.report.page import HtmlTable, Section, write_page
from codedreduce.report.tables import human_seconds
from codedreduce.training.loop import Job, TrainingResult
from codedreduce.training.race import RaceResult, injected_delays, intervals_of, shown_round

COLUMNS = ("scheme", "mean", "p95", "speed-up", "work", "loss", "error", "bits")


def rows_of(results: Sequence[RaceResult]) -> list[tuple[str, ...]]:
    """What the table says of each scheme; the speed-up is progressive CodedReduce's over it."""
    ours = next((result.mean for result in results if result.name == "progressive"), None)
    return [
        (
            result.scheme.removeprefix("coded-reduce "),
            human_seconds(result.mean),
            human_seconds(result.p95),
            f"{result.mean / ours:.2f}x" if ours else "",
            f"{result.work:.2f}x",
            f"{result.final_loss:.5f}",
            "" if np.isnan(result.max_error) else f"{result.max_error:.0e}",
            "same" if result.bit_identical else "vary",
        )
        for result in results
    ]


def race_table(results: Sequence[RaceResult]) -> Table:
    """One line a scheme."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column(COLUMNS[0], no_wrap=True)
    for column in COLUMNS[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    fastest = min(result.mean for result in results)
    for result, row in zip(results, rows_of(results), strict=True):
        table.add_row(*row, style="bold green" if result.mean == fastest else "")
    return table


def write_race_report(folder: Path, job: Job, runs: Sequence[tuple[RaceResult, TrainingResult]], lead: str) -> Path:
    """Table, bars, distributions, loss over time, the timeline of a round, delays."""
    results = [result for result, _ in runs]
    rounds = min(len(outcome.history) for _, outcome in runs)
    delays = injected_delays(job, rounds)
    shown = shown_round(delays)
    sections = [
        Section(
            "Round time",
            bars({r.scheme: r.mean for r in results}, {r.scheme: r.p95 for r in results}),
            "Shorter is better. Real processes; all schemes met the same delays.",
        ),
        Section(
            "Loss against time",
            losses_over_time({r.scheme: (r.round_seconds, r.losses) for r in results}),
            "The same model, data and steps: what differs is how long a round takes.",
        ),
        Section(
            "Distribution",
            distributions({r.scheme: r.round_seconds for r in results}),
            "How often a round took longer than the time on the axis.",
        ),
        Section(
            f"Round {shown}",
            timelines({r.scheme: intervals_of(o.activities, shown) for r, o in runs}, job.scheme.workers),
            "One line a worker. White is waiting. An interrupted computation was no longer needed.",
        ),
        Section("Delays", delay_map(delays), "How late each worker was made, in each round."),
    ]
    best = int(np.argmin([r.mean for r in results]))
    return write_page(folder, "Race", lead, HtmlTable(COLUMNS, rows_of(results), best), sections)
