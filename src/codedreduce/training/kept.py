"""A training whose state is kept in checkpoints: read before the first round, written after some."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from codedreduce.protocol.events import Note
from codedreduce.training.checkpoints import Checkpoints, Saving, Subject
from codedreduce.vectors import Vector
from codedreduce.worlds.journal import Journal


class Copied(Protocol):
    """What is kept: something that can be copied, and be made as it was."""

    def copy(self) -> Callable[[], Vector]:
        """A copy as it is between two rounds, which is packed when it is called, in another thread."""

    def unpack(self, state: Vector) -> None:
        """Be as it was."""


class Kept:
    """A replica and its checkpoints. What a person should hear of them is told to the journal."""

    def __init__(
        self, saving: Saving, subject: Subject, replica: Copied, journal: Journal, suffix: str = ".npz"
    ) -> None:
        self._replica = replica
        self._journal = journal
        self._round = 0
        self._checkpoints = Checkpoints(saving, subject, suffix=suffix, say=self._tell)
        self._stack = ExitStack()

    def _tell(self, reason: str) -> None:
        self._journal.note(time.monotonic(), 0, Note(kind="checkpoint", reason=reason, round=self._round))

    def __enter__(self) -> Self:
        self._stack.enter_context(self._checkpoints)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def resume(self) -> int:
        """Have the replica as it was after the last checkpoint; after which round that was."""
        found = self._checkpoints.begin()
        if found is None:
            return 0
        self._replica.unpack(found.state)
        self._round = found.round
        return found.round

    def after(self, round_: int, *, is_last: bool) -> None:
        """A round is over, and its step taken: keep the state if it is time, and after the last one."""
        self._round = round_
        if is_last or self._checkpoints.is_due(round_):
            self._checkpoints.write(round_, self._replica.copy())
