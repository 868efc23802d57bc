"""Computes whatever a round of a run is for, with the training whose round it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from codedreduce.schemes.work import Piece
from codedreduce.torch.gradient.unit_gradient import UnitGradient
from codedreduce.torch.layout import AnyVector
from codedreduce.torch.rounds.request_marks import RequestMarks
from codedreduce.torch.rounds.requests import Request
from codedreduce.vectors import Vector


class RequestedGradient:
    """The gradients of several trainings in vectors that are as long as the longest needs.

    `asked` says what a round is for, given what came with it. With `marks` that is said in what is computed. While one
    training's gradient is computed the parameters of the others (`models`) get none.
    """

    def __init__(
        self, gradients: Sequence[UnitGradient], models: Sequence[torch.nn.Module], asked: Callable[[Vector], Request],
        marks: RequestMarks | None = None,
    ) -> None:  # fmt: skip
        self._gradients = gradients
        self._asked = asked
        self._marks = marks
        self._last = gradients[0]  # that was used
        self._others = [
            [one for other in models for one in other.parameters() if id(one) not in {id(p) for p in mine.parameters()}]
            for mine in models
        ]

    @property
    def should_stop(self) -> Callable[[], bool]:
        """Asked after every micro-batch."""
        return self._gradients[0].should_stop

    @should_stop.setter
    def should_stop(self, asks: Callable[[], bool]) -> None:
        for one in self._gradients:
            one.should_stop = asks

    def __call__(self, piece: Piece, model: Vector, round_: int, out: AnyVector, node: int) -> bool:
        """Write the gradient sum of a piece of what the round is for; False if it was told to stop."""
        return self._compute(piece, model, out, node, add=False)

    def add(self, piece: Piece, model: Vector, round_: int, out: AnyVector, node: int) -> bool:
        """Add it to what is in `out`."""
        return self._compute(piece, model, out, node, add=True)

    def settle(self, out: AnyVector) -> None:
        """Have everything in `out` that was written there or added to it."""
        self._last.settle(out[: self._last.length])

    def is_finite(self, out: AnyVector) -> bool:
        """Whether no number in `out`, which was settled, is infinite, or none."""
        return self._last.is_finite(out[: self._last.length])

    def _compute(self, piece: Piece, model: Vector, out: AnyVector, node: int, *, add: bool) -> bool:
        request = self._asked(model)
        gradient = self._last = self._gradients[request.training]
        compute = gradient.add if add else gradient
        with _held_still(self._others[request.training]):
            if not compute(piece, model, request.step, out[: gradient.length], node):
                return False
        if not add:
            out[gradient.length :] = 0
        if self._marks is not None:
            self._marks.put(out, request, add=add)
        return True


@contextlib.contextmanager
def _held_still(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """A pass may go through these, and leaves them nothing."""
    trained = [one for one in parameters if one.requires_grad]
    for one in trained:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in trained:
            one.requires_grad_(True)
