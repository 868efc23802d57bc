"""Virtual time: a heap of callbacks, ordered by (time, priority, sequence), so that runs are reproducible."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Kernel:
    """Runs callbacks in the order of their virtual times.

    >>> kernel, seen = Kernel(), []
    >>> kernel.at(2.0, seen.append, "later"); kernel.at(1.0, seen.append, "sooner")
    >>> kernel.run(); seen, kernel.now
    (['sooner', 'later'], 2.0)
    """

    __slots__ = ("_heap", "_sequence", "now", "steps")

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time: float, callback: Callable[..., None], *arguments: Any, priority: int = 1) -> None:
        """Schedule a callback at a time; among equal times, lower priorities first, then in the order of the calls."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time, self.now), priority, self._sequence, callback, arguments))

    def step(self) -> bool:
        """Run the next callback. Return whether there was one."""
        if not self._heap:
            return False
        self.now, _, _, callback, arguments = heapq.heappop(self._heap)
        self.steps += 1
        callback(*arguments)
        return True

    def run(self, until: Callable[[], bool] | None = None, *, latest: float = float("inf")) -> None:
        """Run until the condition holds, no callback is left, or a time is past."""
        while not (until is not None and until()) and self._heap and self._heap[0][0] <= latest:
            self.step()
