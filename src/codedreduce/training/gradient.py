"""The gradient that a worker computes: an objective over the rows of a batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError
from codedreduce.schemes import Plan
from codedreduce.schemes.plan import Piece
from codedreduce.training.batches import Batches
from codedreduce.training.data import Source
from codedreduce.training.objectives import Objective

Array = npt.NDArray[Any]


class BatchGradient:
    """Computes pieces of a batch for one worker; the last number of a vector is the sum of losses.

    `prepare` reads a worker's own rows; other rows are read when they are first needed. All rows stay in memory: as
    views, if the source has them in memory or mapped.
    """

    def __init__(self, objective: Objective, source: Source, plan: Plan, *, batch: int | None, seed: int) -> None:
        self._objective = objective
        self._source = source
        self._plan = plan
        self._batches = Batches(source.shape().samples, batch, seed) if batch else None
        self._node = 1
        self._holds = cache(plan.holds)
        self._kept: list[tuple[range, Array, Array]] = []

    def prepare(self, node: int) -> None:
        """Read the rows that a worker needs in a fault-free round; for mini-batches these are all rows.

        In a mapped archive, numbers may begin at any byte. Linear algebra copies arrays that do not begin at a multiple
        of the size of a number, so the rows of every round are copied once, here.
        """
        self._node = node
        if self._batches is not None:
            self._source = self._source.loaded()
            return
        for piece in (piece for unit in self._plan.calm_units(node) for piece in unit.pieces):
            for part in piece:
                rows = range(part.start, part.stop)
                x, y = self._source.read([rows])
                self._kept.append((rows, _aligned(x), y))

    def __call__(self, piece: Piece, model: Array, round_: int, out: Array, node: int) -> None:
        """Write the gradient sum of a piece and, last, its loss into `out`."""
        self._node = node
        parameters = len(out) - 1
        parts = [self.rows(part.start, part.stop, round_) for part in piece]
        x, y = parts[0] if len(parts) == 1 else (np.concatenate([p[i] for p in parts]) for i in (0, 1))
        weights = None
        if any(part.weight != 1 for part in piece):
            weights = np.concatenate([np.full(len(part), part.weight, dtype=x.dtype) for part in piece])
        out[parameters] = self._objective.evaluate(model[:parameters], _aligned(x), y, weights, out[:parameters])

    def rows(self, start: int, stop: int, round_: int) -> tuple[Array, Array]:
        """Samples start..stop-1 of a round's batch."""
        if self._batches is not None:
            data = self._source = self._source.loaded()
            chosen = self._batches.indices(round_, start, stop)
            return data.x[chosen], data.y[chosen]
        for kept, x, y in self._kept:
            if kept.start <= start and stop <= kept.stop:
                place = slice(start - kept.start, stop - kept.start)
                return x[place], y[place]
        is_root = self._node not in self._plan.computing  # the root may compute any missing unit
        if not is_root and not any(one.start <= start and stop <= one.stop for one in self._holds(self._node)):
            raise UsageError(
                f"node {self._node} was asked for samples {start}..{stop - 1}, which its plan does not assign to it"
            )
        rows = range(start, stop)
        self._kept.append((rows, *self._source.read([rows])))
        return self._kept[-1][1:]


def _aligned(values: Array) -> Array:
    """The same numbers, aligned so that linear algebra does not copy them."""
    return values if values.flags.aligned else values.copy()
