"""What a loop body is given once a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from codedreduce.errors import UsageError


def _nowhere() -> torch.Tensor:
    raise UsageError("this step was not made by a training, so there is nothing to evaluate")


class Number(float):
    """A float; with `item()`, since scripts are used to losses that are tensors.

    >>> f"{Number(0.25):.3f}", Number(0.25).item(), type(float(Number(0.25)))
    ('0.250', 0.25, <class 'float'>)

    It is pickled as the tensor that it stands for, which `torch.load` reads wherever it is called: pickle writes only
    plain floats as such, and by default `torch.load` knows no classes but torch's.
    """

    def __reduce_ex__(self, protocol: object) -> Any:
        return torch.tensor(float(self), dtype=torch.float64).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: object) -> Number:
        return self

    def item(self) -> float:
        """The number."""
        return float(self)

    def backward(self, *args: object, **kwargs: object) -> None:
        """Refuse what is not needed."""
        raise UsageError(
            "step.loss.backward() has nothing to do: .grad of every parameter is there when the loop body begins, so "
            "leave it out"
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One round: every parameter's `.grad` is the mean gradient of its batch.

    `epoch` is counted from 1, as `round` is; `ends_epoch` says that the next round is of another. `metrics` are the
    means over the batch of what `losses` gave beside.

    What follows is heard of by rank 0 alone, and is empty or 0 elsewhere: a rank has the sum from the keepers, often
    before rank 0 has it and knows who was late, and would wait for one more message in every step. So nothing that a
    step does may depend on it. `late` names the workers whose part somebody else delivered. `saved` is how much longer
    the rounds so far would have taken had they waited for all, as far as it is known by now: late workers are measured
    when they stop. `residual` is above 0 if more were late than tolerated and `on_excess="approximate"` left some of
    the batch out.
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
        """Have the gradient at the parameters as they are now, of the same batch, in every `.grad`; the loss there.

        A closure for `optimizer.step(step.evaluate)`, as LBFGS wants one. What is drawn (dropout) is the same each
        time. Every rank must call it, and equally often.
        """
        return self._evaluate()
