"""Artificial delays: real workers sleep for the times of the simulator's models."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from codedreduce.run.delays import Delays, Draw, parse_delays

#: Default duration of a worker's computation in seconds, for models with delays relative to it.
DEFAULT_UNIT = 0.05


@dataclass(frozen=True, kw_only=True)
class Injection:
    """The behaviour of an emulated host: its delays, and the minimum time for a sample."""

    delays: Delays
    sample_seconds: float = 0.0

    @classmethod
    def of(
        cls, delays: str | None, *, workers: int, seed: int, compute: float = 0.0, samples: int = 1
    ) -> Injection | None:
        """Parse delays; all ranks draw the same. `compute`: minimum seconds for the whole batch on one worker.

        >>> Injection.of(None, workers=4, seed=0) is None
        True
        """
        if delays is None and not compute:
            return None
        unit = compute / workers if compute else DEFAULT_UNIT
        model = parse_delays(delays or "calm", workers=workers, unit=unit, seed=seed)
        return cls(delays=model, sample_seconds=compute / samples)


class DelayInjector:
    """Delays one worker. A sleep ends early when the worker has to stop."""

    def __init__(self, injection: Injection, place: int) -> None:
        self._delays = injection.delays
        self._sample_seconds = injection.sample_seconds
        self._place = place  # index among the computing ranks
        self._drawn: tuple[int, Draw] | None = None
        self._stall = (0, 0.0)  # the last round with a start-up delay, and the end of that delay
        self._due = 0.0  # when the emulated host would have finished all requests

    def before(self, round_: int, asked_at: float, stop: threading.Event) -> None:
        """Sleep for the rest of the start-up delay of a round."""
        if self._stall[0] != round_:
            self._stall = (round_, asked_at + float(self._draw(round_).startup[self._place]))
        self._due = max(asked_at, self._stall[1])
        left = self._stall[1] - time.monotonic()
        if left > 0:
            stop.wait(left)

    def after(self, round_: int, samples: int, took: float, stop: threading.Event) -> None:
        """Sleep until the emulated host would have finished these samples.

        That host would have its own core: its time starts at the request, not when a core is free here.
        """
        slowness = float(self._draw(round_).slowness[self._place])
        if self._sample_seconds:
            self._due += samples * self._sample_seconds * slowness
        else:
            self._due = time.monotonic() + took * (slowness - 1)
        rest = self._due - time.monotonic()
        if rest > 0:
            stop.wait(rest)

    def left(self, round_: int) -> float:
        """Remaining seconds of the start-up delay of a round."""
        return max(0.0, self._stall[1] - time.monotonic()) if self._stall[0] == round_ else 0.0

    def _draw(self, round_: int) -> Draw:
        if self._drawn is None or self._drawn[0] != round_:
            self._drawn = (round_, self._delays.draw(round_))
        return self._drawn[1]
