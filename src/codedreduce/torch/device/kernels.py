"""Kernels for GPUs, in Triton."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

#: The number of elements that a group of threads adds at a time.
BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _add_all(addresses, like, out, length, WIDE: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < length
    total = tl.load(tl.load(addresses).to(like.dtype) + places, mask=inside).to(WIDE)
    for number in tl.static_range(1, COUNT):
        total += tl.load(tl.load(addresses + number).to(like.dtype) + places, mask=inside).to(WIDE)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=inside)


def add_all(vectors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Add vectors of one type in the given order, with sums in registers; narrow sums are rounded at the end."""
    addresses = torch.tensor([one.data_ptr() for one in vectors], dtype=torch.int64).to(out.device)
    grid = (triton.cdiv(out.numel(), BLOCK),)
    with torch.cuda.device(out.device) if out.is_cuda else contextlib.nullcontext():
        wide = tl.float64 if vectors[0].dtype == torch.float64 else tl.float32
        _add_all[grid](addresses, vectors[0], out, out.numel(), WIDE=wide, COUNT=len(vectors), BLOCK=BLOCK)
