"""Standard output and error. All consoles are made here: they show text unchanged, and only a terminal has a width."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codedreduce.launch.showing import Once

#: Columns of a file or pipe, so that its lines are never wrapped.
WIDEST = 1_000_000


def make_console(kind: type[Console] = Console, *, stderr: bool = False, file: TextIO | None = None) -> Console:
    """A console on stdout, stderr or a file. Text may come from a user: `[bold]` and `:x:` stay as they are."""
    stream = file or (sys.stderr if stderr else sys.stdout)
    width = None if stream.isatty() else WIDEST
    return kind(file=file, stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


class _Lasting:
    """Standard output that reports the first write error (full disk, closed pipe) and lets the command continue."""

    def __init__(self) -> None:
        self._report = Once()
        self._stream = sys.stdout  # the current one: a live display replaces sys.stdout by a proxy that prints here
        self.encoding = self._stream.encoding

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The file descriptor."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write the text; after an error, discard it."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; after an error, discard its buffer."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Redirect the stream to /dev/null, with the text still in its buffer."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            self._report("the reader of standard output has closed it; the command continues (Ctrl-C ends it)")
        else:
            self._report(f"cannot print: {error.strerror}; the command continues without output")


def make_lasting_console() -> Console:
    """A console for long computations: a full disk or a closed pipe loses only the output."""
    return make_console(file=cast(TextIO, _Lasting()))


def print_whole(console: Console, table: Table) -> None:
    """Print a table without cutting anything off, with less space between columns in a narrow terminal."""
    unbounded = console.options.update(max_width=WIDEST)
    table.collapse_padding = console.measure(table, options=unbounded).maximum > console.width
    table.width = console.measure(table, options=unbounded).maximum
    console.print(table, soft_wrap=True)


def complain(message: str) -> None:
    """Print an error."""
    line = Text.assemble(("codedreduce:", "bold red"), " ", message)
    make_console(stderr=True).print(line, soft_wrap=True)


class Screen(io.TextIOBase):
    """Unbuffered standard output (1) or error (2). Writing raises OSError if the disk is full or the pipe is closed.

    Without a buffer the interpreter does not retry a failed write at its exit, which would change the exit code.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the text."""
        return "utf-8"

    def fileno(self) -> int:
        """The file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Write all of it."""
        left = memoryview(text.encode(errors="replace"))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process made the shared terminal non-blocking
                select.select([], [self._descriptor], [])
        return len(text)


def open_what_is_closed() -> None:
    """Open missing standard streams, so that no file opened later gets the descriptor 0, 1 or 2."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
