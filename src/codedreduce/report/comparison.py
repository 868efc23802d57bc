"""Schemes side by side: the table for the terminal, and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from codedreduce.comparison.result import Comparison, Result
from codedreduce.report.page import HtmlTable, Section, write_page
from codedreduce.units import human_bytes, human_seconds

#: What a column says of a result; `ours` is progressive CodedReduce's mean, the speed-up is over it.
CELLS: dict[str, Callable[[Result, float], str]] = {
    "scheme": lambda result, ours: result.scheme.removeprefix("coded-reduce "),
    "mean": lambda result, ours: human_seconds(result.mean),
    "median": lambda result, ours: human_seconds(result.median),
    "p95": lambda result, ours: human_seconds(result.p95),
    "p99": lambda result, ours: human_seconds(result.p99),
    "speed-up": lambda result, ours: "" if np.isnan(ours) else f"{result.mean / ours:.2f}x",
    "work": lambda result, ours: f"{result.work:.2f}x",
    "busiest": lambda result, ours: "" if result.busiest_bytes is None else human_bytes(result.busiest_bytes),
    "loss": lambda result, ours: "" if result.final_loss is None else f"{result.final_loss:.5f}",
    "error": lambda result, ours: "" if np.isnan(result.max_error) else f"{result.max_error:.0e}",
    "bits": lambda result, ours: "same" if result.bit_identical else "vary",
}
SIMULATED = ("scheme", "mean", "median", "p95", "p99", "work", "busiest", "error", "bits")
TRAINED = ("scheme", "mean", "p95", "speed-up", "work", "loss", "error", "bits")


def comparison_table(results: Sequence[Result]) -> Table:
    """One line a scheme: round times, their price, and whether the gradient is right."""
    cells = _cells(results)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column(cells.columns[0], no_wrap=True)
    for column in cells.columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for result, row in zip(results, cells.rows, strict=True):
        fastest = result.mean <= results[cells.best].mean * 1.0001
        table.add_row(*row, style="bold green" if fastest else "")
    return table


def write_comparison(folder: Path, title: str, lead: str, comparison: Comparison) -> Path:
    """Table, bars, loss over time where there are losses, distributions, the timeline of a round, delays."""
    from codedreduce.report.figures import bars, delay_map, distributions, losses_over_time, timelines  # matplotlib

    results = comparison.results
    sections = [
        Section(
            "Round time",
            bars({r.scheme: r.mean for r in results}, {r.scheme: r.p95 for r in results}),
            "Shorter is better. All schemes met the same delays.",
        ),
        Section(
            "Distribution",
            distributions({r.scheme: r.round_seconds for r in results}),
            "How often a round took longer than the time on the axis.",
        ),
        Section(
            f"Round {comparison.shown}",
            timelines(comparison.timelines(), comparison.delays.shape[1]),
            "One line a node, the root on top. White is waiting. An interrupted computation was no longer needed.",
        ),
        Section(
            "Delays",
            delay_map(comparison.delays),
            "How much later than a calm worker each one was, in each round.",
        ),
    ]
    if losses := {r.scheme: (r.round_seconds, r.losses) for r in results if r.losses is not None}:
        caption = "The same model, data and steps: what differs is how long a round takes."
        sections.insert(1, Section("Loss against time", losses_over_time(losses), caption))
    return write_page(folder, title, lead, _cells(results), sections)


def _cells(results: Sequence[Result]) -> HtmlTable:
    """What the table says of each scheme, and which is the fastest."""
    ours = next((result.mean for result in results if result.name == "progressive"), float("nan"))
    columns = SIMULATED if all(result.losses is None for result in results) else TRAINED
    rows = [[CELLS[column](result, ours) for column in columns] for result in results]
    return HtmlTable(columns, rows, best=int(np.argmin([result.mean for result in results])))
