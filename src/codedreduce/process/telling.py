"""What a process tells its launcher beside what it prints: that it has come, that it leaves on purpose, why it ends.

A line of JSON each, in a pipe that all processes of a launcher write to. Lines are shorter than what a pipe takes at
once, so those of two processes do not mix.
"""

from __future__ import annotations

import contextlib
import os
import re
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

#: Tells a process which of its open files the pipe is.
PIPE = "CODEDREDUCE_TELLS"

#: Says that steps are told, too: somebody looks on.
STEPS = "CODEDREDUCE_TELLS_STEPS"

#: Bytes that a pipe takes at once, less what is around a text; characters may need several.
MOST = 3000


class What(StrEnum):
    """What can be told."""

    JOINS = "joins"  # the script has asked for its place in the run
    TRAINS = "trains"  # a training is come to
    ADMITTED = "admitted"  # to that training: it takes part
    ENDS = "ends"  # that training, not by an error: after which round, and whether it led
    FAILS = "fails"  # in that training, by an error: in which round
    LEAVES = "leaves"  # on purpose, and the run goes on
    ERRS = "errs"  # it ends with an error that says by itself what is wrong
    STEPS = "steps"  # a round is over


class Word(msgspec.Struct, frozen=True):
    """One of them: who says what; of an error its text, where in the script, and whether it is the user's to mend.

    `about` is a node that the error is about. `step` is what is known of a round, or of the
    round that a training ended with.
    """

    rank: int
    what: What
    text: str = ""
    where: str = ""
    is_usage: bool = False
    about: int | None = None
    step: dict[str, float | list[int]] = {}


def has_launcher() -> bool:
    """Whether a launcher of ours has started this process."""
    return os.environ.get(PIPE, "").isdigit()


def tell(word: Word) -> bool:
    """Let the launcher know, if there is one that listens."""
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
    """What the launcher calls this process."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else 0


def cut(text: str, most: int) -> str:
    """The begin of a text, in so many bytes.

    >>> cut("naïve", 3)
    'na'
    """
    return text.encode()[:most].decode(errors="ignore")


class Said(NamedTuple):
    """An error that names a rank first, as that rank and the rest: several that differ in nothing else are one.

    >>> Said.of("node 3 has seed 1, and the root seed 0")
    Said(subject='node', ranks=frozenset({3}), rest='has seed 1, and the root seed 0')
    >>> str(Said("node", frozenset({1, 3}), "has seed 1")), str(Said.of("no such file"))
    ('nodes 1, 3 have seed 1', 'no such file')
    """

    subject: str
    ranks: frozenset[int]
    rest: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Take a text apart."""
        found = re.match(r"(node|rank) (\d+) (?=has )", text)
        if found is None:
            return cls("", frozenset(), text)
        return cls(found[1], frozenset({int(found[2])}), text[found.end() :])

    def __str__(self) -> str:
        if len(self.ranks) < 2:
            return " ".join([*(f"{self.subject} {rank}" for rank in self.ranks), self.rest])
        return f"{self.subject}s {', '.join(map(str, sorted(self.ranks)))} have {self.rest.removeprefix('has ')}"


class ReportPipe:
    """The launcher's end of the pipe."""

    def __init__(self) -> None:
        self._reads, self.writes = os.pipe()
        os.set_blocking(self._reads, False)
        self._unread = b""

    @property
    def descriptor(self) -> int:
        """It has something to read when `take` has something to tell."""
        return self._reads

    def take(self) -> list[Word]:
        """What was told since last asked."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reads, 65536):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):  # scripts have the pipe, too
                found.append(msgspec.json.decode(line, type=Word))
        return found

    def close(self) -> None:
        """Nobody is listened to any more."""
        if self._reads >= 0:
            os.close(self._reads)
            os.close(self.writes)
            self._reads = -1
