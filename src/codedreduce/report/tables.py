"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from codedreduce.worlds.simulated.compare import Result


def results_table(results: Sequence[Result]) -> Table:
    """One line a scheme: round times, the price in work and bytes, and whether the gradient is right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("scheme", no_wrap=True)
    for column in ("mean", "median", "p95", "p99", "work", "busiest", "error", "bits"):
        table.add_column(column, justify="right", no_wrap=True)
    fastest = min(result.mean for result in results)
    for result in results:
        style = "bold green" if result.mean <= fastest * 1.0001 else ""
        table.add_row(
            result.scheme.removeprefix("coded-reduce "),
            *(human_seconds(value) for value in (result.mean, result.median, result.p95, result.p99)),
            f"{result.work:.2f}x",
            human_bytes(result.busiest_bytes or 0),
            f"{result.max_error:.0e}",
            "same" if result.bit_identical else "vary",
            style=style,
        )
    return table


def human_seconds(value: float) -> str:
    """Seconds with a fitting unit.

    >>> human_seconds(0.0123), human_seconds(2.5)
    ('12.3ms', '2.50s')
    """
    if value >= 1:
        return f"{value:.2f}s"
    return f"{1000 * value:.3g}ms"


def human_bytes(value: float) -> str:
    """Bytes with a fitting unit.

    >>> human_bytes(23_200), human_bytes(5_000_000)
    ('23.2kB', '5MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.3g}{unit}"
        value /= 1000
    raise AssertionError("unreachable")
