"""A table of the latest rounds, while they are: in a notebook's cell, or on a terminal; elsewhere there is none."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from codedreduce.process.telling import STEPS, What, Word, own_rank, tell

#: Rounds that are seen; seconds between two that are told, at least: nobody reads faster.
ROWS = 8
TOLD_EVERY = 0.1

#: What is shown of a round.
HEADS = ("round", "loss", "seconds", "late ranks", "saved so far")


class StepLike(Protocol):
    """What is told of a step (`cluster.Step`)."""

    @property
    def round(self) -> int:
        """Counted from 1."""

    @property
    def loss(self) -> float:
        """Over its batch."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def late(self) -> tuple[int, ...]:
        """Whose work others did."""

    @property
    def saved(self) -> float:
        """Seconds, so far."""


class TellsSteps:
    """Tells the launcher of steps, if it wants to know: now and then, and of the last."""

    def __init__(self) -> None:
        self._wants = os.environ.get(STEPS) == "1"
        self._last = float("-inf")
        self._untold: StepLike | None = None

    def over(self, step: StepLike, *, leads: bool) -> None:
        """A step is there."""
        if not self._wants or not leads:
            return
        self._untold = step
        if time.monotonic() > self._last + TOLD_EVERY:
            self.rest()

    def rest(self) -> None:
        """Tell what was not told."""
        step, self._untold = self._untold, None
        if step is not None:
            self._last = time.monotonic()
            said = {"round": step.round, "loss": float(step.loss), "seconds": step.seconds, "saved": step.saved}
            tell(Word(own_rank(), What.STEPS, step={**said, "late": list(step.late)}))


class Watch:
    """Hears of steps, and shows the latest."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=ROWS)

    def hear(self, word: Word) -> None:
        """Of what a process tells, take the steps."""
        if word.what is What.STEPS:
            self._rows.append(dict(word.step))
            self.draw()

    def draw(self) -> None:
        """Show the table as it is now: nowhere, if there is no place for it."""

    def write(self, text: str) -> None:
        """Show what a process printed."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, rank: int, line: str) -> None:
        """Show a line of a rank's."""
        self.write(f"[{rank}] {line}\n")

    def rows(self) -> list[tuple[str, ...]]:
        """The latest rounds, in words: what `HEADS` says of each."""
        return [
            (
                f"{row['round']:.0f}", f"{row['loss']:.4f}", f"{row['seconds']:.3f}",
                ", ".join(str(rank) for rank in row.get("late", [])) or "-", f"{row['saved']:.1f} s",
            )
            for row in self._rows
        ]  # fmt: skip

    def table(self) -> Table:
        """The same for a terminal."""
        table = Table(*HEADS)
        for column in table.columns:
            column.justify = "right"
        for row in self.rows():
            table.add_row(*row)
        return table


class InNotebook(Watch):
    """Below the cell, drawn anew in its place."""

    def __init__(self, display: Any) -> None:
        super().__init__()
        self._display = display
        self._handle: Any = None

    def draw(self) -> None:
        """As a table of a browser's, whose columns hold in any font; and as text, where there is none."""
        console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False, force_terminal=False)
        console.print(self.table())
        shown = {"text/html": _html(self.rows()), "text/plain": console.export_text()}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _html(rows: list[tuple[str, ...]]) -> str:
    """Rounds in which somebody was late stand out."""
    heads = "".join(f'<th style="text-align:right">{head}</th>' for head in HEADS)
    lines = [f"<tr>{heads}</tr>"]
    for row in rows:
        weight = "bold" if row[HEADS.index("late ranks")] != "-" else "normal"
        cells = "".join(f'<td style="text-align:right;font-weight:{weight}">{cell}</td>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    numerals = "font-variant-numeric:tabular-nums"
    return f'<table style="margin-left:0;{numerals}">' + "".join(lines) + "</table>"


class OnTerminal(Watch):
    """At the foot of the terminal; what processes print goes by above it."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live

    def draw(self) -> None:
        """Anew, in its place."""
        self._live.update(self.table())


@contextlib.contextmanager
def watching(live: bool) -> Iterator[Watch]:
    """Somebody who looks on, wherever this is."""
    display = _notebooks_display() if live else None
    console = Console()
    if display is not None:
        yield InNotebook(display)
    elif live and console.is_terminal:
        with Live(console=console, refresh_per_second=10) as shown:
            yield OnTerminal(shown)
    else:
        yield Watch()


def _notebooks_display() -> Any:
    """How a notebook shows things, if this is one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # only where it is loaded already

    return display
