"""The loader that the `Trainer` iterates instead of its own: it yields rounds with complete gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from codedreduce.torch.rounds.step import Step


class SummedInputs(dict[str, Any]):
    """Takes the place of inputs, and is empty: the result of all ranks for a batch.

    With gradient accumulation, a round counts as several inputs; each has its part of the loss.
    """

    def __init__(self, step: Step, parts: int) -> None:
        super().__init__()
        self.step = step
        self.loss = step.loss / parts


class RoundBatches:
    """Loads nothing: `take` returns the next round of this epoch, or None at its end."""

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
