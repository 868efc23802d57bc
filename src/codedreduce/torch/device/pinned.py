"""Vectors on the host that are copied to a device and back: in pinned memory, at the speed of the bus."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from codedreduce.memory.arena import Arena
from codedreduce.memory.memory import Memory
from codedreduce.packed import Packed
from codedreduce.torch.device import cuda
from codedreduce.torch.device.tensors import after_the_rest, as_vector, dtype_of
from codedreduce.vectors import Vector, convert

log = logging.getLogger("codedreduce")

#: Bytes that are copied to a device at a time.
AT_ONCE = 8 << 20


class PinnedArena(Arena):
    """An arena that pins its whole vectors, which come from a device."""

    def __init__(self, run: str, node: int, *, slots: int, length: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._kept: dict[int, int] = {}  # pinned addresses, by slot
        self._whole: set[int] = set()  # slots with memory for the whole vector
        super().__init__(run, node, slots=slots, length=length, dtype=dtype)

    def vector(self, slot: int) -> Vector:
        """Return a slot of this node, pinned if it is whole."""
        found = super().vector(slot)
        if slot not in self._kept and slot in self._whole:
            address = found.__array_interface__["data"][0]
            try:
                cuda.keep_in_place(address, found.nbytes)
            except OSError as error:
                log.warning("copies from the device are slow, because host memory cannot be pinned: %s", error)
                address = 0
            self._kept[slot] = address
        return found

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Allocate memory for these numbers of a slot, or raise an OSError."""
        super().allocate(slot, start, stop)
        if stop - start == self._length:
            self._whole.add(slot)

    def close(self) -> None:
        """Unpin and free all arenas; errors of a failed device, which has unpinned them, are reported elsewhere."""
        for address in self._kept.values():
            if address:
                with contextlib.suppress(cuda.CudaError):
                    cuda.let_move(address)
        self._kept.clear()
        super().close()


class PinnedMemory(Memory):
    """Host memory for vectors that are computed and used on a device.

    Numbers that travel as a narrower type are narrowed and widened on the device, so that fewer bytes are copied.
    """

    def shared(self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike) -> PinnedArena:
        """Return memory that other processes can open."""
        return PinnedArena(run, node, slots=slots, length=length, dtype=dtype)

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._room = torch.empty(0)  # the numbers on their way to the device

    def working(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """Return room on the device for a vector that is computed, and then packed elsewhere."""
        return as_vector(torch.empty(length, dtype=dtype_of(dtype), device=self._device))

    def gathered(self, chunks: Iterable[Vector], length: int, dtype: npt.DTypeLike) -> Vector:
        """Return the concatenated chunks on the device: each is copied while the next is read."""
        chunks = tuple(chunks)
        packed: list[Any] = [chunk for chunk in chunks if isinstance(chunk, Packed)]
        out: Any = torch.empty(length, dtype=dtype_of(dtype), device=self._device)
        with after_the_rest(out):
            if packed and len(packed) == len(chunks):
                landed: Any = torch.empty(sum(len(one.raw) for one in packed), dtype=torch.uint8, device=self._device)
                self._copy([one.raw for one in packed], landed)
                Packed(landed, sum(one.exact for one in packed), packed[0].narrow, dtype).give(out)
            else:
                self._copy(chunks, out)
        return as_vector(out)

    def _copy(self, chunks: Iterable[Vector], out: torch.Tensor) -> None:
        if len(self._room) != len(out) or self._room.dtype != out.dtype:
            self._room = torch.empty(len(out), dtype=out.dtype, pin_memory=self._device.type == "cuda")
        here, start = self._room.numpy(), 0
        for piece in _pieces(chunks, AT_ONCE // out.element_size()):
            stop = start + len(piece)
            convert(piece, here[start:stop])
            out[start:stop].copy_(self._room[start:stop], non_blocking=True)
            start = stop


def _pieces(chunks: Iterable[Vector], most: int) -> Iterator[Vector]:
    """Cut chunks into pieces of at most `most` numbers."""
    for chunk in chunks:
        for start in range(0, len(chunk), most):
            yield chunk[start : start + most]
