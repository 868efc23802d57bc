"""Gradients on their way to a vector: summed on the device that computes them, and copied once; one pass at a time."""

from __future__ import annotations

import torch

from codedreduce.torch.device import tensors as _  # noqa: F401 - registers the operations on tensors
from codedreduce.torch.model.layout import AnyVector, Layout, as_tensor
from codedreduce.vectors import is_finite


class StagedGradients:
    """Gradients that were computed for a vector and are not in it yet.

    A vector on the host is written when its work is complete; until then pieces are summed on the device. A vector on
    the device is written at once; others read it when the device has finished.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._room: torch.Tensor | None = None
        self._is_staged = self._is_more = False
        self._copied = 0  # the address that the room was copied to

    def write(self, out: AnyVector, totals: torch.Tensor) -> None:
        """Write the parameters' gradients to `out`."""
        self._layout.read_gradients(self._target(out), totals)
        self._is_more = False

    def add(self, out: AnyVector, totals: torch.Tensor) -> None:
        """Add the parameters' gradients to `out`."""
        is_more = not self._is_staged
        target = self._target(out)
        if target is out or not is_more:
            self._layout.add_gradients(target, totals)
        else:
            self._layout.read_gradients(target, totals)
            self._is_more = True

    def settle(self, out: AnyVector) -> None:
        """Complete all writes to `out`."""
        if self._is_staged:
            assert self._room is not None
            flat = as_tensor(out)
            if self._is_more:
                flat.add_(self._room.to(flat.device))
            else:
                flat.copy_(self._room, non_blocking=True)
            self._copied = 0 if self._is_more else flat.data_ptr()
            self._is_staged = self._is_more = False
        if self._layout.device.type == "cuda":
            torch.cuda.current_stream(self._layout.device).synchronize()

    def is_finite(self, out: AnyVector) -> bool:
        """Whether all numbers in `out`, which was settled, are finite; checked on the device where possible."""
        return is_finite(self._room if self._copied == as_tensor(out).data_ptr() else out)  # type: ignore[arg-type]

    def _target(self, out: AnyVector) -> AnyVector:
        device = self._layout.device
        if device.type == "cpu" or as_tensor(out).device == device:
            return out
        if self._room is None:
            self._room = torch.empty(self._layout.length, dtype=as_tensor(out).dtype, device=device)
        self._is_staged = True
        return self._room


class Pacing:
    """Keeps the host one pass ahead of a device: after a new pass is queued, it waits for the one before it.

    More queued passes would be wasted when another rank has done the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_used = device.type == "cuda"
        self._last: torch.cuda.Event | None = None

    def queued(self) -> None:
        """Record that a pass was queued, and wait for the pass before it, so that the caller can check for a stop."""
        if not self._is_used:
            return
        before, self._last = self._last, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._last.record()
        if before is not None:
            before.synchronize()
