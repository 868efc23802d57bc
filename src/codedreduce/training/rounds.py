"""The one loop of rounds: give the world the model, take the gradient sum, write down how it went.

It runs wherever a model is kept: on the root of a tree, on every worker of a ring and every rank, in a process alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codedreduce.run.journal import Journal, RoundLog
from codedreduce.run.world import Over, Renewal, RoundResult, World
from codedreduce.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round whose gradient sum is here. Whoever uses it says when, and with which loss, the round is over."""

    result: RoundResult
    began: float
    journal: Journal

    @property
    def number(self) -> int:
        """Rounds are counted from 1."""
        return self.result.round

    @property
    def total(self) -> Vector:
        """The gradient sum of the batch."""
        return self.result.vector

    def over(self, loss: float) -> RoundLog:
        """Write the round down."""
        log = RoundLog(
            round=self.number, seconds=time.monotonic() - self.began, loss=loss, late=self.result.late,
            residual=self.result.residual,
        )  # fmt: skip
        self.journal.add(log)
        return log


def rounds(
    world: World, journal: Journal, count: int, vector: Vector, read_model: Callable[[Vector], None], after: int = 0,
    renewed: Callable[[int], bool] | None = None,
) -> Iterator[Round]:  # fmt: skip
    """Rounds up to that one. Before each the model is read into the vector, which is what the world is given.

    Where every process has the model, one that fell behind goes on where others are, and the first may end it early.
    `renewed` is told after which round that is, and says whether the vector is still what is to be read into.
    """
    reached = after
    while reached < count:
        began = time.monotonic()
        read_model(vector)
        outcome = world.aggregate(vector)
        reached = outcome.round
        if isinstance(outcome, Over):
            return
        if isinstance(outcome, Renewal) and renewed is not None and not renewed(reached):
            return
        if isinstance(outcome, RoundResult):
            yield Round(result=outcome, began=began, journal=journal)
