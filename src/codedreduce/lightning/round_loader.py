"""The loader that a `Trainer` iterates instead of its own: it yields rounds with complete gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from codedreduce.torch.rounds.step import Step


class SummedBatch:
    """Takes the place of a batch: the result of all ranks for it. Hooks receive it as `batch`."""

    def __init__(self, step: Step, samples: int) -> None:
        self.step = step
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield an empty tensor, by which Lightning sees the number of samples of the batch."""
        yield torch.empty(self.samples, 0)

    def __repr__(self) -> str:
        return f"SummedBatch({self.step})"


class RoundLoader:
    """Loads nothing: each of its batches is a round. It has the length of an epoch, and continues with the next one."""

    def __init__(self, take: Callable[[], SummedBatch], dataset: Any, length: int) -> None:
        self.dataset = dataset
        self._take = take
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SummedBatch]:
        return self

    def __next__(self) -> SummedBatch:
        return self._take()
