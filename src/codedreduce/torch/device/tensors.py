"""Vectors that are tensors: allocated, summed and checked in place.

Each thread computes on its own stream, concurrently with the script's thread. When a function returns, the device has
finished: messages then announce the result to other processes, and the device does not order its work by messages.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from codedreduce.packed import add_with  # imported first: packed vectors may consist of tensors
from codedreduce.torch.device.device_sums import add_up
from codedreduce.vectors import BLOCK_BYTES, Vector, convert_with, know

_streams = threading.local()


@contextlib.contextmanager
def beside(tensor: torch.Tensor) -> Iterator[None]:
    """Compute on this thread's own stream, and wait for the end."""
    if tensor.device.type != "cuda":
        yield
        return
    stream = own_stream(tensor.device)
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of this thread."""
    streams: dict[torch.device, torch.cuda.Stream] = vars(_streams).setdefault("own", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]


@contextlib.contextmanager
def after_the_rest(tensor: torch.Tensor) -> Iterator[None]:
    """As `beside`, but after the script's queued work, which may still read memory that the script has freed."""
    if tensor.device.type == "cuda":
        own_stream(tensor.device).wait_stream(torch.cuda.current_stream(tensor.device))
    with beside(tensor):
        yield


def dtype_of(dtype: npt.DTypeLike) -> torch.dtype:
    """Return PyTorch's type for one of NumPy's, bfloat16 included."""
    found: torch.dtype = getattr(torch, np.dtype(dtype).name)
    return found


class Tensors:
    """The vector operations for tensors."""

    def empty_like(self, vector: torch.Tensor) -> torch.Tensor:
        """Return room for a vector of the same length, type and place, which no queued work still reads."""
        with beside(vector):
            return torch.empty_like(vector)

    def empty_of(self, vector: torch.Tensor, length: int, dtype: npt.DTypeLike) -> torch.Tensor:
        """Return room for a vector of that length and type, in the same place."""
        with beside(vector):
            return torch.empty(length, dtype=dtype_of(dtype), device=vector.device)

    def copied(self, vector: torch.Tensor) -> torch.Tensor:
        """Copy a vector."""
        with beside(vector):
            return vector.clone()

    def round_off(self, vector: torch.Tensor, dtype: npt.DTypeLike) -> None:
        """Round its numbers to a narrower type, in place."""
        with beside(vector):
            vector.copy_(vector.to(dtype_of(dtype)))

    def viewed(self, vector: torch.Tensor, dtype: npt.DTypeLike) -> torch.Tensor:
        """Return the same bytes as numbers of another type."""
        return vector.view(dtype_of(dtype))

    def convert(self, numbers: Any, out: Any) -> None:
        """Write numbers to `out` in its type; the conversion runs on the device, before or after the copy."""
        source, target = tensor_of(numbers), tensor_of(out)
        with beside(target if target.device.type == "cuda" else source):
            target.copy_(source if source.dtype == target.dtype else source.to(target.dtype))

    def is_finite(self, vector: torch.Tensor) -> bool:
        """Whether all numbers are finite."""
        return bool(torch.isfinite(vector.sum()) or torch.isfinite(vector).all())

    def combine(
        self, vectors: Sequence[torch.Tensor], weights: Sequence[float] | None, out: torch.Tensor
    ) -> None:  # fmt: skip
        """Compute the weighted sum in the given order; products are rounded before they are added."""
        terms = [
            vector if weights is None or weights[index] == 1 else vector * weights[index]
            for index, vector in enumerate(vectors)
            if weights is None or weights[index] != 0
        ]
        with beside(out):
            add_up(terms, out)

    def on_host(self, vector: torch.Tensor) -> Vector:
        """Return its numbers in host memory."""
        with beside(vector):
            return as_vector(vector.detach().cpu().numpy())


def as_vector(tensor: Any) -> Vector:
    """Return a tensor as the protocol's type of vectors."""
    return tensor  # type: ignore[no-any-return]


def tensor_of(vector: Any) -> torch.Tensor:
    """Return a vector as a tensor, without a copy; NumPy has bfloat16 only by an extension."""
    if isinstance(vector, torch.Tensor):
        return vector
    if vector.dtype.name == "bfloat16":
        return from_array(vector.view(np.int16)).view(torch.bfloat16)
    return from_array(vector)


def from_array(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor. Memory of another process is read-only, and is not written to."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def convert_arrays(numbers: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Convert between float32 and bfloat16, several numbers at a time: three times as fast as one by one."""
    if not {numbers.dtype.name, out.dtype.name} <= {"float32", "bfloat16"} or not numbers.flags.aligned:
        np.copyto(out, numbers, casting="unsafe")
    else:
        tensor_of(out).copy_(tensor_of(numbers))


def add_arrays(vectors: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any], wide: np.dtype[Any]) -> None:
    """Sum arrays of any type block by block in a wide type; round once."""
    terms, target = [tensor_of(one) for one in vectors], tensor_of(out)
    block = BLOCK_BYTES // wide.itemsize
    sums, more = (torch.empty(min(block, len(target)), dtype=dtype_of(wide)) for _ in range(2))
    for start in range(0, len(target), block):
        where = slice(start, start + block)
        into = target[where]
        total, piece = sums[: len(into)], more[: len(into)]
        total.copy_(terms[0][where])
        for term in terms[1:]:
            total.add_(piece.copy_(term[where]))
        into.copy_(total)


know(torch.Tensor, Tensors())
convert_with(convert_arrays)
add_with(add_arrays)
