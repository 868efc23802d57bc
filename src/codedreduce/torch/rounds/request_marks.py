"""Marks at the end of a vector: numbers that encode what a round is for.

In stripes every rank knows the request of its own script. If scripts differ, ranks compute different things in one
round, and the sum is useless. So each rank marks its vector, and the marks are summed beside the gradients. There is a
place for each training, and for steps and evaluations modulo four. If all ranks made the same request, all other places
are 0.

Over a tree only the root knows the request. It writes the number of the step after the model, in digits that are exact
in any precision, and workers read it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.torch.model.layout import AnyVector, as_tensor
from codedreduce.torch.rounds.requests import Request
from codedreduce.vectors import Vector, on_host

#: Steps and evaluations are distinguished modulo this.
_APART = 4

#: Digits of a step, and their base: bfloat16 has all whole numbers up to 256.
DIGITS, _BASE = 5, 128


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
