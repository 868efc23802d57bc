"""How the output of a run is shown: the output of rank 0 as it arrives, or the lines of all ranks with their rank.

Notes of the launcher itself are always shown. If only rank 0 is shown, the last output of each other rank is kept, and
shown if that rank fails. Once rank 0 is lost, the output of all ranks is shown, since another rank leads.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from codedreduce.errors import UsageError

#: Shows a line of a rank; shows a text unchanged.
Say = Callable[[int, str], None]
Write = Callable[[str], object]

#: Bytes that are kept of each other rank if only rank 0 is shown.
KEPT = 8192


class Show(Protocol):
    """Shows the output of a run."""

    def took(self, rank: int, data: bytes) -> None:
        """A process has printed `data`."""

    def ended(self, rank: int) -> None:
        """The output of this process has ended."""

    def note(self, rank: int, line: str) -> None:
        """Show a note of the launcher about a process."""

    def last_words(self, rank: int) -> None:
        """This process has failed: show its last output, if it was not shown yet."""

    def lost_first(self) -> None:
        """Rank 0 has failed, and the run continues without it."""

    def close(self) -> None:
        """The run is over."""


class EveryLine:
    """Shows the lines of all ranks, each with its rank in front."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun: dict[int, bytes] = {}  # incomplete lines

    def took(self, rank: int, data: bytes) -> None:
        """Show the complete lines."""
        *lines, self._begun[rank] = (self._begun.get(rank, b"") + data).split(b"\n")
        for line in lines:
            self._say(rank, line.decode(errors="replace"))

    def ended(self, rank: int) -> None:
        """Show an incomplete last line."""
        if rest := self._begun.pop(rank, b""):
            self._say(rank, rest.decode(errors="replace"))

    def note(self, rank: int, line: str) -> None:
        """Show it like a line of the process itself."""
        self._say(rank, line)

    def last_words(self, rank: int) -> None:
        """Nothing to do: all output was shown."""

    def lost_first(self) -> None:
        """Nothing to do: all ranks are shown."""

    def close(self) -> None:
        """Nothing is left to show."""


class OnlyFirst:
    """Shows the output of rank 0 unchanged as it arrives, so that progress bars work."""

    def __init__(self, write: Write, say: Say) -> None:
        self._write = write
        self._lines = EveryLine(say)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_in_line = False
        self._kept: dict[int, bytes] = {}
        self._shows_all = False

    def took(self, rank: int, data: bytes) -> None:
        """Show the output of rank 0; keep the last output of other ranks."""
        if rank == 0:
            text = self._decoder.decode(data)
            if text:
                self._write(text)
                self._is_in_line = not text.endswith("\n")
        elif self._shows_all:
            self._lines.took(rank, data)
        else:
            self._kept[rank] = (self._kept.get(rank, b"") + data)[-KEPT:]

    def ended(self, rank: int) -> None:
        """Show an incomplete last line of a rank that is shown."""
        self._lines.ended(rank)

    def note(self, rank: int, line: str) -> None:
        """Show the note on its own line."""
        self._end_line()
        self._lines.note(rank, line)

    def last_words(self, rank: int) -> None:
        """Show the output that was kept of this rank."""
        said = self._kept.pop(rank, b"")
        if said:
            self._end_line()
            self._lines.took(rank, said.partition(b"\n")[2] if len(said) == KEPT else said)
            self._lines.ended(rank)

    def lost_first(self) -> None:
        """Show all ranks: any of them may lead now."""
        self._end_line()
        self._shows_all = True

    def close(self) -> None:
        """Leave the cursor at the start of a line."""
        self._end_line()

    def _end_line(self) -> None:
        if self._is_in_line:
            self._write("\n")
            self._is_in_line = False


class AlsoInFiles:
    """Writes a file for each process into a folder, and passes all on to another `Show`."""

    def __init__(self, folder: str, beside: Show) -> None:
        self._folder = Path(folder)
        self._beside = beside
        self._report = Once()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write to {folder!r}: {error.strerror}") from None
        self._begun: set[int] = set()

    def took(self, rank: int, data: bytes) -> None:
        """Append to the file at once, so that readers see it. After an error the next output tries again."""
        path = self._folder / f"rank-{rank}.log"
        try:
            with path.open("ab" if rank in self._begun else "wb") as file:
                self._begun.add(rank)
                file.write(data)
        except OSError as error:
            self._report(f"cannot write {path}: {error.strerror}; what does not fit is lost, and the run goes on")
        self._beside.took(rank, data)

    def ended(self, rank: int) -> None:
        """Pass it on."""
        self._beside.ended(rank)

    def note(self, rank: int, line: str) -> None:
        """Pass it on: notes do not go to files."""
        self._beside.note(rank, line)

    def last_words(self, rank: int) -> None:
        """Pass it on."""
        self._beside.last_words(rank)

    def lost_first(self) -> None:
        """Pass it on: the output of other ranks is shown as well as written to files."""
        self._beside.lost_first()

    def close(self) -> None:
        """Pass it on."""
        self._beside.close()


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


class Unfailing:
    """Shows what it can: a full disk, or a reader that has ended, is reported once, and does not end the run."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._report = Once()

    @contextlib.contextmanager
    def _as_far_as_possible(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._report("the reader of the processes' output has ended; the run goes on (Ctrl-C ends it)")
        except OSError as error:
            self._report(f"cannot show the output of the processes: {error.strerror}; it is lost, and the run goes on")

    def took(self, rank: int, data: bytes) -> None:
        """A process has printed `data`."""
        with self._as_far_as_possible():
            self._show.took(rank, data)

    def ended(self, rank: int) -> None:
        """The output of this process has ended."""
        with self._as_far_as_possible():
            self._show.ended(rank)

    def note(self, rank: int, line: str) -> None:
        """Show a note of the launcher about a process."""
        with self._as_far_as_possible():
            self._show.note(rank, line)

    def last_words(self, rank: int) -> None:
        """This process has failed: show its last output."""
        with self._as_far_as_possible():
            self._show.last_words(rank)

    def lost_first(self) -> None:
        """Rank 0 has failed."""
        with self._as_far_as_possible():
            self._show.lost_first()

    def close(self) -> None:
        """The run is over."""
        with self._as_far_as_possible():
            self._show.close()
