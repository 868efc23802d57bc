"""The one place that makes consoles: text is shown as it is, and only a terminal has a width."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

#: Columns of what is no terminal: a line of a file or a pipe is never wrapped.
WIDEST = 1_000_000


def make_console(kind: type[Console] = Console, *, stderr: bool = False, file: TextIO | None = None) -> Console:
    """A console on stdout, stderr or a file. Text may be a user's: `[bold]` and `:x:` are no markup and no emoji."""
    stream = file or (sys.stderr if stderr else sys.stdout)
    width = None if stream.isatty() else WIDEST
    return kind(file=file, stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def complain(message: str) -> None:
    """Print an error."""
    line = Text.assemble(("codedreduce:", "bold red"), " ", message)
    make_console(stderr=True).print(line, soft_wrap=True)
