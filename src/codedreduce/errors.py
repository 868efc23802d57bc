"""All errors that codedreduce raises, in one tree.

    CodedReduceError
     +-- UsageError                a request that is impossible or contradictory; also a ValueError
     |    +-- CodeError            a gradient code with these parameters does not exist or is not usable
     |    +-- TreeError            there is no such tree
     |    +-- SchemeError          the scheme's parameters contradict each other
     |    +-- PlanError            the scheme does not fit this number of samples
     |    +-- MissingExtra         an optional dependency is not installed; also an ImportError
     |    +-- LabUnavailable       this host, or this user, cannot create a lab
     +-- TooManyStragglers         more workers are missing than the code tolerates
     +-- Diverged                  the gradient is not finite
     +-- Interrupted               Ctrl-C ended a run that a launcher started
     +-- LabFailed                 the kernel or iproute2 failed in an operation of a lab
     +-- WorkerFailed              a worker raised an error, and no other worker could do its work: the run is over
     +-- ProtocolError             a state machine got an impossible input: a bug, here or in the code that drives it
     +-- PeerError                 a neighbour made an error
          +-- WireError            its bytes are not a message
          |    +-- MemoryGone      they refer to shared memory that does not exist, or not any more
          +-- JoinRefused          it runs another plan, model, data ...; also a UsageError
               +-- Outlived        it has begun a later training of the same script

A message states what is wrong, with the value, and what to do. The command line prints one line and exits
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
        """What a notebook shows below a cell: only the message, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(CodedReduceError, ValueError):
    """A request that is impossible or contradictory."""


class CodeError(UsageError):
    """A gradient code with these parameters does not exist or is not usable."""


class TreeError(UsageError):
    """There is no such tree."""


class SchemeError(UsageError):
    """The scheme's parameters contradict each other."""


class PlanError(UsageError):
    """The scheme does not fit this number of samples."""


class MissingExtra(UsageError, ImportError):
    """An optional dependency is not installed; the message contains the command that installs it."""

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'codedreduce[{extra}]'")
        self.package = package
        self.extra = extra


class LabUnavailable(UsageError):
    """This host, or this user, cannot create a lab."""


class LabFailed(CodedReduceError):
    """The kernel or iproute2 failed in an operation of a lab."""


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
    """A state machine got an impossible input: a bug, here or in the code that drives the machine."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the whole traceback, as the place of the bug matters."""
        return traceback.format_exception(self)


class PeerError(CodedReduceError):
    """A neighbour made an error."""


class WireError(PeerError):
    """Bytes from a neighbour are not a message."""


class MemoryGone(WireError):
    """A neighbour refers to shared memory that does not exist, or not any more: its owner may have ended."""


class JoinRefused(PeerError, UsageError):
    """A neighbour has another plan, model, data or secret: all ranks need the same script and options."""


class Outlived(JoinRefused):
    """The other ranks are at a later training of the same script: the training that this process wanted is over."""

    def __init__(self, training: int) -> None:
        super().__init__(f"this training is over: the other processes are at training {training} of the script")
        self.training = training


class WorkerFailed(CodedReduceError):
    """A worker raised an error and no other worker could do its work, so the run is over."""

    def __init__(self, node: int, message: str) -> None:
        super().__init__(f"worker {node} failed: {message}")
        self.node = node


class Diverged(CodedReduceError):
    """The gradient is not finite: the run has diverged."""

    def __init__(self, round_: int, message: str) -> None:
        super().__init__(message)
        self.round = round_


class Interrupted(CodedReduceError):
    """Ctrl-C ended a run that a launcher started."""
