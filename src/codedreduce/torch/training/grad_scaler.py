"""Detects whether a `GradScaler` anywhere in the script scales the losses, while they are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.amp import GradScaler


@contextlib.contextmanager
def scalers_seen() -> Iterator[list[GradScaler]]:
    """Yield the list of enabled scalers that are used in here."""
    seen: list[GradScaler] = []

    def noted(of: Any) -> Any:
        def ask(scaler: GradScaler, *arguments: Any) -> Any:
            if scaler.is_enabled():
                seen.append(scaler)
            return of(scaler, *arguments)

        return ask

    kept = {name: getattr(GradScaler, name) for name in ("scale", "get_scale")}
    for name, method in kept.items():
        setattr(GradScaler, name, noted(method))
    try:
        yield seen
    finally:
        for name, method in kept.items():
            setattr(GradScaler, name, method)
