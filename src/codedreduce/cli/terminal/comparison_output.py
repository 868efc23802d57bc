"""The output of `race` and `simulate`: a table, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from codedreduce.cli.terminal.console import print_whole
from codedreduce.cli.terminal.output_files import write_json
from codedreduce.comparison.result import Comparison
from codedreduce.report.comparison import comparison_table, write_comparison


def show_comparison(
    comparison: Comparison, labels: Sequence[str], console: Console, *, title: str, lead: str, report: Path | None,
    json: Path | None, conditions: object, seed: int,
) -> None:  # fmt: skip
    """Print the table and write the files for the finished schemes; then raise the error that stopped the others."""
    finished = len(comparison.runs)
    if finished:
        caption, table = comparison_table(comparison.results)
        console.print(caption)
        print_whole(console, table)
        try:
            if json is not None:
                write_json(json, {"conditions": conditions, "seed": seed, "results": comparison.results})
                console.print(f"wrote {json}")
        finally:  # write the report even if the JSON file cannot be written
            if report is not None:
                console.print(f"wrote {write_comparison(report, title, lead, comparison)}")
    if comparison.stopped_by is not None and finished < len(labels):
        stopped = "interrupted" if isinstance(comparison.stopped_by, KeyboardInterrupt) else "stopped"
        console.print(f"{stopped} in {labels[finished]}: {finished} of {len(labels)} schemes are finished")
    if comparison.stopped_by is not None:
        raise comparison.stopped_by
