"""Gradients for the simulation: real vectors that depend on the samples and on the model, and are cheap to sum.

Sample i has the loss 1/2 sum_j G_ij w_j^2, so its gradient is G_i * w, element by element. A sum over samples is the
sum of rows of G times the model. Row sums are cached, the model is not: a stale or torn model shows in the result.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError
from codedreduce.protocol.core.events import Aggregated
from codedreduce.schemes import Plan
from codedreduce.schemes.plan import Piece
from codedreduce.vectors import Vector

#: Models of consecutive rounds differ, and the four values are exact in float32.
LEVELS = (1.0, 0.75, 1.25, 0.5)

#: Row sums are cached up to this many bytes.
KEPT_BYTES = 256 << 20


class Gradients:
    """The gradients of a batch of `samples` samples with `parameters` parameters."""

    def __init__(self, samples: int, parameters: int, seed: int) -> None:
        if samples < 1 or parameters < 1:
            raise UsageError(f"gradients need samples and parameters, got {samples} and {parameters}")
        self.samples = samples
        self.parameters = parameters
        random = np.random.default_rng([seed, samples, parameters])
        self._rows = random.standard_normal((samples, parameters), dtype=np.float32)
        self._total: npt.NDArray[np.float64] = self._rows.sum(axis=0, dtype=np.float64)
        self._kept: OrderedDict[Piece, Vector] = OrderedDict()

    def model(self, round_: int) -> Vector:
        """The model of a round."""
        return np.full(self.parameters, LEVELS[round_ % len(LEVELS)], dtype=np.float32)

    def of_piece(self, piece: Piece, model: Vector) -> Vector:
        """The weighted gradient sum of a piece under a model."""
        return np.multiply(self._row_sum(piece), model)

    def truth(self, round_: int) -> npt.NDArray[np.float64]:
        """The batch gradient of a round, computed independently in float64."""
        return self._total * LEVELS[round_ % len(LEVELS)]

    def _row_sum(self, piece: Piece) -> Vector:
        kept = self._kept.get(piece)
        if kept is None:
            kept = np.zeros(self.parameters, dtype=np.float32)
            for part in piece:
                rows = self._rows[part.start : part.stop]
                if part.weight == 1:
                    kept += rows.sum(axis=0)
                else:
                    kept += np.float32(part.weight) * rows.sum(axis=0)
            self._kept[piece] = kept
            while len(self._kept) * self.parameters * 4 > KEPT_BYTES:
                self._kept.popitem(last=False)
        return kept


class Oracle:
    """Knows the true gradient of every round, and the exact result of a fault-free round."""

    def __init__(self, plan: Plan, gradients: Gradients) -> None:
        self._plan = plan
        self._gradients = gradients
        self._calm: dict[int, bytes] = {}

    def judge(self, action: Aggregated) -> tuple[float, bool]:
        """The relative error of a gradient, and whether it is bit-identical to that of a fault-free round."""
        truth = self._gradients.truth(action.round)
        error = float(np.linalg.norm(action.vector - truth) / np.linalg.norm(truth))
        return error, action.vector.tobytes() == self._calm_bits(action.round)

    def _calm_bits(self, round_: int) -> bytes:
        """The bits of a fault-free round; cached, since models repeat."""
        level = round_ % len(LEVELS)
        if level not in self._calm:
            model = self._gradients.model(round_)
            self._calm[level] = self._plan.reference(lambda piece: self._gradients.of_piece(piece, model)).tobytes()
        return self._calm[level]
