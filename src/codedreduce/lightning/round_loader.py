"""The loader that a `Trainer` iterates instead of its own: what it gives are rounds, whose gradients are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from codedreduce.torch.step import Step


class SummedBatch:
    """In the place of a batch: what came of it by all ranks together. Hooks are given it as `batch`."""

    def __init__(self, step: Step, samples: int) -> None:
        self.step = step
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        """By which Lightning sees how many samples a batch has."""
        yield torch.empty(self.samples, 0)

    def __repr__(self) -> str:
        return f"Taken({self.step})"


class RoundLoader:
    """Loads nothing: each of its batches is a round. It has the length of an epoch, and goes on with the next one."""

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
