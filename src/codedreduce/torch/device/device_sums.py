"""Sums of several vectors on a device, in one pass over them: each number is read once and written once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

#: The pairs of types that kernels support: that of all vectors, and that of their sum.
FUSED = {
    (torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
}  # fmt: skip


def add_up(vectors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Compute out = ((v0 + v1) + v2) + ..., elementwise; `out` may be the first vector.

    Narrow numbers are summed as float32, and rounded once.
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
            total.add_(vector.to(torch.float32))  # adding bfloat16 directly takes ten times as long
        out.copy_(total)
        return
    torch.add(vectors[0], vectors[1], out=out)
    for vector in vectors[2:]:
        out.add_(vector)


@cache
def _fused() -> Any:
    """Return a kernel that adds in one pass, if its compiler is installed (Triton comes with PyTorch for GPUs)."""
    try:
        from codedreduce.torch.device.kernels import add_all
    except ImportError:
        return None
    return add_all
