"""How benchmarks here measure: both sides in one run, interleaved, medians of repeats."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def interleaved(repeats: int, *sides: Callable[[], object]) -> list[list[float]]:
    """Seconds of each side in each repeat, the sides taking turns so that noise meets all of them alike."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, log in zip(sides, seconds, strict=True):
            begin = time.perf_counter()
            side()
            log.append(time.perf_counter() - begin)
    return seconds


def ratio(one: list[float], other: list[float]) -> float:
    """The median over repeats of one / other."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def save(path: Path | None, results: dict[str, Any], *, quietly: bool = False) -> None:
    """Write results with the machine they were measured on."""
    if path is None:
        return
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "processor": platform.machine()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")
    if not quietly:
        print(f"wrote {path}")
