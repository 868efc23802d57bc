"""The loader that the `Trainer` iterates instead of its own: what it gives are rounds, whose gradients are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from codedreduce.torch.step import Step


class SummedInputs(dict[str, Any]):
    """In the place of inputs, of which it has none: what came of a batch by all ranks together.

    Where batches are accumulated a round counts as several; each has its part of the loss.
    """

    def __init__(self, step: Step, parts: int) -> None:
        super().__init__()
        self.step = step
        self.loss = step.loss / parts


class RoundBatches:
    """Loads nothing: `take` gives the next round of this epoch, or None when it is over."""

    def __init__(self, take: Callable[[bool], Step | None], dataset: Any, rounds: int, parts: int) -> None:
        self.dataset = dataset
        self.rounds = rounds
        self._parts = parts
        self._take = take

    def __len__(self) -> int:
        return self.rounds * self._parts

    def __iter__(self) -> Iterator[SummedInputs]:
        has_begun = False
        while (step := self._take(has_begun)) is not None:
            has_begun = True
            yield from [SummedInputs(step, self._parts)] * self._parts
