"""The oracle: knows the true gradient of every round, and the bits that a calm round gives."""

from __future__ import annotations

import zlib

import numpy as np

from codedreduce.protocol.core.events import Aggregated
from codedreduce.schemes import Plan
from codedreduce.simulator.gradients import LEVELS, Gradients
from codedreduce.vectors import Vector


class Oracle:
    """Judges gradients; `checking`, also that nobody writes into one after its round."""

    def __init__(self, plan: Plan, gradients: Gradients, *, checking: bool) -> None:
        self._plan = plan
        self._gradients = gradients
        self._checking = checking
        self._calm: dict[int, bytes] = {}
        self._last: dict[int, tuple[Vector, int]] = {}

    def judge(self, action: Aggregated, node: int = 0) -> tuple[float, bool]:
        """How far a gradient is from the true one, relatively, and whether it has the bits of a calm round."""
        last = self._last.get(node)
        if last is not None and zlib.crc32(last[0].data) != last[1]:
            raise AssertionError(f"the gradient of round {action.round - 1} changed after the round was over")
        if self._checking:
            self._last[node] = (action.vector, zlib.crc32(action.vector.data))
        truth = self._gradients.truth(action.round)
        error = float(np.linalg.norm(action.vector - truth) / np.linalg.norm(truth))
        return error, action.vector.tobytes() == self._calm_bits(action.round)

    def _calm_bits(self, round_: int) -> bytes:
        """Models repeat, and so do calm gradients."""
        level = round_ % len(LEVELS)
        if level not in self._calm:
            model = self._gradients.model(round_)
            self._calm[level] = self._plan.reference(lambda piece: self._gradients.of_piece(piece, model)).tobytes()
        return self._calm[level]
