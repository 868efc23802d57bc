"""A world of one process: it computes every unit of a plan in turn, and adds them as a run of that plan does."""

from __future__ import annotations

import time

from codedreduce.memory.memory import HostMemory, Memory
from codedreduce.run.agreement import Dtype
from codedreduce.run.world import Gradient, RoundResult
from codedreduce.schemes import Piece, Plan
from codedreduce.vectors import Vector


class Alone:
    """Evaluates the plan directly: the results of every other world must be bit-identical to it."""

    def __init__(
        self, plan: Plan, gradient: Gradient, length: int, dtype: Dtype, after: int = 0, memory: Memory | None = None
    ) -> None:
        self._memory = memory if memory is not None else HostMemory()
        self._plan = plan
        self._gradient = gradient
        self._length = length
        self._dtype = dtype
        self._round = after

    def aggregate(self, model: Vector) -> RoundResult:
        """One round: the gradient sum of the whole batch under this model."""
        begin = time.monotonic()
        self._round += 1
        settle = getattr(self._gradient, "settle", None)

        def evaluate(piece: Piece) -> Vector:
            out = self._memory.empty(self._length, self._dtype)
            self._gradient(piece, model, self._round, out, 1)
            if settle is not None:
                settle(out)
            return out

        vector = self._plan.reference(evaluate)
        return RoundResult(round=self._round, vector=vector, seconds=time.monotonic() - begin)
