"""Vectors that are tensors, in memory that processes share: a device without a device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from codedreduce.memory.arena import Arena, Reference
from codedreduce.torch.device.device_memory import DeviceMemory
from codedreduce.vectors import Vector

HERE = torch.device("cpu")


class TensorArena:
    """An arena whose vectors are seen as tensors."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def slot(self, round_: int) -> Any:
        found = self._arena.slot(round_)
        return torch.from_numpy(found) if found is not None else None

    def vector(self, slot: int) -> Any:
        return torch.from_numpy(self._arena.vector(slot))

    def part(self, slot: int, start: int, stop: int) -> Any:
        return torch.from_numpy(self._arena.part(slot, start, stop))

    def allocate(self, slot: int, start: int, stop: int) -> None:
        self._arena.allocate(slot, start, stop)

    def stamp(self, slot: int, stamp: int) -> None:
        self._arena.stamp(slot, stamp)

    def is_stamped(self, chunk: Any, stamp: int) -> bool:
        return self._arena.is_stamped(_array(chunk), stamp)

    def refer(self, chunk: Any) -> Reference | None:
        return self._arena.refer(_array(chunk))

    def view(self, reference: Reference) -> Any:
        return torch.from_numpy(self._arena.view(reference))

    def close(self) -> None:
        self._arena.close()


def _array(chunk: Any) -> Vector:
    return chunk.numpy() if isinstance(chunk, torch.Tensor) else chunk


class TensorMemory(DeviceMemory):
    """Where vectors lie as on a device, and are tensors."""

    def __init__(self) -> None:
        super().__init__(HERE)

    def shared(  # type: ignore[override]
        self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike
    ) -> TensorArena:
        return TensorArena(Arena(run, node, slots=slots, length=length, dtype=dtype))
