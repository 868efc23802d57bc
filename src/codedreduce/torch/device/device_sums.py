"""Sums of several vectors on a device, in one pass over them: each number is read once and written once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

#: What kernels are made for: the type of all vectors, and that of their sum.
FUSED = {
    (torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
}  # fmt: skip


def add_up(vectors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Out = ((v0 + v1) + v2) + ..., number by number; `out` may be the first.

    Numbers that are narrow are added up as float32, and rounded once.
    """
    if not vectors:
        out.zero_()
        return
    if len(vectors) == 1:
        if vectors[0].data_ptr() != out.data_ptr():
            out.copy_(vectors[0])
        return
    is_narrow = any(one.dtype == torch.bfloat16 for one in (out, *vectors))
    is_alike = all(one.dtype == vectors[0].dtype for one in vectors)
    fits = is_alike and (vectors[0].dtype, out.dtype) in FUSED and (is_narrow or len(vectors) > 2)
    fused = _fused() if out.device.type == "cuda" and fits else None
    if fused is not None:
        fused(vectors, out)
        return
    if is_narrow:
        total = vectors[0].to(torch.float32, copy=True)
        for vector in vectors[1:]:
            total.add_(vector.to(torch.float32))  # added as it is, a narrow number takes ten times as long
        out.copy_(total)
        return
    torch.add(vectors[0], vectors[1], out=out)
    for vector in vectors[2:]:
        out.add_(vector)


@cache
def _fused() -> Any:
    """A kernel that does it in one pass, where there is a compiler for it (Triton comes with PyTorch for GPUs)."""
    try:
        from codedreduce.torch.device.kernels import add_all
    except ImportError:
        return None
    return add_all
