"""The interface that training needs of a world: from a model to the gradient sum of the batch.

`Alone` is a world of one process: it computes every unit of a plan in turn, and adds them as a run of that plan does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from codedreduce.memory.memory import Memory
from codedreduce.protocol.core.settings import Dtype
from codedreduce.schemes import Piece, Plan
from codedreduce.vectors import Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """The result of a round: the gradient sum, its time, the part that is missing, and the late ranks."""

    round: int
    vector: Vector
    seconds: float
    residual: float = 0.0
    late: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewal:
    """Instead of a sum: this process fell behind, and now has the state of the others after that round."""

    round: int


@dataclass(frozen=True, slots=True)
class Over:
    """Instead of a sum: the run is over, after that round."""

    round: int


Outcome = RoundResult | Renewal | Over


class World(Protocol):
    """Runs rounds. On a tree only the root has one; on a ring and in stripes every process, with the same sums."""

    def aggregate(self, model: Vector) -> Outcome:
        """One round: the gradient sum of the whole batch under this model."""


def leads(world: World) -> bool:
    """Whether this process leads the run: the root, the leader, or the only process. The leader may change."""
    return bool(getattr(world, "leads", True))


class Replica(Protocol):
    """What every rank of a striped run has and updates by itself: the model, and all that belongs to it."""

    def pack(self) -> Vector:
        """The whole state between two rounds, as opaque numbers."""

    def copy(self) -> Callable[[], Vector]:
        """Copy the state between two rounds; the returned function packs the copy, in another thread."""

    def unpack(self, state: Vector) -> None:
        """Replace the state by that of another rank."""


class Gradient(Protocol):
    """Writes the gradient sum of a piece, under a model, into `out`; called in the process of worker `node`.

    An optional method `add` with the same arguments adds to `out` instead. An optional attribute `should_stop` is set
    to a function that tells the gradient whether to stop. An optional method `prepare(node)` is called
    before the node reports that it is ready.
    """

    def __call__(self, piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> bool | None:
        """Overwrite `out`. False: it was stopped before it had finished."""


class Alone:
    """Evaluates the plan directly: the results of every other world must be bit-identical to it."""

    def __init__(
        self, plan: Plan, gradient: Gradient, length: int, dtype: Dtype, after: int = 0, memory: Memory | None = None
    ) -> None:
        self._memory = memory if memory is not None else Memory()
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
