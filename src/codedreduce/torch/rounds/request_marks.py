"""Some numbers at the end of a vector that say what a round is for.

In stripes every rank knows what its script asks for. If scripts differ, ranks compute different things in one round,
and their sum is of no use. So everyone marks what it computes, and marks add up beside gradients: a place for each
training, and for steps and evaluations modulo four. If all asked for the same, all other places are 0.

Over a tree only the root knows. It writes the number of the step behind the model, in digits that are exact in any
precision, and workers read it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.torch.layout import AnyVector, as_tensor
from codedreduce.torch.rounds.requests import Request
from codedreduce.vectors import Vector, on_host

#: Steps and evaluations are told apart modulo this.
_APART = 4

#: Digits of a step, and their base: bfloat16 has all whole numbers up to 256.
DIGITS, _BASE = 5, 128


class RequestMarks:
    """Those of a run of so many trainings.

    >>> marks, total = RequestMarks(2), np.zeros(12)
    >>> marks.put(total, Request(0, 5)); marks.put(total, Request(0, 5), add=True); marks.check(total, Request(0, 5), 9)
    >>> marks.put(total, Request(1, 5), add=True); marks.check(total, Request(0, 5), 9)
    Traceback (most recent call last):
    codedreduce.errors.UsageError: round 9: ranks did not ask for the same, but for trainings 1 and 2. All ranks run ...
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
        """Say in a vector what it was computed for."""
        tail = as_tensor(vector)[-self.length :]
        marks = torch.from_numpy(self._of(request)).to(tail)
        if add:
            tail.add_(marks)
        else:
            tail.copy_(marks)

    def check(self, total: Vector, request: Request, round_: int) -> None:
        """Whether all of a sum was computed for that."""
        found, own = on_host(total[-self.length :]) != 0, self._of(request) != 0
        if (found == own).all():
            return
        raise UsageError(
            f"round {round_}: ranks did not ask for the same{self._apart(found | own, request)}. All ranks run the "
            "same script: next() of several trainings, and step.evaluate(), must come in the same order and equally "
            "often on all, also on one that fell behind and goes on with a later step. So let them follow from "
            "step.round, and not from the rank, from time or from a count of your own"
        )

    def _apart(self, asked: np.ndarray[Any, Any], request: Request) -> str:
        """What was asked for instead of the same, told alike on all ranks: the numbers that are near to one's own."""
        trainings, steps, evaluations = np.split(asked, np.cumsum(self._sections)[:-1])
        near = {
            "trainings": [int(place) + 1 for place in np.flatnonzero(trainings)],
            "steps": _near(steps, request.step),
            "evaluations": _near(evaluations, request.evaluation),
        }
        said = [f"{what} {' and '.join(map(str, sorted(them)))}" for what, them in near.items() if len(them) > 1]
        return f", but for {', '.join(said)}" if said else ""


def _near(found: np.ndarray[Any, Any], own: int) -> list[int]:
    """The numbers from one less than one's own on, of those that are known modulo four."""
    return [number for number in range(max(0, own - 1), own + _APART - 1) if found[number % _APART]]


def write_step(vector: np.ndarray[Any, Any], step: int) -> None:
    """Say behind a model which step it is for.

    >>> vector = np.zeros(7, dtype=np.float32); write_step(vector, 1_000_001); read_step(vector)
    1000001
    """
    for place in range(1, DIGITS + 1):
        step, vector[-place] = divmod(step, _BASE)


def read_step(vector: np.ndarray[Any, Any]) -> int:
    """Which step a model is for."""
    return sum(int(vector[-place]) * _BASE ** (place - 1) for place in range(1, DIGITS + 1))
