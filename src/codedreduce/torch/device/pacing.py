"""Keeps the host one pass ahead of a device: more queued passes would be wasted when another rank has done the work."""

from __future__ import annotations

import torch


class Pacing:
    """Limits the queue to two passes: after a new one is queued, the host waits for the one before it."""

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
