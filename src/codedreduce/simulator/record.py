"""The record of a simulated run: its journal, the oracle's verdict, and a trace of every event."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import IO

import numpy as np
import numpy.typing as npt

from codedreduce.protocol.core.events import (
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
from codedreduce.protocol.core.messages import Trouble
from codedreduce.run.journal import Journal, Reader, RoundLog
from codedreduce.schemes.plan import samples_in


class Recorder(Journal):
    """The journal of a simulated run, with data that only a simulation has."""

    def __init__(self, *readers: Reader, timeline: Container[int] = (), trace: IO[str] | None = None) -> None:
        super().__init__(*readers, timeline=timeline)
        self.max_error = 0.0
        self.identical = True
        self.different: set[int] = set()  # rounds with a gradient that was not bit-identical, on some node
        self.troubles: tuple[Trouble, ...] = ()  # the failures that ended the run
        self.damage: list[tuple[int, int, int]] = []  # round, sender and receiver of damaged chunks
        self.busiest_bytes = 0
        self.steps = 0
        self._trace = trace

    @property
    def tracing(self) -> bool:
        """Whether every event is traced."""
        return self._trace is not None

    def round_over(self, log: RoundLog) -> None:
        """A round is over."""
        if self._trace is not None:
            self._trace.write(
                f"== round {log.round} took {log.seconds!r} s, work {log.work!r}, late {list(log.late)}\n"
            )
        self.add(log)

    def judged(self, round_: int, error: float, identical: bool) -> None:
        """The oracle has checked a gradient."""
        if not identical:
            self.different.add(round_)
        self.max_error = max(self.max_error, error)
        self.identical = self.identical and identical

    def damaged(self, round_: int, sender: int, receiver: int) -> None:
        """A chunk has changed on its way, and the receiver cannot detect it."""
        self.damage.append((round_, sender, receiver))

    def run_over(self, *, busiest_bytes: int, steps: int) -> None:
        """The run is over: record the most bytes that any interface carried, and the steps of the simulation."""
        self.busiest_bytes = busiest_bytes
        self.steps = steps

    def trace(self, now: float, node: int, event: Event, actions: Sequence[AnyAction]) -> None:
        """Write an event and its actions to the trace, one line each."""
        assert self._trace is not None
        self._trace.write(f"{now!r} node {node} {describe(event)}\n")
        for action in actions:
            self._trace.write(f"    -> {describe(action)}\n")

    def seconds(self) -> npt.NDArray[np.float64]:
        """The round times."""
        return np.array([log.seconds for log in self.rounds])


def describe(thing: Event | AnyAction) -> str:
    """An event or action on one line, with vectors as their first number."""
    match thing:
        case Received(sender=sender, message=message, data=data):
            return f"received from {sender}: {message}{'' if data is None else f' with {data[0]!r}...'}"
        case Transmit(to=to, message=message):
            return f"send to {to}: {message}{' marked' if thing.marked else ''}"
        case Computed(round=round_, task=task, vector=vector):
            return f"computed task {task} of round {round_}: {vector[0]!r}..."
        case Compute(round=round_, task=task, pieces=pieces):
            return f"compute task {task} of round {round_}: {samples_in(pieces)} samples"
        case TimerFired(name=name):
            return f"timer {name}"
        case SetTimer(name=name, at=at):
            return f"set timer {name} at {at!r}"
        case Note(kind=kind, reason=reason):
            return f"note {kind}: {reason}"
    return type(thing).__name__
