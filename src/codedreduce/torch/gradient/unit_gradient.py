"""A unit of work: one forward and one backward pass over some samples, or several over micro-batches of them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.schemes.work import Piece
from codedreduce.torch.data.prefetch import STOPPED, BatchSource, read_here
from codedreduce.torch.data.samples import Order
from codedreduce.torch.device.pacing import Pacing
from codedreduce.torch.gradient.staging import StagedGradients
from codedreduce.torch.layout import AnyVector, Layout
from codedreduce.torch.seeding import random_state_kept, seed_everything
from codedreduce.torch.training import Training


class UnitGradient:
    """Computes pieces of a round's batch with PyTorch; looks up after every micro-batch.

    With `given_model=False` the parameters are as the script has left them, and not what arrives with a round. Batches
    come from a `source`, or are read here. `planned`: what the plan was laid over, if not this training's batches.
    """

    def __init__(
        self, training: Training, layout: Layout, *, given_model: bool = True, source: BatchSource | None = None,
        planned: int | None = None,
    ) -> None:  # fmt: skip
        self._source = source or read_here(training.reading)
        self._given_model = given_model
        self._planned = planned
        self._training = training
        self._layout = layout
        self._loaded: weakref.ref[Any] = weakref.ref(self)  # the model that the parameters are
        self.should_stop: Callable[[], bool] = lambda: False
        self._staged = StagedGradients(layout)
        self._ahead = Pacing(layout.device)

    @property
    def length(self) -> int:
        """How many numbers it writes."""
        return self._layout.length

    def __call__(
        self, piece: Piece, model: np.ndarray[Any, Any], round_: int, out: AnyVector, node: int
    ) -> bool:  # fmt: skip
        """Write the gradient sum of a piece, and its loss, into `out`; False if it was told to stop."""
        totals = self._compute(piece, model, round_)
        if totals is None:
            return False
        self._staged.write(out, totals)
        return True

    def add(self, piece: Piece, model: np.ndarray[Any, Any], round_: int, out: AnyVector, node: int) -> bool:
        """Add the gradient sum of a piece, and its loss, to what is in `out`."""
        totals = self._compute(piece, model, round_)
        if totals is None:
            return False
        self._staged.add(out, totals)
        return True

    def settle(self, out: AnyVector) -> None:
        """Have everything in `out` that was written there or added to it."""
        self._staged.settle(out)

    def is_finite(self, out: AnyVector) -> bool:
        """Whether no number in `out`, which was settled, is infinite, or none."""
        return self._staged.is_finite(out)

    def _compute(self, piece: Piece, model: np.ndarray[Any, Any], round_: int) -> torch.Tensor | None:
        """Have the gradients of a piece in the parameters; its loss and what is beside, or None if it was to stop."""
        if self._given_model and self._loaded() is not model:  # a root that came back may repeat a round with another
            self._layout.write_model(model)
            self._loaded = weakref.ref(model)
        self._layout.forget_gradients()
        with _left_alone([one for one in (ref() for ref in self._training.rehearsal.outside) if one is not None]):
            return self._compute_here(piece, round_)

    def _compute_here(self, piece: Piece, round_: int) -> torch.Tensor | None:
        """The same at the parameters as they are."""
        layout = self._layout
        totals = self._zeros()
        for order, weight in self._orders(piece, round_):
            batch = STOPPED if self.should_stop() else self._source(order, self.should_stop)
            if batch is STOPPED:
                return None
            seed_everything(self._training.seed, round_, order.places.start)
            with layout.statistics.watched():
                with layout.gradients_kept():  # losses that make adversarial samples have backward passes of their own
                    given = self._training.evaluate(batch, len(order.indices), round_)
                if given.form != layout.form:
                    raise UsageError(f"losses() gave {given.form} in round {round_}, and {layout.form} at first")
                total = given.losses.sum() * weight
                if total.requires_grad:  # not of a block without positives, say, whose losses are all constant
                    total.backward()  # type: ignore[no-untyped-call]
            self._ahead.queued()
            totals += torch.cat([layout.statistics.seen(len(order.indices), totals), given.totals()]) * weight
        return totals

    def _zeros(self) -> torch.Tensor:
        """Room for what comes beside gradients, where they are: nobody waits for it before a piece is done."""
        layout = self._layout
        dtype = torch.float32 if layout.device.type == "mps" else torch.float64
        return torch.zeros(layout.statistics.length + layout.form.numbers, dtype=dtype, device=layout.device)

    def _orders(self, piece: Piece, round_: int) -> Iterator[tuple[Order, float]]:
        """Samples of one range at a time, as many as memory allows, and their weight.

        A range is what workers share: seeded by its begin, it has the same dropout in everyone's pass over it.
        """
        for part in piece:
            for order in self._training.orders(part, round_, self._planned):
                yield order, float(part.weight)


@contextlib.contextmanager
def _left_alone(outside: Sequence[torch.Tensor]) -> Iterator[None]:
    """What losses use, and the model has not, gets nothing: it would be of what this process happens to compute."""
    kept = [one.grad for one in outside]
    for one in outside:
        one.grad = None
    try:
        yield
    finally:
        for one, was in zip(outside, kept, strict=True):
            one.grad = was


class GradientBesideScript(UnitGradient):
    """Computes on the root of a tree what missing workers would: as they do, and nothing of it is seen by its script.

    The parameters are what is sent to workers. Random generators, and with `one_core` the number of threads, are those
    of the script again afterwards.
    """

    def __init__(self, training: Training, layout: Layout, *, one_core: bool) -> None:
        super().__init__(training, layout)
        self._one_core = one_core and "OMP_NUM_THREADS" not in os.environ

    def _compute(self, piece: Piece, model: np.ndarray[Any, Any], round_: int) -> torch.Tensor | None:
        threads = torch.get_num_threads()
        if self._one_core:
            torch.set_num_threads(1)
        try:
            with random_state_kept():
                return super()._compute(piece, model, round_)
        finally:
            if self._one_core:
                torch.set_num_threads(threads)
