"""What a simulated run leaves behind: round times, the oracle's verdicts, a timeline of one round, a trace of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from codedreduce.protocol.events import (
    AnyAction,
    Compute,
    Computed,
    Event,
    Note,
    Received,
    SetTimer,
    TimerFired,
    Transmit,
)

#: Notes kept; a run that makes more says the same again and again.
MOST_NOTES = 1000


class RoundRecord(NamedTuple):
    """One round."""

    round: int
    seconds: float
    work: float
    residual: float
    late: tuple[int, ...]


class Interval(NamedTuple):
    """What a node did for a while."""

    node: int
    kind: str
    begin: float
    end: float


class Recorder:
    """Keeps what happened; everything it keeps is bounded by rounds x workers."""

    def __init__(self, *, timeline_round: int = -1, trace: TextIO | None = None) -> None:
        self.rounds: list[RoundRecord] = []
        self.notes: list[tuple[float, int, Note]] = []
        self.intervals: list[Interval] = []
        self.delays: list[npt.NDArray[np.float32]] = []
        self.timeline_round = timeline_round
        self.timeline_span = (0.0, 0.0)
        self.max_error = 0.0
        self.identical = True
        self.busiest_bytes = 0
        self.steps = 0
        self._trace = trace
        self._elapsed = 0.0

    @property
    def tracing(self) -> bool:
        """Whether every event is to be written down."""
        return self._trace is not None

    def round_over(
        self,
        *,
        round_: int,
        seconds: float,
        work: float,
        residual: float,
        late: Sequence[int],
        delays: npt.NDArray[np.float64],
    ) -> None:
        """A round is over."""
        self.rounds.append(RoundRecord(round_, seconds, work, residual, tuple(late)))
        self.delays.append(delays.astype(np.float32))
        if self._trace is not None:
            self._trace.write(f"== round {round_} took {seconds!r} s, work {work!r}, late {list(late)}\n")

    def judged(self, error: float, identical: bool) -> None:
        """The oracle has looked at a gradient."""
        self.max_error = max(self.max_error, error)
        self.identical = self.identical and identical

    def note(self, now: float, node: int, note: Note) -> None:
        """A machine had something to tell."""
        if len(self.notes) < MOST_NOTES:
            self.notes.append((now, node, note))

    def interval(self, node: int, kind: str, begin: float, end: float) -> None:
        """A node was busy."""
        if end > begin:
            self.intervals.append(Interval(node, kind, begin, end))

    def trace(self, now: float, node: int, event: Event, actions: Sequence[AnyAction]) -> None:
        """Write down an event and what came of it, a line each."""
        assert self._trace is not None
        self._trace.write(f"{now!r} node {node} {describe(event)}\n")
        for action in actions:
            self._trace.write(f"    -> {describe(action)}\n")

    def seconds(self) -> npt.NDArray[np.float64]:
        """The round times."""
        return np.array([record.seconds for record in self.rounds])


def describe(thing: Event | AnyAction) -> str:
    """An event or action in a line, vectors as their first number."""
    match thing:
        case Received(sender=sender, message=message, data=data):
            return f"received from {sender}: {message}{'' if data is None else f' with {data[0]!r}...'}"
        case Transmit(to=to, message=message):
            return f"send to {to}: {message}{' marked' if thing.marked else ''}"
        case Computed(round=round_, task=task, vector=vector):
            return f"computed task {task} of round {round_}: {vector[0]!r}..."
        case Compute(round=round_, task=task, pieces=pieces):
            return (
                f"compute task {task} of round {round_}: {sum(len(part) for piece in pieces for part in piece)} samples"
            )
        case TimerFired(name=name):
            return f"timer {name}"
        case SetTimer(name=name, at=at):
            return f"set timer {name} at {at!r}"
        case Note(kind=kind, reason=reason):
            return f"note {kind}: {reason}"
    return type(thing).__name__
