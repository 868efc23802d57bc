"""The gradient of a unit: a forward and a backward pass over its samples, or one for each micro-batch of them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.schemes.plan import Piece
from codedreduce.torch.data.prefetch import STOPPED, BatchSource, read_here
from codedreduce.torch.data.samples import Order
from codedreduce.torch.gradient.staging import Pacing, StagedGradients
from codedreduce.torch.model.layout import AnyVector, Layout, gradients_kept
from codedreduce.torch.model.seeding import random_state_kept, seed_everything
from codedreduce.torch.training.training import Training


class UnitGradient:
    """Computes pieces of a round's batch with PyTorch; checks `should_stop` before every micro-batch.

    With `given_model=False` it uses the script's current parameters, and not those that arrive with a round. Batches
    come from a `source`, or are read here. `planned`: the item count of the plan, if it is another training's plan.
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
        self._loaded: weakref.ref[Any] = weakref.ref(self)  # the model that was written to the parameters last
        self.should_stop: Callable[[], bool] = lambda: False
        self.length = layout.length
        self.staged = StagedGradients(layout)
        self._ahead = Pacing(layout.device)

    def __call__(
        self, piece: Piece, model: np.ndarray[Any, Any], round_: int, out: AnyVector, node: int, *, add: bool = False
    ) -> bool:  # fmt: skip
        """Write the gradient sum of a piece, and its loss, into `out`, or add it; return False if it had to stop."""
        totals = self._compute(piece, model, round_)
        if totals is None:
            return False
        (self.staged.add if add else self.staged.write)(out, totals)
        return True

    def _compute(self, piece: Piece, model: np.ndarray[Any, Any], round_: int) -> torch.Tensor | None:
        """Set the parameters' gradients for a piece; return its loss and other sums, or None if it had to stop."""
        if self._given_model and self._loaded() is not model:  # a restarted root may repeat a round with another model
            self._layout.write_model(model)
            self._loaded = weakref.ref(model)
        self._layout.forget_gradients()
        outside = [one for one in (ref() for ref in self._training.rehearsal.outside) if one is not None]
        with gradients_kept(outside):  # they would cover only this process's samples
            return self._compute_here(piece, round_)

    def _compute_here(self, piece: Piece, round_: int) -> torch.Tensor | None:
        """Do the same with the current parameters."""
        layout = self._layout
        totals = self._zeros()
        for order, weight in self._orders(piece, round_):
            batch = STOPPED if self.should_stop() else self._source(order, self.should_stop)
            if batch is STOPPED:
                return None
            seed_everything(self._training.seed, round_, order.places.start)
            with layout.statistics.watched():
                with gradients_kept(layout.parameters):  # losses may run backward passes, to make adversarial samples
                    given = self._training.evaluate(batch, len(order.indices), round_)
                if given.form != layout.form:
                    raise UsageError(f"losses() returned {given.form} in round {round_}, and {layout.form} at first")
                total = given.losses.sum() * weight
                if total.requires_grad:  # False if all losses of a block are constant, as without positives
                    total.backward()  # type: ignore[no-untyped-call]
            self._ahead.queued()
            totals += torch.cat([layout.statistics.seen(len(order.indices), totals), given.totals()]) * weight
        return totals

    def _zeros(self) -> torch.Tensor:
        """Return room for the sums beside gradients, on the device: no transfer waits before a piece is complete."""
        layout = self._layout
        dtype = torch.float32 if layout.device.type == "mps" else torch.float64
        return torch.zeros(layout.statistics.length + layout.form.numbers, dtype=dtype, device=layout.device)

    def _orders(self, piece: Piece, round_: int) -> Iterator[tuple[Order, float]]:
        """Yield the samples of each range, at most a micro-batch at a time, with their weight.

        A range is the common unit of all workers: seeded by its start, it has the same dropout on every worker.
        """
        for part in piece:
            for order in self._training.orders(part, round_, self._planned):
                yield order, float(part.weight)


class GradientBesideScript(UnitGradient):
    """Computes, on the root of a tree, the work of missing workers, without effects on the script.

    The parameters are those that are sent to workers. Afterwards it restores the script's random generators, and with
    `one_core` its number of threads.
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
