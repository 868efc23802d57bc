"""The one loop of rounds: give the world the model, take the gradient sum, write down how it went.

It runs wherever a model is kept: on the root of a tree, on every worker of a ring, in a process alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codedreduce.vectors import Vector
from codedreduce.worlds.journal import Journal, RoundLog
from codedreduce.worlds.world import RoundResult, World


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
    world: World, journal: Journal, count: int, vector: Vector, read_model: Callable[[Vector], None]
) -> Iterator[Round]:
    """So many rounds. Before each the model is read into the vector, which is what the world is given."""
    for _ in range(count):
        began = time.monotonic()
        read_model(vector)
        yield Round(result=world.aggregate(vector), began=began, journal=journal)
