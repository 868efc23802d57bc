"""Reports of a process to its launcher, apart from its output: that it joins, leaves on purpose, or why it ends.

Each is a line of JSON in a pipe that all processes of a launcher write to. Lines are shorter than an atomic write to a
pipe, so those of two processes do not mix.
"""

from __future__ import annotations

import contextlib
import os
import re
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

#: Variable with the file descriptor of the pipe.
PIPE = "CODEDREDUCE_TELLS"

#: Variable that enables reports of steps, for a display.
STEPS = "CODEDREDUCE_TELLS_STEPS"

#: Limit on the bytes of a text, so that its line fits an atomic write; a character may need several bytes.
MOST = 3000


class What(StrEnum):
    """The kinds of reports."""

    JOINS = "joins"  # the script joins the run
    TRAINS = "trains"  # it has reached a training
    ADMITTED = "admitted"  # to that training, as a member
    ENDS = "ends"  # it leaves that training without an error: after which round, and whether it led
    FAILS = "fails"  # it leaves that training with an error: in which round
    LEAVES = "leaves"  # it leaves on purpose, and the run continues
    ERRS = "errs"  # it ends with an error that needs no traceback
    STEPS = "steps"  # a round is over


class Word(msgspec.Struct, frozen=True):
    """A report of a rank; for an error its text, place in the script, and whether the user can correct it.

    `about` is the rank that the error is about. `step` describes a round, or the last round of a training.
    """

    rank: int
    what: What
    text: str = ""
    where: str = ""
    is_usage: bool = False
    about: int | None = None
    step: dict[str, float | list[int]] = {}


def has_launcher() -> bool:
    """Whether a launcher of codedreduce has started this process."""
    return os.environ.get(PIPE, "").isdigit()


def tell(word: Word) -> bool:
    """Send a report to the launcher; return whether one listens."""
    pipe = os.environ.get(PIPE, "")
    if not has_launcher():
        return False
    short = msgspec.structs.replace(word, text=cut(word.text, MOST), where=cut(word.where, 200))
    try:
        os.write(int(pipe), msgspec.json.encode(short) + b"\n")
    except OSError:
        return False
    return True


def own_rank() -> int:
    """The rank that the launcher has given this process."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else 0


def cut(text: str, most: int) -> str:
    """The start of a text, in at most `most` bytes.

    >>> cut("naïve", 3)
    'na'
    """
    return text.encode()[:most].decode(errors="ignore")


class Said(NamedTuple):
    """An error that starts with a rank, split into rank and rest: errors with the same rest are merged.

    >>> Said.of("rank 3 has seed 1, and the root seed 0")
    Said(ranks=frozenset({3}), rest='has seed 1, and the root seed 0')
    >>> str(Said(frozenset({1, 3}), "has seed 1")), str(Said.of("no such file"))
    ('ranks 1, 3 have seed 1', 'no such file')
    """

    ranks: frozenset[int]
    rest: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Split a text."""
        found = re.match(r"rank (\d+) (?=has )", text)
        if found is None:
            return cls(frozenset(), text)
        return cls(frozenset({int(found[1])}), text[found.end() :])

    def __str__(self) -> str:
        if len(self.ranks) < 2:
            return " ".join([*(f"rank {rank}" for rank in self.ranks), self.rest])
        return f"ranks {', '.join(map(str, sorted(self.ranks)))} have {self.rest.removeprefix('has ')}"


class ReportPipe:
    """The launcher's end of the pipe. `reads` is readable when `take` has reports."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        os.set_blocking(self.reads, False)
        self._unread = b""

    def take(self) -> list[Word]:
        """The reports since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reads, 65536):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):  # scripts can write to the pipe, too
                found.append(msgspec.json.decode(line, type=Word))
        return found

    def close(self) -> None:
        """Close the pipe."""
        if self.reads >= 0:
            os.close(self.reads)
            os.close(self.writes)
            self.reads = -1
