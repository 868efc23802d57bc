"""Chooses where vectors of a GPU lie: on the GPU, if all processes of the run can read them there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from codedreduce.memory.memory import Memory
from codedreduce.run.agreement import Run
from codedreduce.schemes import StripedPlan
from codedreduce.torch.device import cuda
from codedreduce.torch.device.device_arena import DeviceArena
from codedreduce.torch.device.pinned import PinnedMemory
from codedreduce.torch.device.tensors import after_the_rest, as_vector, dtype_of
from codedreduce.vectors import Vector, convert

log = logging.getLogger("codedreduce")

#: With 0, vectors travel through the host although they could stay on the device. With 1, all processes have the same
#: device, where that cannot be detected.
SAID = "CODEDREDUCE_DEVICE_MEMORY"


class DeviceMemory(Memory):
    """The memory of a GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def shared(self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike) -> DeviceArena:
        """Return memory that other processes open by a handle."""
        return DeviceArena(run, node, slots=slots, chunks=chunks, length=length, dtype=dtype, device=self.device)

    def empty(self, length: int, dtype: npt.DTypeLike) -> Vector:
        """Return room for a vector that only this process reads."""
        return as_vector(torch.empty(length, dtype=dtype_of(dtype), device=self.device))

    def gathered(self, chunks: Iterable[Vector], length: int, dtype: npt.DTypeLike) -> Vector:
        """Return the concatenated chunks, after all of them were read."""
        out: Any = self.empty(length, dtype)
        start = 0
        with after_the_rest(out):
            for chunk in chunks:
                convert(chunk, out[start : start + len(chunk)])
                start += len(chunk)
        return as_vector(out)

    def from_host(self, data: npt.NDArray[Any]) -> Vector:
        """Copy received numbers to the device."""
        return as_vector(torch.from_numpy(np.array(data)).to(self.device))


def memory_alone(device: torch.device | None) -> Memory | None:
    """Return the device's memory, for a process without others; None without a GPU."""
    return DeviceMemory(device) if device is not None and device.type == "cuda" else None


def memory_for(device: torch.device | None, run: Run) -> Memory | None:
    """Return the device's memory if all members can read it, else the host's."""
    if device is None or device.type != "cuda":
        return None
    why = _why_not(device, run)
    if why:
        log.info("vectors travel through host memory: %s", why)
        return PinnedMemory(device) if isinstance(run.plan, StripedPlan) else None
    log.info("vectors stay on %s, which all ranks can read", torch.cuda.get_device_name(device))
    return DeviceMemory(device)


def _why_not(device: torch.device, run: Run) -> str:
    if not isinstance(run.plan, StripedPlan):
        return "a tree requires that"
    said = os.environ.get(SAID)
    if said == "0":
        return f"{SAID} is 0"
    if said != "1" and (torch.cuda.device_count() != 1 or "CUDA_VISIBLE_DEVICES" in os.environ):
        return f"ranks may have different GPUs; if all share one, set {SAID}=1"
    if not run.shares_memory:
        return "the run has several hosts"
    try:
        address = cuda.allocate(1 << 21, device)
        try:
            cuda.handle_of(address)
        finally:
            cuda.free(address)
    except OSError as error:
        return f"the device cannot share its memory ({error})"
    return ""
