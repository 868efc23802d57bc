"""Unbuffered standard output and error, for use while processes run.

Without a buffer the interpreter does not retry a failed write at its exit, which would change the exit code.
"""

from __future__ import annotations

import io
import os
import select
import sys


class Screen(io.TextIOBase):
    """Standard output (1) or error (2). Writing raises OSError if the disk is full or the pipe is closed."""

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
