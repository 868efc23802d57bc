"""Every error codedreduce raises, in one tree.

    CodedReduceError
     +-- UsageError                you asked for something that cannot be; also a ValueError
     |    +-- CodeError            a gradient code with these parameters does not exist or is not usable
     |    +-- TreeError            no such tree
     |    +-- SchemeError          the scheme's parameters contradict each other
     |    +-- PlanError            the scheme cannot be laid over this many samples
     |    +-- MissingExtra         an optional dependency is not installed; also an ImportError
     |    +-- LabUnavailable       this machine, or this user, cannot make a lab
     +-- TooManyStragglers         more workers are missing than the code tolerates
     +-- Diverged                  the gradient is not finite
     +-- Interrupted               Ctrl-C has ended a run that a launcher started
     +-- LabFailed                 the kernel, or iproute2, would not do what a lab needs
     +-- WorkerFailed              a worker raised an error, and so did who was asked instead: the run is over
     +-- ProtocolError             a machine was fed something that cannot happen: a fault of ours, or of a world's
     +-- PeerError                 a neighbour erred
          +-- WireError            its bytes are not a message
          |    +-- MemoryGone      they refer to shared memory that is not there, or no longer
          +-- JoinRefused          it runs another plan, model, data ...; also a UsageError
               +-- Outlived        it is at a later training of the same script

A message says what was wrong, with the value, and what to do about it. The command line prints one line: it exits
with code 2 for a `UsageError`, 130 for `Interrupted`, and 1 for others.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable

__all__ = [
    "CodeError",
    "CodedReduceError",
    "Diverged",
    "Interrupted",
    "JoinRefused",
    "LabFailed",
    "LabUnavailable",
    "MemoryGone",
    "MissingExtra",
    "Outlived",
    "PeerError",
    "PlanError",
    "ProtocolError",
    "SchemeError",
    "TooManyStragglers",
    "TreeError",
    "UsageError",
    "WireError",
    "WorkerFailed",
]


class CodedReduceError(Exception):
    """The root of the tree."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows below a cell: the message says all."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(CodedReduceError, ValueError):
    """You asked for something that cannot be."""


class CodeError(UsageError):
    """A gradient code with these parameters does not exist or is not usable."""


class TreeError(UsageError):
    """No such tree."""


class SchemeError(UsageError):
    """The scheme's parameters contradict each other."""


class PlanError(UsageError):
    """The scheme cannot be laid over this many samples."""


class MissingExtra(UsageError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'codedreduce[{extra}]'")
        self.package = package
        self.extra = extra


class LabUnavailable(UsageError):
    """This machine, or this user, cannot make a lab."""


class LabFailed(CodedReduceError):
    """The kernel, or iproute2, would not do what a lab needs."""


class TooManyStragglers(CodedReduceError):
    """More workers are missing than the code tolerates.

    >>> raise TooManyStragglers(missing={2, 3}, tolerance=1, among="children 0..3")
    Traceback (most recent call last):
    ...
    codedreduce.errors.TooManyStragglers: children 0..3: missing {2, 3}, but only 1 straggler is tolerated
    """

    def __init__(self, *, missing: Iterable[int], tolerance: int, among: str) -> None:
        self.missing = frozenset(missing)
        self.tolerance = tolerance
        names = "{" + ", ".join(map(str, sorted(self.missing))) + "}"
        what = "1 straggler is" if tolerance == 1 else f"{tolerance} stragglers are"
        super().__init__(f"{among}: missing {names}, but only {what} tolerated")


class ProtocolError(CodedReduceError):
    """A machine was fed something that cannot happen: a fault of ours, or of a world's."""

    def _render_traceback_(self) -> list[str]:
        """Where it was is what matters."""
        return traceback.format_exception(self)


class PeerError(CodedReduceError):
    """A neighbour erred."""


class WireError(PeerError):
    """Bytes from a neighbour are not a message."""


class MemoryGone(WireError):
    """A neighbour refers to shared memory that is not there, or no longer: whoever had it may have ended."""


class JoinRefused(PeerError, UsageError):
    """A neighbour runs another plan, model or data, or has another secret: scripts and options must be the same."""


class Outlived(JoinRefused):
    """The others are at a later training of the same script: the one that this process came to is over."""

    def __init__(self, training: int) -> None:
        super().__init__(f"this training is over: the other processes are at number {training} of the script's")
        self.training = training


class WorkerFailed(CodedReduceError):
    """A worker raised an error, nobody else could do its work, and with that the run is over."""

    def __init__(self, node: int, message: str) -> None:
        super().__init__(f"worker {node} failed: {message}")
        self.node = node


class Diverged(CodedReduceError):
    """The gradient is not finite: the run has diverged."""

    def __init__(self, round_: int, message: str) -> None:
        super().__init__(message)
        self.round = round_


class Interrupted(CodedReduceError):
    """Ctrl-C has ended a run that a launcher started."""
