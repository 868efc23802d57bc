"""Computes the request of a round, with the training that the round belongs to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from codedreduce.schemes.plan import Piece
from codedreduce.torch.gradient.unit_gradient import UnitGradient
from codedreduce.torch.model.layout import AnyVector
from codedreduce.torch.rounds.requests import Request, RequestMarks
from codedreduce.vectors import Vector


class RequestedGradient:
    """The gradients of several trainings, in vectors as long as the longest needs.

    `asked` returns the request of a round, from the vector that came with it. With `marks`, the request is written to
    the result. While one training's gradient is computed, the parameters of the others (`models`) get no gradients.
    """

    def __init__(
        self, gradients: Sequence[UnitGradient], models: Sequence[torch.nn.Module], asked: Callable[[Vector], Request],
        marks: RequestMarks | None = None,
    ) -> None:  # fmt: skip
        self._gradients = gradients
        self._asked = asked
        self._marks = marks
        self._last = gradients[0]  # the one that was used last
        self.should_stop: Callable[[], bool] = lambda: False  # called before every micro-batch
        self._others = [
            [one for other in models for one in other.parameters() if id(one) not in {id(p) for p in mine.parameters()}]
            for mine in models
        ]

    def __call__(self, piece: Piece, model: Vector, round_: int, out: AnyVector, node: int) -> bool:
        """Write the gradient sum of a piece for the round's request; return False if it had to stop."""
        return self._compute(piece, model, out, node, add=False)

    def add(self, piece: Piece, model: Vector, round_: int, out: AnyVector, node: int) -> bool:
        """Add it to `out`."""
        return self._compute(piece, model, out, node, add=True)

    def settle(self, out: AnyVector) -> None:
        """Complete all writes and additions to `out`."""
        self._last.staged.settle(out[: self._last.length])

    def is_finite(self, out: AnyVector) -> bool:
        """Whether all numbers in `out`, which was settled, are finite."""
        return self._last.staged.is_finite(out[: self._last.length])

    def _compute(self, piece: Piece, model: Vector, out: AnyVector, node: int, *, add: bool) -> bool:
        request = self._asked(model)
        gradient = self._last = self._gradients[request.training]
        gradient.should_stop = self.should_stop
        with _held_still(self._others[request.training]):
            if not gradient(piece, model, request.step, out[: gradient.length], node, add=add):
                return False
        if not add:
            out[gradient.length :] = 0
        if self._marks is not None:
            self._marks.put(out, request, add=add)
        return True


@contextlib.contextmanager
def _held_still(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Let a pass go through these parameters without computing their gradients."""
    trained = [one for one in parameters if one.requires_grad]
    for one in trained:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in trained:
            one.requires_grad_(True)
