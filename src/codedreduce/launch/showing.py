"""What is shown of what the processes of a run print: that of rank 0 as it comes, or everybody's lines with their rank.

Notes of the launcher's own are shown in any case. Where only rank 0 is seen, what others have printed last is kept, and
shown if they fail; and all of it from the moment that rank 0 is lost, since another leads then.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from codedreduce.errors import UsageError

#: Shows a line of a rank's; shows a text, as it is.
Say = Callable[[int, str], None]
Write = Callable[[str], object]

#: Bytes of each other rank that are kept, where only rank 0 is seen.
KEPT = 8192


class Show(Protocol):
    """Whoever shows it."""

    def took(self, rank: int, data: bytes) -> None:
        """A process has printed this."""

    def ended(self, rank: int) -> None:
        """It prints no more."""

    def note(self, rank: int, line: str) -> None:
        """The launcher has something to say of a process."""

    def last_words(self, rank: int) -> None:
        """This process has failed: show what it said last, if it has not been shown."""

    def lost_first(self) -> None:
        """Rank 0 is gone, and the run goes on without it."""

    def close(self) -> None:
        """It is over."""


class EveryLine:
    """Everybody's lines, with their rank ahead of them."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun: dict[int, bytes] = {}  # lines without an end

    def took(self, rank: int, data: bytes) -> None:
        """Show the lines that are whole."""
        *lines, self._begun[rank] = (self._begun.get(rank, b"") + data).split(b"\n")
        for line in lines:
            self._say(rank, line.decode(errors="replace"))

    def ended(self, rank: int) -> None:
        """Show what had no end."""
        if rest := self._begun.pop(rank, b""):
            self._say(rank, rest.decode(errors="replace"))

    def note(self, rank: int, line: str) -> None:
        """Show it like a line of the process's own."""
        self._say(rank, line)

    def last_words(self, rank: int) -> None:
        """They have been shown."""

    def lost_first(self) -> None:
        """All are shown already."""

    def close(self) -> None:
        """Nothing is left to show."""


class OnlyFirst:
    """What rank 0 prints, as it comes, so that a progress bar stays one."""

    def __init__(self, write: Write, say: Say) -> None:
        self._write = write
        self._lines = EveryLine(say)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_in_line = False
        self._kept: dict[int, bytes] = {}
        self._shows_all = False

    def took(self, rank: int, data: bytes) -> None:
        """Show it if it is rank 0's, else remember the last of it."""
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
        """Show what had no end, of those that are shown."""
        self._lines.ended(rank)

    def note(self, rank: int, line: str) -> None:
        """Show it on a line of its own."""
        self._end_line()
        self._lines.note(rank, line)

    def last_words(self, rank: int) -> None:
        """Show what is remembered of it."""
        said = self._kept.pop(rank, b"")
        if said:
            self._end_line()
            self._lines.took(rank, said.partition(b"\n")[2] if len(said) == KEPT else said)
            self._lines.ended(rank)

    def lost_first(self) -> None:
        """Whoever leads now may be any."""
        self._end_line()
        self._shows_all = True

    def close(self) -> None:
        """Leave the screen at the begin of a line."""
        self._end_line()

    def _end_line(self) -> None:
        if self._is_in_line:
            self._write("\n")
            self._is_in_line = False


class AlsoInFiles:
    """A file for each process, in a folder, beside what else is shown."""

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
        """Write it down; whoever reads the file sees it at once. A file that cannot be written to is tried again."""
        path = self._folder / f"rank-{rank}.log"
        try:
            with path.open("ab" if rank in self._begun else "wb") as file:
                self._begun.add(rank)
                file.write(data)
        except OSError as error:
            self._report(f"cannot write {path}: {error.strerror}; what does not fit is lost, and the run goes on")
        self._beside.took(rank, data)

    def ended(self, rank: int) -> None:
        """The same."""
        self._beside.ended(rank)

    def note(self, rank: int, line: str) -> None:
        """Notes are shown."""
        self._beside.note(rank, line)

    def last_words(self, rank: int) -> None:
        """The same."""
        self._beside.last_words(rank)

    def lost_first(self) -> None:
        """The others' are in their files; they are shown, too."""
        self._beside.lost_first()

    def close(self) -> None:
        """The same."""
        self._beside.close()


class Once:
    """Says something on standard error, the first time; also where that is as full as the rest."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, text: str) -> None:
        """Say it, unless something has been said."""
        if not self._is_said:
            self._is_said = True
            with contextlib.suppress(OSError):
                os.write(2, f"codedreduce: {text}\n".encode())


class Unfailing:
    """Shows what can be shown: a full disk, or a reader that has ended, is reported once, and ends no run."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._report = Once()

    @contextlib.contextmanager
    def _as_far_as_possible(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._report("nobody reads what the processes print any more; the run goes on (Ctrl-C ends it)")
        except OSError as error:
            self._report(f"cannot show what the processes print: {error.strerror}; it is lost, and the run goes on")

    def took(self, rank: int, data: bytes) -> None:
        """A process has printed this."""
        with self._as_far_as_possible():
            self._show.took(rank, data)

    def ended(self, rank: int) -> None:
        """It prints no more."""
        with self._as_far_as_possible():
            self._show.ended(rank)

    def note(self, rank: int, line: str) -> None:
        """The launcher has something to say of a process."""
        with self._as_far_as_possible():
            self._show.note(rank, line)

    def last_words(self, rank: int) -> None:
        """This process has failed: show what it said last."""
        with self._as_far_as_possible():
            self._show.last_words(rank)

    def lost_first(self) -> None:
        """Rank 0 is gone."""
        with self._as_far_as_possible():
            self._show.lost_first()

    def close(self) -> None:
        """It is over."""
        with self._as_far_as_possible():
            self._show.close()
