"""What each round of a run is for: a step of one of its trainings, or another evaluation of a step's batch.

Several trainings may share a run. The order of the script's requests, which is the same on all ranks, assigns the
rounds. A rank that catches up by state transfer also receives the progress of each training, and the next request of
the other rank.

In stripes every rank knows the request of its own script. If scripts differ, ranks compute different things in one
round, and the sum is useless. So each rank marks its vector, and the marks are summed beside the gradients. There is a
place for each training, and for steps and evaluations modulo four. If all ranks made the same request, all other places
are 0. Over a tree only the root knows the request. It writes the number of the step after the model, in digits that are
exact in any precision, and workers read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.torch.model.layout import AnyVector, as_tensor
from codedreduce.vectors import Vector, on_host

#: Steps and evaluations are distinguished modulo this.
_APART = 4

#: Digits of a step, and their base: bfloat16 has all whole numbers up to 256.
DIGITS, _BASE = 5, 128


@dataclass(frozen=True, slots=True)
class Request:
    """What a round is for: a step of a training (counted from 0), or another evaluation of that step (from 1)."""

    training: int
    step: int
    evaluation: int = 0

    @property
    def is_step(self) -> bool:
        """Whether it begins a new step."""
        return self.evaluation == 0

    def __str__(self) -> str:
        step = f"step {self.step} of training {self.training + 1}"
        return step if self.is_step else f"evaluation {self.evaluation} of {step}"


class Requests:
    """The progress of the trainings of a run, and the next request.

    >>> requests = Requests()
    >>> requests.add(0, stream=0); requests.add(0, stream=1)
    >>> for training in (0, 1):
    ...     requests.asked = requests.step_of(training)
    ...     requests.answered(requests.round + 1)
    >>> requests.round, str(requests.step_of(0)), str(requests.evaluation_of(1))
    (2, 'step 2 of training 1', 'evaluation 1 of step 1 of training 2')
    """

    def __init__(self) -> None:
        self.steps: list[int] = []  # the steps that each training has received
        self.round = 0  # of the run
        self.asked: Request | None = None  # None: the script has finished
        self.streams: list[int] = []  # each training's number in its script, which seeds the draws of its loop body
        self._evaluations: list[int] = []

    def step_of(self, training: int) -> Request:
        """Return the request for the next step of a training."""
        return Request(training, self.steps[training] + 1)

    def evaluation_of(self, training: int) -> Request:
        """Return the request for another evaluation of the current step of a training."""
        return Request(training, self.steps[training], self._evaluations[training] + 1)

    def answered(self, round_: int) -> None:
        """Record that this round of the run answered the request."""
        assert self.asked is not None
        self.round = round_
        self.steps[self.asked.training] = self.asked.step
        self._evaluations[self.asked.training] = self.asked.evaluation

    def add(self, after: int, stream: int) -> None:
        """Add a training, which begins after step `after`."""
        self.steps.append(after)
        self.streams.append(stream)
        self._evaluations.append(0)
        self.round = max(self.round, after)

    def begin_after(self, training: int, step: int) -> None:
        """Continue a training after the step of a checkpoint."""
        self.asked = None
        self.steps[training] = step
        self.round = max(self.round, step)

    def packed(self) -> dict[str, Any]:
        """Return all of it, to send with a state."""
        asked = self.asked
        return {
            "round": self.round, "steps": list(self.steps), "evaluations": list(self._evaluations),
            "streams": list(self.streams),
            "asked": None if asked is None else [asked.training, asked.step, asked.evaluation],
        }  # fmt: skip

    def read(self, packed: Mapping[str, Any]) -> Self:
        """Load what another rank packed."""
        if len(packed["steps"]) != len(self.steps):
            raise CodedReduceError(
                f"the state has {len(packed['steps'])} trainings, but this process has {len(self.steps)}: it is at "
                "another place of the script than the others, which have made more or fewer trainings"
            )
        self.round, self.steps = packed["round"], list(packed["steps"])
        self._evaluations = list(packed["evaluations"])
        self.streams = list(packed.get("streams", self.streams))  # older checkpoints have none
        self.asked = None if packed["asked"] is None else Request(*packed["asked"])
        return self


class RequestMarks:
    """The marks of a run of `trainings` trainings.

    >>> marks, total = RequestMarks(2), np.zeros(12)
    >>> marks.put(total, Request(0, 5)); marks.put(total, Request(0, 5), add=True); marks.check(total, Request(0, 5), 9)
    >>> marks.put(total, Request(1, 5), add=True); marks.check(total, Request(0, 5), 9)
    Traceback (most recent call last):
    codedreduce.errors.UsageError: round 9: the requests of the ranks differ: trainings 1 and 2. All ranks run ...
    """

    def __init__(self, trainings: int) -> None:
        self._sections = (trainings, _APART, _APART)
        self.length = sum(self._sections)

    def _of(self, request: Request) -> np.ndarray[Any, Any]:
        marks = np.zeros(self.length)
        first = 0
        for place, section in zip((request.training, request.step, request.evaluation), self._sections, strict=True):
            marks[first + place % section] = 1
            first += section
        return marks

    def put(self, vector: AnyVector, request: Request, *, add: bool = False) -> None:
        """Write to a vector what it was computed for."""
        tail = as_tensor(vector)[-self.length :]
        marks = torch.from_numpy(self._of(request)).to(tail)
        if add:
            tail.add_(marks)
        else:
            tail.copy_(marks)

    def check(self, total: Vector, request: Request, round_: int) -> None:
        """Check that all of a sum was computed for this request."""
        found, own = on_host(total[-self.length :]) != 0, self._of(request) != 0
        if (found == own).all():
            return
        raise UsageError(
            f"round {round_}: the requests of the ranks differ{self._apart(found | own, request)}. All ranks run the "
            "same script: call next() of several trainings, and step.evaluate(), in the same order and equally often "
            "on all ranks, also on one that fell behind and continues with a later step. Make these calls depend on "
            "step.round, and not on the rank, on time or on a count of your own"
        )

    def _apart(self, asked: np.ndarray[Any, Any], request: Request) -> str:
        """Describe how the requests differ, by numbers near this rank's own, in the same words on all ranks."""
        trainings, steps, evaluations = np.split(asked, np.cumsum(self._sections)[:-1])
        near = {
            "trainings": [int(place) + 1 for place in np.flatnonzero(trainings)],
            "steps": _near(steps, request.step),
            "evaluations": _near(evaluations, request.evaluation),
        }
        said = [f"{what} {' and '.join(map(str, sorted(them)))}" for what, them in near.items() if len(them) > 1]
        return f": {', '.join(said)}" if said else ""


def _near(found: np.ndarray[Any, Any], own: int) -> list[int]:
    """Return the numbers that are marked (modulo four), starting at one less than this rank's own."""
    return [number for number in range(max(0, own - 1), own + _APART - 1) if found[number % _APART]]


def write_step(vector: np.ndarray[Any, Any], step: int) -> None:
    """Write after a model which step it is for.

    >>> vector = np.zeros(7, dtype=np.float32); write_step(vector, 1_000_001); read_step(vector)
    1000001
    """
    for place in range(1, DIGITS + 1):
        step, vector[-place] = divmod(step, _BASE)


def read_step(vector: np.ndarray[Any, Any]) -> int:
    """Return the step that a model is for."""
    return sum(int(vector[-place]) * _BASE ** (place - 1) for place in range(1, DIGITS + 1))
