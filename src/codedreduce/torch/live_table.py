"""A live table of the latest rounds, in a notebook's cell or on a terminal; elsewhere there is none."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from codedreduce.process.telling import STEPS, What, Word, own_rank, tell
from codedreduce.torch.rounds.step import Step

#: The number of rounds in the table, and the fewest seconds between two reports: no reader is faster.
ROWS = 8
TOLD_EVERY = 0.1

#: The columns of the table.
HEADS = ("round", "loss", "seconds", "late ranks", "saved so far")


class TellsSteps:
    """Reports steps to the launcher, if it requests that: some steps, and always the last."""

    def __init__(self) -> None:
        self._wants = os.environ.get(STEPS) == "1"
        self._last = float("-inf")
        self._untold: Step | None = None

    def over(self, step: Step, *, leads: bool) -> None:
        """Report a step, if this rank is the leader and the last report is not too recent."""
        if not self._wants or not leads:
            return
        self._untold = step
        if time.monotonic() > self._last + TOLD_EVERY:
            self.rest()

    def rest(self) -> None:
        """Report the latest step, if it was not reported yet."""
        step, self._untold = self._untold, None
        if step is not None:
            self._last = time.monotonic()
            said = {"round": step.round, "loss": float(step.loss), "seconds": step.seconds, "saved": step.saved}
            tell(Word(own_rank(), What.STEPS, step={**said, "late": list(step.late)}))


class Watch:
    """Receives reports of steps, and calls `draw` to show the latest: nowhere, unless it is given."""

    def __init__(self, draw: Callable[[Watch], None] = lambda watch: None) -> None:
        self._draw = draw
        self._rows: deque[dict[str, Any]] = deque(maxlen=ROWS)

    def hear(self, word: Word) -> None:
        """Take reports of steps from a process's messages."""
        if word.what is What.STEPS:
            self._rows.append(dict(word.step))
            self._draw(self)

    def write(self, text: str) -> None:
        """Show the output of a process."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, rank: int, line: str) -> None:
        """Show a line of a rank's output."""
        self.write(f"[{rank}] {line}\n")

    def rows(self) -> list[tuple[str, ...]]:
        """Return the latest rounds as text, in the columns of `HEADS`."""
        return [
            (
                f"{row['round']:.0f}", f"{row['loss']:.4f}", f"{row['seconds']:.3f}",
                ", ".join(str(rank) for rank in row.get("late", [])) or "-", f"{row['saved']:.1f} s",
            )
            for row in self._rows
        ]  # fmt: skip

    def table(self) -> Table:
        """Return the table for a terminal."""
        table = Table(*HEADS)
        for column in table.columns:
            column.justify = "right"
        for row in self.rows():
            table.add_row(*row)
        return table


class InNotebook:
    """Shows the table below the cell, and updates it in place."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def __call__(self, watch: Watch) -> None:
        """Show an HTML table, which has aligned columns in any font, with plain text as a fallback."""
        console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False, force_terminal=False)
        console.print(watch.table())
        shown = {"text/html": _html(watch.rows()), "text/plain": console.export_text()}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _html(rows: list[tuple[str, ...]]) -> str:
    """Return the table as HTML, with rounds that had late ranks in bold."""
    heads = "".join(f'<th style="text-align:right">{head}</th>' for head in HEADS)
    lines = [f"<tr>{heads}</tr>"]
    for row in rows:
        weight = "bold" if row[HEADS.index("late ranks")] != "-" else "normal"
        cells = "".join(f'<td style="text-align:right;font-weight:{weight}">{cell}</td>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    numerals = "font-variant-numeric:tabular-nums"
    return f'<table style="margin-left:0;{numerals}">' + "".join(lines) + "</table>"


@contextlib.contextmanager
def watching(live: bool) -> Iterator[Watch]:
    """Yield the live table for this environment: a notebook, a terminal, or none."""
    display = _notebooks_display() if live else None
    console = Console()
    if display is not None:
        yield Watch(InNotebook(display))
    elif live and console.is_terminal:
        with Live(console=console, refresh_per_second=10) as shown:  # at the foot, below the output of processes
            yield Watch(lambda watch: shown.update(watch.table()))
    else:
        yield Watch()


def _notebooks_display() -> Any:
    """Return the display function of the notebook, if this is one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # imported only if IPython is loaded already

    return display
