"""Standard output and error as they are written to while processes run: at once, and without a buffer.

What cannot be written is not tried again when the interpreter ends, which would end with another exit code.
"""

from __future__ import annotations

import io
import os
import select
import sys


class Screen(io.TextIOBase):
    """A file of this process's (1 or 2). Writing raises OSError if the disk is full, or nobody reads any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """What text is written in."""
        return "utf-8"

    def fileno(self) -> int:
        """Which file it is."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Write all of it."""
        left = memoryview(text.encode(errors="replace"))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # others share the terminal, and have set it so
                select.select([], [self._descriptor], [])
        return len(text)


def open_what_is_closed() -> None:
    """Have standard input, output and error: a file that is opened later must not be taken for one of them."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
