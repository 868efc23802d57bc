"""The one place that makes consoles: text is shown as it is, and only a terminal has a width."""

from __future__ import annotations

import os
import sys
from typing import TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codedreduce.launch.showing import Once

#: Columns of what is no terminal: a line of a file or a pipe is never wrapped.
WIDEST = 1_000_000


def make_console(kind: type[Console] = Console, *, stderr: bool = False, file: TextIO | None = None) -> Console:
    """A console on stdout, stderr or a file. Text may be a user's: `[bold]` and `:x:` are no markup and no emoji."""
    stream = file or (sys.stderr if stderr else sys.stdout)
    width = None if stream.isatty() else WIDEST
    return kind(file=file, stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


class _Lasting:
    """Standard output that may be full, or that nobody may read any more: reported once, and what is begun goes on."""

    def __init__(self) -> None:
        self._report = Once()
        self._stream = sys.stdout  # as it is now: a live display puts a proxy in its place, which prints here
        self.encoding = self._stream.encoding

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Which file it is."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """The same."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Write to nowhere from now on, also what waits in the buffer."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            self._report("nobody reads what is printed any more; the command goes on (Ctrl-C ends it)")
        else:
            self._report(f"cannot print: {error.strerror}; what is printed is lost, and the command goes on")


def make_lasting_console() -> Console:
    """A console for what computes for long: a full disk, or a reader that has ended, costs nothing but the print."""
    return make_console(file=cast(TextIO, _Lasting()))


def print_whole(console: Console, table: Table) -> None:
    """Print a table of which nothing is cut off: with less space between columns in a terminal that is narrow."""
    unbounded = console.options.update(max_width=WIDEST)
    table.collapse_padding = console.measure(table, options=unbounded).maximum > console.width
    table.width = console.measure(table, options=unbounded).maximum
    console.print(table, soft_wrap=True)


def complain(message: str) -> None:
    """Print an error."""
    line = Text.assemble(("codedreduce:", "bold red"), " ", message)
    make_console(stderr=True).print(line, soft_wrap=True)
