"""Steps grouped by epoch: for scripts that train one epoch in a function and evaluate after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codedreduce.torch.rounds.step import Step


def by_epoch(steps: Iterable[Step]) -> Iterator[tuple[int, Iterator[Step]]]:
    """Group the steps of a training by epoch: `for epoch, steps in by_epoch(cluster.train(...))`.

    Code after the steps of an epoch belongs to the body of the last step: the next round begins after it. A rank that
    catches up by state transfer may skip the end of an epoch. Its steps then continue into the next epoch, and the code
    after them runs once, with the transferred state.

    >>> from collections import namedtuple
    >>> Step = namedtuple("Step", "round epoch ends_epoch")
    >>> steps = iter([Step(1, 1, False), Step(2, 1, True), Step(3, 2, False), Step(4, 2, True)])
    >>> [(epoch, [step.round for step in those]) for epoch, those in by_epoch(steps)]
    [(1, [1, 2]), (2, [3, 4])]
    """
    coming = iter(steps)
    for first in coming:
        yield first.epoch, _to_the_end_of_an_epoch(chain([first], coming))


def _to_the_end_of_an_epoch(steps: Iterator[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        if step.ends_epoch:
            return
