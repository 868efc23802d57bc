"""`Step`: the result of one round, which the loop body receives; and steps grouped by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from codedreduce.errors import UsageError


def _nowhere() -> torch.Tensor:
    raise UsageError("this step was not made by train(...), so there is nothing to evaluate")


class Number(float):
    """A float with `item()`, because scripts expect losses to be tensors.

    >>> f"{Number(0.25):.3f}", Number(0.25).item(), type(float(Number(0.25)))
    ('0.250', 0.25, <class 'float'>)

    It is pickled as a tensor, so that `torch.load` can read it: pickle writes only plain floats as such, and by default
    `torch.load` accepts no classes but torch's.
    """

    def __reduce_ex__(self, protocol: object) -> Any:
        return torch.tensor(float(self), dtype=torch.float64).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: object) -> Number:
        return self

    def item(self) -> float:
        """The number."""
        return float(self)

    def backward(self, *args: object, **kwargs: object) -> None:
        """Raise an error: the gradient is computed already."""
        raise UsageError(
            "step.loss.backward() has no effect: .grad of every parameter is set before the loop body begins; leave it "
            "out"
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One round: every parameter's `.grad` is the mean gradient of its batch.

    `round` and `epoch` are counted from 1. `ends_epoch`: the next round is in another epoch. `metrics`: the means, over
    the batch, of the metrics that `losses` returned.

    Only rank 0 knows the fields below; on other ranks they are empty or 0. A rank receives the sum from the reducers,
    often before rank 0 knows which ranks were late, and does not wait for one more message per step. So no step may
    depend on these fields.

    `late`: the workers that another worker replaced. `saved`: the extra seconds that the rounds so far would
    have taken if they had waited for all workers. It is known only in part, since late workers are measured when they
    stop. `residual`: above 0 if more workers were late than tolerated and `on_excess="approximate"` left out some of
    the batch.
    """

    round: int
    epoch: int
    loss: Number
    seconds: float
    ends_epoch: bool = False
    metrics: Mapping[str, Number] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    saved: float = 0.0
    residual: float = 0.0
    _evaluate: Callable[[], torch.Tensor] = field(default=_nowhere, repr=False, compare=False)

    def evaluate(self) -> torch.Tensor:
        """Compute the same batch again at the current parameters: set every `.grad`, return the loss.

        This is a closure for `optimizer.step(step.evaluate)`, as LBFGS needs. Random numbers (dropout) are the same
        each time. Every rank must call it, and equally often.
        """
        return self._evaluate()


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
