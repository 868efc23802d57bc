"""The loop of rounds: pass the model to the world, get the gradient sum, log the round.

It runs in each process with a model: the root of a tree, every worker of a ring, every rank, or a single process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codedreduce.run.journal import Journal, RoundLog
from codedreduce.run.world import Over, RoundResult, World
from codedreduce.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round with its gradient sum. The caller ends it by `over`, with the loss."""

    result: RoundResult
    began: float
    journal: Journal

    @property
    def number(self) -> int:
        """The number of the round, counted from 1."""
        return self.result.round

    @property
    def total(self) -> Vector:
        """The gradient sum of the batch."""
        return self.result.vector

    def over(self, loss: float) -> RoundLog:
        """End the round: add it, with its loss, to the journal."""
        log = RoundLog(
            round=self.number, seconds=time.monotonic() - self.began, loss=loss, late=self.result.late,
            residual=self.result.residual,
        )  # fmt: skip
        self.journal.add(log)
        return log


def rounds(
    world: World, journal: Journal, count: int, vector: Vector, read_model: Callable[[Vector], None], after: int = 0
) -> Iterator[Round]:
    """Rounds `after + 1` to `count`. Before each, `read_model` writes the model into the vector, which the world gets.

    Where every process has the model, a process that missed rounds catches up by state transfer, and the leader may end
    the run early.
    """
    reached = after
    while reached < count:
        began = time.monotonic()
        read_model(vector)
        outcome = world.aggregate(vector)
        reached = outcome.round
        if isinstance(outcome, Over):
            return
        if isinstance(outcome, RoundResult):
            yield Round(result=outcome, began=began, journal=journal)
