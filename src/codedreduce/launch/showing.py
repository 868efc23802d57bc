"""The output of the processes of a run: that of rank 0 as it arrives, or the lines of all ranks with their rank.

Notes of the launcher itself are always shown. If only rank 0 is shown, the last output of each other rank is kept, and
shown if that rank fails. Once rank 0 is lost, the output of all ranks is shown, since another rank leads.

A full disk, or a reader that has ended, is reported once, and does not end the run.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
from collections.abc import Callable
from pathlib import Path
from typing import IO

from codedreduce.errors import UsageError

#: Shows a line of a rank; shows a text unchanged.
Say = Callable[[int, str], None]
Write = Callable[[str], object]

#: Bytes that are kept of each other rank if only rank 0 is shown.
KEPT = 8192


class Once:
    """Reports the first problem on standard error; ignores it if standard error cannot be written to."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, text: str) -> None:
        """Report it, unless something was reported before."""
        if not self._is_said:
            self._is_said = True
            with contextlib.suppress(OSError):
                os.write(2, f"codedreduce: {text}\n".encode())


class Show:
    """Shows the lines of all ranks, each with its rank in front."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun: dict[int, bytes] = {}  # incomplete lines
        self._report = Once()

    def _try(self, show: Callable[[], object]) -> None:
        """Call a function that shows something; report an error instead of raising it."""
        try:
            show()
        except BrokenPipeError:
            self._report("the reader of the processes' output has ended; the run goes on (Ctrl-C ends it)")
        except OSError as error:
            self._report(f"cannot show the output of the processes: {error.strerror}; it is lost, and the run goes on")

    def took(self, rank: int, data: bytes) -> None:
        """A process has printed `data`: show the complete lines."""
        *lines, self._begun[rank] = (self._begun.get(rank, b"") + data).split(b"\n")
        for line in lines:
            self._line(rank, line)

    def ended(self, rank: int) -> None:
        """The output of this process has ended: show an incomplete last line."""
        if rest := self._begun.pop(rank, b""):
            self._line(rank, rest)

    def _line(self, rank: int, line: bytes) -> None:
        self._try(lambda: self._say(rank, line.decode(errors="replace")))

    def note(self, rank: int, line: str) -> None:
        """Show a note of the launcher about a process."""
        self._try(lambda: self._say(rank, line))

    def last_words(self, rank: int) -> None:
        """This process has failed: show its last output, if it was not shown yet."""

    def lost_first(self) -> None:
        """Rank 0 has failed, and the run continues without it."""

    def close(self) -> None:
        """The run is over."""


class OnlyFirst(Show):
    """Shows the output of rank 0 unchanged as it arrives, so that progress bars work."""

    def __init__(self, write: Write, say: Say) -> None:
        super().__init__(say)
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_in_line = False
        self._kept: dict[int, bytes] = {}
        self._shows_all = False

    def took(self, rank: int, data: bytes) -> None:
        """Show the output of rank 0; keep the last output of other ranks."""
        if rank == 0:
            text = self._decoder.decode(data)
            if text:
                self._try(lambda: self._write(text))
                self._is_in_line = not text.endswith("\n")
        elif self._shows_all:
            super().took(rank, data)
        else:
            self._kept[rank] = (self._kept.get(rank, b"") + data)[-KEPT:]

    def note(self, rank: int, line: str) -> None:
        """Show it on its own line."""
        self.close()
        super().note(rank, line)

    def last_words(self, rank: int) -> None:
        """Show the output that was kept of this rank."""
        if said := self._kept.pop(rank, b""):
            self.close()
            super().took(rank, said.partition(b"\n")[2] if len(said) == KEPT else said)
            self.ended(rank)

    def lost_first(self) -> None:
        """Show all ranks: any of them may lead now."""
        self.close()
        self._shows_all = True

    def close(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._is_in_line:
            self._try(lambda: self._write("\n"))
            self._is_in_line = False


class AlsoInFiles(OnlyFirst):
    """Writes a file for each process into a folder, too. Notes do not go to files."""

    def __init__(self, folder: str, write: Write, say: Say) -> None:
        super().__init__(write, say)
        self._folder = Path(folder)
        self._report_of_files = Once()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write to {folder!r}: {error.strerror}") from None
        self._written: set[int] = set()

    def took(self, rank: int, data: bytes) -> None:
        """Append to the file at once, so that readers see it. After an error the next output tries again."""
        path = self._folder / f"rank-{rank}.log"
        try:
            with path.open("ab" if rank in self._written else "wb") as file:
                self._written.add(rank)
                file.write(data)
        except OSError as error:
            self._report_of_files(
                f"cannot write {path}: {error.strerror}; what does not fit is lost, and the run goes on"
            )
        super().took(rank, data)


class Output:
    """Reads the pipes of all processes."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self._selector = selectors.DefaultSelector()
        self._printed: dict[int, IO[bytes]] = {}

    def add(self, rank: int, printed: IO[bytes]) -> None:
        """Read the output of a process; the output of an earlier process of this rank is read to its end first."""
        if rank in self._printed:
            self._read(rank)
            self._forget(rank)
        os.set_blocking(printed.fileno(), False)
        self._selector.register(printed, selectors.EVENT_READ, rank)
        self._printed[rank] = printed

    def pass_on(self, timeout: float) -> None:
        """Pass on the output that arrives within `timeout` seconds."""
        for key, _ in self._selector.select(timeout=timeout):
            self._read(key.data)

    def pass_on_rest(self) -> None:
        """Pass on all output that has arrived."""
        for rank in list(self._printed):
            self._read(rank)

    def close(self) -> None:
        """Close all pipes."""
        for rank in list(self._printed):
            self._forget(rank)
        self._selector.close()
        self.show.close()

    def _forget(self, rank: int) -> None:
        """Close the pipe of a process, though its own children may still print to it."""
        printed = self._printed.pop(rank)
        if printed in self._selector.get_map():
            self._selector.unregister(printed)
            self.show.ended(rank)
        printed.close()

    def _read(self, rank: int) -> None:
        printed = self._printed[rank]
        if printed not in self._selector.get_map():
            return
        data = printed.read()
        if data:
            self.show.took(rank, data)
        elif data == b"":  # the process has ended, or has closed its output
            self._selector.unregister(printed)
            self.show.ended(rank)
