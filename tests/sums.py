"""What a process of a run sees of its rounds, when it is not said how far behind the others it may fall."""

from __future__ import annotations

from collections.abc import Iterator

from codedreduce.run.world import Over, RoundResult, World
from codedreduce.vectors import Vector


def sums(world: World, model: Vector, count: int) -> Iterator[Vector]:
    """Of the next rounds. A rank that is far behind, as on a busy machine, takes another's state and misses some."""
    last: int | None = None
    while count > 0:
        outcome = world.aggregate(model)
        if isinstance(outcome, Over):
            return
        count -= 1 if last is None else outcome.round - last
        last = outcome.round
        if isinstance(outcome, RoundResult):
            yield outcome.vector
