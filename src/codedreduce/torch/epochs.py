"""Steps, epoch by epoch: for scripts that have a function for one, and evaluate after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codedreduce.torch.step import Step


def by_epoch(steps: Iterable[Step]) -> Iterator[tuple[int, Iterator[Step]]]:
    """The steps of a training by epoch, as `for epoch, steps in by_epoch(cluster.train(...))`.

    What follows the steps of an epoch belongs to the body of its last one: the next round begins after it. On a rank
    that fell behind and takes another's state the end of an epoch may be among the rounds it does not see; its steps
    then go on into the next epoch, and what follows them is done once, as it is in that state.

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
