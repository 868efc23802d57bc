"""The oracle: it knows the true gradient of every round, and the exact result of a fault-free round."""

from __future__ import annotations

import numpy as np

from codedreduce.protocol.core.events import Aggregated
from codedreduce.schemes import Plan
from codedreduce.simulator.gradients import LEVELS, Gradients


class Oracle:
    """Compares gradients with the true ones."""

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
