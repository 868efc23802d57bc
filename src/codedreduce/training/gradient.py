"""The gradient a worker computes: an objective over the rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError
from codedreduce.schemes import Plan, TreePlan
from codedreduce.schemes.work import Piece
from codedreduce.training.data import Source
from codedreduce.training.objectives import Objective

Array = npt.NDArray[Any]


def batch_rows(seed: int, round_: int, samples: int, batch: int) -> npt.NDArray[np.intp]:
    """The rows of a mini-batch: a function of the seed and the round, the same on every node."""
    return np.random.default_rng([seed, round_]).choice(samples, batch, replace=False).astype(np.intp)


class BatchGradient:
    """Computes pieces of a batch for one worker; the last number of a vector is the sum of losses.

    Data is read when it is first needed, by the worker that needs it: in full-batch training only the rows that the
    plan may ever ask of it.
    """

    def __init__(self, objective: Objective, source: Source, plan: Plan, *, batch: int | None, seed: int) -> None:
        self._objective = objective
        self._source = source
        self._plan = plan
        self._seed = seed
        self._samples = source.shape().samples
        self._batch = batch
        self._node = 1
        self._data: tuple[list[range], Array, Array] | None = None
        self._drawn: tuple[int, npt.NDArray[np.intp]] | None = None

    def __call__(self, piece: Piece, model: Array, round_: int, out: Array, node: int) -> None:
        """Write the gradient sum of a piece and, last, its loss into `out`."""
        self._node = node
        parameters = len(out) - 1
        parts = [self.rows(part.start, part.stop, round_) for part in piece]
        x, y = parts[0] if len(parts) == 1 else (np.concatenate([p[i] for p in parts]) for i in (0, 1))
        weights = None
        if any(part.weight != 1 for part in piece):
            weights = np.concatenate([np.full(len(part), part.weight, dtype=x.dtype) for part in piece])
        out[parameters] = self._objective.evaluate(model[:parameters], x, y, weights, out[:parameters])

    def rows(self, start: int, stop: int, round_: int) -> tuple[Array, Array]:
        """Samples start..stop-1 of a round's batch."""
        if self._data is None:
            ranges = [range(self._samples)] if self._batch else self._ranges()
            self._data = (ranges, *self._source.read(ranges))
        ranges, x, y = self._data
        if self._batch:
            if self._drawn is None or self._drawn[0] != round_:
                self._drawn = (round_, batch_rows(self._seed, round_, self._samples, self._batch))
            rows = self._drawn[1][start:stop]
            return x[rows], y[rows]
        offset = 0
        for one in ranges:
            if one.start <= start and stop <= one.stop:
                place = slice(offset + start - one.start, offset + stop - one.start)
                return x[place], y[place]
            offset += len(one)
        raise UsageError(
            f"node {self._node} was asked for samples {start}..{stop - 1}, which its plan does not give it"
        )

    def _ranges(self) -> list[range]:
        """The rows this worker may ever need, merged."""
        units = self._plan.held(self._node) if isinstance(self._plan, TreePlan) else self._plan.units(self._node)
        parts = sorted({(part.start, part.stop) for unit in units for piece in unit.pieces for part in piece})
        merged: list[range] = []
        for start, stop in parts:
            if merged and start <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(stop, merged[-1].stop))
            else:
                merged.append(range(start, stop))
        return merged
