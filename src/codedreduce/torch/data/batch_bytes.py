"""A batch as bytes that another process makes a batch of again.

Torch sends a tensor as memory that both processes have: the one that takes it asks the other for a descriptor, over a
connection that is made for that and proved by a key. That is right for long tensors. For short ones it takes longer
than all the rest of a small pass, and a unit is computed in several: so these go as they are, in the bytes themselves.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

#: Bytes of a tensor up to which it goes as it is.
SHORT = 2**20


class _Packing(ForkingPickler):
    """Torch's way, but for short tensors."""

    def reducer_override(self, thing: Any) -> Any:
        """How a thing is written, if it is not written as ever."""
        if type(thing) is not torch.Tensor or not _goes_as_it_is(thing):
            return NotImplemented
        return _again, (thing.flatten().view(torch.uint8).numpy().tobytes(), thing.dtype, tuple(thing.shape))


def _goes_as_it_is(tensor: torch.Tensor) -> bool:
    """Short, and nothing but numbers in their order: how a tensor lies may change the bits of what is computed."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    return (
        is_plain and not tensor.requires_grad and tensor.is_contiguous() and not tensor.is_conj()
        and not tensor.is_neg() and 0 < tensor.nbytes <= SHORT
    )  # fmt: skip


def _again(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor in memory of its own, which begins where torch's own begins: that, too, may change bits."""
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).clone()


def packed(batch: Any) -> bytes:
    """A batch as bytes."""
    into = io.BytesIO()
    _Packing(into, pickle.HIGHEST_PROTOCOL).dump(batch)
    return into.getvalue()


def unpacked(data: bytes) -> Any:
    """The batch that was made into these bytes."""
    return ForkingPickler.loads(data)
