"""What users do wrong with `train`, found before it costs a run: a loop that is not there, a model that is wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch import nn

from codedreduce.errors import UsageError
from codedreduce.torch.live import StepLike, TellsSteps

#: Wrappers that sum gradients among processes or devices themselves, by the name of their class.
WRAPPERS = {
    "DistributedDataParallel": "model.module, or leave the wrapper out",
    "DataParallel": "model.module, or leave the wrapper out",
    "FullyShardedDataParallel": "the model as it was before it was wrapped: codedreduce does not shard models",
    "FSDPModule": "the model as it was before fully_shard(): codedreduce does not shard models",
}


def check_not_wrapped(model: nn.Module) -> None:
    """Refuse a model that would wait in its own way for processes that codedreduce does not wait for.

    >>> check_not_wrapped(nn.Linear(2, 2))
    """
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
                raise UsageError(
                    f"the model is wrapped in {kind.__name__}, which sums gradients itself; give train(...) "
                    f"{WRAPPERS[kind.__name__]}, in losses, too"
                )


class Loops:
    """Whether what `train` gave was looped over."""

    def __init__(self) -> None:
        self._waiting: list[object] = []

    def over(self, steps: Iterator[Any]) -> Iterator[Any]:
        """The same steps; it is known when they are begun with."""
        name = object()
        self._waiting.append(name)

        def looped() -> Iterator[Any]:
            self._waiting.remove(name)
            yield from steps

        return looped()

    def check(self) -> None:
        """Refuse to end as if all were well when nothing was trained."""
        if self._waiting:
            raise UsageError(
                "cluster.train(...) was called, and nothing was trained: it trains while it is looped over, so write "
                "`for step in cluster.train(...):` with optimizer.step() in the loop"
            )


class _HasLoops(Protocol):
    loops: Loops

    @property
    def is_root(self) -> bool:
        """Whether the run is led from here."""


P = ParamSpec("P")
H = TypeVar("H", bound=_HasLoops)
S = TypeVar("S", bound=StepLike)


def noticing_loops(
    train: Callable[Concatenate[H, P], Iterator[S]],
) -> Callable[Concatenate[H, P], Iterator[S]]:
    """Lets a method that gives steps notice whether they are taken, and tell of them."""

    @functools.wraps(train)
    def noticing(owner: H, /, *args: P.args, **named: P.kwargs) -> Iterator[S]:
        return owner.loops.over(_telling(owner, train(owner, *args, **named)))

    return noticing


def _telling(owner: _HasLoops, steps: Iterator[S]) -> Iterator[S]:
    """The same steps; who looks on is told of them."""
    tells = TellsSteps()
    try:
        for step in steps:
            tells.over(step, leads=owner.is_root)
            yield step
        tells.rest()
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            close()
