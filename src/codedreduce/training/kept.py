"""A training with checkpoints: the state is read before the first round, and written after some rounds."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Self

from codedreduce.errors import UsageError
from codedreduce.process.termination import Terminated
from codedreduce.protocol.core.events import Note
from codedreduce.run.journal import Journal
from codedreduce.run.world import Replica
from codedreduce.training.checkpoints import Checkpoints, InUse, Saving, Subject


class Kept:
    """A replica and its checkpoints. It reports problems with them to the journal.

    The leader locks the folder: this process from the start (`is_first`), or when it becomes the leader.
    """

    def __init__(
        self, saving: Saving, subject: Subject, replica: Replica, journal: Journal, suffix: str = ".npz",
        *, is_first: bool = True,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._journal = journal
        self._is_first = is_first
        self._round = self._written = 0
        self._refused = ""
        self._saving, self._subject, self._suffix = saving, subject, suffix
        self._checkpoints: Checkpoints | None = None
        self._stack = ExitStack()

    def _tell(self, reason: str) -> None:
        self._journal.note(time.monotonic(), 0, Note(kind="checkpoint", reason=reason, round=self._round))

    def _make(self) -> Checkpoints:
        return Checkpoints(self._saving, self._subject, suffix=self._suffix, say=self._tell)

    def __enter__(self) -> Self:
        if self._is_first:
            try:
                self._checkpoints = self._stack.enter_context(self._make())
            except InUse as error:
                if not error.by_own_run:  # else this process was restarted, and another rank is the leader
                    raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        is_leaving = isinstance(error, Terminated)
        if isinstance(error, Terminated) and error.code and self._checkpoints is None:
            self._take_over()  # the run ends with this process, which has just become the leader
        if is_leaving and self._checkpoints is not None and self._round > self._written:
            self.after(self._round, is_last=True)
            self._tell(f"leave requested: writing a checkpoint after round {self._round}")
        self._stack.close()

    def resume(self) -> int:
        """Restore the replica from the last checkpoint; return the round of it, 0 without one."""
        found = self._checkpoints.begin() if self._checkpoints is not None else None
        if found is None:
            return 0
        self._replica.unpack(found.state)
        self._round = self._written = found.round
        return found.round

    def after(self, round_: int, *, is_last: bool, leads: bool = True) -> None:
        """After the step of a round: the leader writes a checkpoint if it is due, or if this is the last round."""
        self._round = round_
        if not leads:
            self._checkpoints = None
            self._stack.close()  # release the folder for the leader
            return
        if self._checkpoints is None:
            self._take_over()
        if self._checkpoints is not None and (is_last or self._checkpoints.is_due(round_)):
            self._written = round_
            self._checkpoints.write(round_, self._replica.copy())

    def _take_over(self) -> None:
        """Lock the folder of the previous leader, if that process has released it; `after` retries in each round."""
        try:
            self._checkpoints = self._stack.enter_context(self._make())
        except UsageError as error:
            if self._refused != str(error):
                self._refused = str(error)
                self._tell(str(error))
