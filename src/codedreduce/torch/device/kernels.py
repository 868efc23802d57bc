"""Kernels for GPUs, in Triton."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

#: Numbers that a group of threads adds at a time.
BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _add_all(addresses, out, length, COUNT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < length
    total = tl.load(tl.load(addresses).to(out.dtype) + places, mask=inside)
    for number in tl.static_range(1, COUNT):
        total += tl.load(tl.load(addresses + number).to(out.dtype) + places, mask=inside)
    tl.store(out + places, total, mask=inside)


def add_all(vectors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Add vectors in the order given, each number in a register."""
    addresses = torch.tensor([one.data_ptr() for one in vectors], dtype=torch.int64).to(out.device)
    grid = (triton.cdiv(out.numel(), BLOCK),)
    with torch.cuda.device(out.device) if out.is_cuda else contextlib.nullcontext():
        _add_all[grid](addresses, out, out.numel(), COUNT=len(vectors), BLOCK=BLOCK)
