"""How far the host is ahead of a device: one pass. More would be queued in vain when somebody else has done it."""

from __future__ import annotations

import torch


class Pacing:
    """The pass that was queued last. Who queues another waits for the one before it, and the device has work."""

    def __init__(self, device: torch.device) -> None:
        self._is_used = device.type == "cuda"
        self._last: torch.cuda.Event | None = None

    def queued(self) -> None:
        """A pass is queued: when the one before it is through, somebody may look up."""
        if not self._is_used:
            return
        before, self._last = self._last, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._last.record()
        if before is not None:
            before.synchronize()
