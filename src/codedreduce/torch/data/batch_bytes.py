"""Packs a batch into bytes, to send it to another process.

Torch sends a tensor as shared memory: the receiver requests a descriptor over a new connection, authenticated by a key.
That is good for long tensors. For short ones it takes longer than the rest of a small pass, and a unit has several
passes. So short tensors are copied into the bytes.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

#: The most bytes of a tensor that is copied.
SHORT = 2**20


class _Packing(ForkingPickler):
    """Torch's pickler, except for short tensors."""

    def reducer_override(self, thing: Any) -> Any:
        """Return how to pickle a short tensor, or NotImplemented for the usual way."""
        if type(thing) is not torch.Tensor or not _goes_as_it_is(thing):
            return NotImplemented
        return _again, (thing.flatten().view(torch.uint8).numpy().tobytes(), thing.dtype, tuple(thing.shape))


def _goes_as_it_is(tensor: torch.Tensor) -> bool:
    """Whether a tensor is short, plain and contiguous: another memory layout may change the bits of a result."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    return (
        is_plain and not tensor.requires_grad and tensor.is_contiguous() and not tensor.is_conj()
        and not tensor.is_neg() and 0 < tensor.nbytes <= SHORT
    )  # fmt: skip


def _again(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor in its own memory, with torch's alignment: other alignments may change the bits of a result."""
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).clone()


def packed(batch: Any) -> bytes:
    """Pack a batch into bytes."""
    into = io.BytesIO()
    _Packing(into, pickle.HIGHEST_PROTOCOL).dump(batch)
    return into.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the batch that was packed into these bytes."""
    return ForkingPickler.loads(data)
