"""Reports of comparisons: the table for the terminal, and the HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from codedreduce.comparison.result import Comparison, Result
from codedreduce.comparison.selection import ROOTLESS
from codedreduce.report.page import HtmlTable, Section, write_page
from codedreduce.units import human_bytes, human_seconds

#: The columns of the table; `baseline` is the mean round time that the speed-up refers to.
CELLS: dict[str, Callable[[Result, float], str]] = {
    "scheme": lambda result, baseline: result.scheme.removeprefix("coded-reduce "),
    "mean": lambda result, baseline: human_seconds(result.mean),
    "median": lambda result, baseline: human_seconds(result.median),
    "p95": lambda result, baseline: human_seconds(result.p95),
    "p99": lambda result, baseline: human_seconds(result.p99),
    "speed-up": lambda result, baseline: f"{baseline / result.mean:.2f}x",
    "work": lambda result, baseline: f"{result.work:.2f}x",
    "busiest": lambda result, baseline: "" if result.busiest_bytes is None else human_bytes(result.busiest_bytes),
    "loss": lambda result, baseline: "" if result.final_loss is None else f"{result.final_loss:.5f}",
    "error": lambda result, baseline: "" if np.isnan(result.max_error) else f"{result.max_error:.0e}",
    "bits": lambda result, baseline: "same" if result.bit_identical else "vary",
}
SIMULATED = ("scheme", "mean", "median", "p95", "p99", "work", "busiest", "error", "bits")
TRAINED = ("scheme", "mean", "p95", "speed-up", "work", "loss", "error", "bits")

#: The scheme that waits for all workers, which the speed-up refers to.
BASELINE = "master-worker"


def comparison_table(results: Sequence[Result]) -> tuple[Text, Table]:
    """One line per scheme, the fastest first: round times, their cost, and whether the gradient is correct."""
    cells = _cells(results)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column(cells.columns[0], no_wrap=True)
    for column in cells.columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for index, row in enumerate(cells.rows):
        table.add_row(*row, style="bold green" if index == cells.best else "")
    return Text(cells.caption, style="dim"), table


def write_comparison(folder: Path, title: str, lead: str, comparison: Comparison) -> Path:
    """Write table, bars, distributions, the timeline of a round, delays, and loss over time if there are losses."""
    from codedreduce.report.figures import bars, delay_map, distributions, losses_over_time, timelines  # matplotlib

    results = fastest_first(comparison.results)
    spans = comparison.timelines()
    has_root = [result.name not in ROOTLESS for result in results]
    sections = [
        Section(
            "Round time",
            bars({r.scheme: r.mean for r in results}, {r.scheme: r.p95 for r in results}),
            "Shorter is better. All schemes had the same delays.",
        ),
        Section(
            "Distribution",
            distributions({r.scheme: r.round_seconds for r in results}),
            "The fraction of rounds that took longer than the time on the axis.",
        ),
        Section(
            f"Round {comparison.shown}",
            timelines(
                {r.scheme: spans[r.scheme] for r in results},
                {r.scheme: comparison.delays.shape[1] + root for r, root in zip(results, has_root, strict=True)},
            ),
            "One line per rank, from rank 0 at the bottom" + (", which is the root of a tree" if any(has_root) else "")
            + ". White is waiting. The scheme interrupted a computation when it did not need the result any more.",
        ),
        Section(
            "Delays",
            delay_map(comparison.delays, first_rank=1 if all(has_root) else 0, shown=comparison.shown),
            "The delay of each rank in each round, compared with a fault-free rank. The line marks the round above."
            + (" In a tree a rank is one higher than here, as its root is rank 0."
               if any(has_root) and not all(has_root) else ""),
        ),
    ]  # fmt: skip
    if losses := {r.scheme: (r.round_seconds, r.losses) for r in results if r.losses is not None}:
        caption = "Model, data and steps are the same: only the time of a round differs."
        if any(result.name == "live-compensation" for result in results):
            caption += " Live compensation leaves late work out, so its steps differ."
        sections.insert(1, Section("Loss against time", losses_over_time(losses), caption))
    return write_page(folder, title, lead, _cells(results), sections)


def fastest_first(results: Sequence[Result]) -> list[Result]:
    """Sort results by the mean time of a round."""
    return sorted(results, key=lambda result: result.mean)


def _cells(results: Sequence[Result]) -> HtmlTable:
    """The cells of the table, the fastest scheme first."""
    results = fastest_first(results)
    baseline = next((result for result in results if result.name == BASELINE), results[-1])
    columns: Sequence[str] = SIMULATED
    caption = "fastest first"
    if any(result.losses is not None for result in results):
        why = "which waits for all" if baseline.name == BASELINE else "the slowest"
        columns, caption = TRAINED, f"fastest first; speed-up over {baseline.scheme}, {why}"
    rows = [[CELLS[column](result, baseline.mean) for column in columns] for result in results]
    return HtmlTable(columns, rows, best=0, caption=caption)
