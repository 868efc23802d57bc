"""Delays made on purpose: the simulator's models, slept through by real workers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from codedreduce.run.delays import Delays, Draw, parse_delays

#: Seconds that a worker's computation is taken to last when delays are drawn relative to it and nothing else is said.
DEFAULT_UNIT = 0.05


@dataclass(frozen=True, kw_only=True)
class Injection:
    """What is made of a machine: how late it is, and how long a sample takes at least."""

    delays: Delays
    sample_seconds: float = 0.0

    @classmethod
    def of(
        cls, delays: str | None, *, workers: int, seed: int, compute: float = 0.0, samples: int = 1
    ) -> Injection | None:
        """Delays as people write them, drawn alike by everyone; `compute`: seconds the batch takes one worker at least.

        >>> Injection.of(None, workers=4, seed=0) is None
        True
        """
        if delays is None and not compute:
            return None
        unit = compute / workers if compute else DEFAULT_UNIT
        model = parse_delays(delays or "calm", workers=workers, unit=unit, seed=seed)
        return cls(delays=model, sample_seconds=compute / samples)


class DelayInjector:
    """Makes one worker as late as it is told to be. A sleep ends early when the worker is told to stop."""

    def __init__(self, injection: Injection, place: int) -> None:
        self._delays = injection.delays
        self._sample_seconds = injection.sample_seconds
        self._place = place  # among those that compute
        self._drawn: tuple[int, Draw] | None = None
        self._stall = (0, 0.0)  # the round whose start-up delay was met, and when it ends
        self._due = 0.0  # when the machine to be played would have done all it was asked for

    def before(self, round_: int, asked_at: float, stop: threading.Event) -> None:
        """Sleep through the start-up delay of a round, or what is left of it."""
        if self._stall[0] != round_:
            self._stall = (round_, asked_at + float(self._draw(round_).startup[self._place]))
        self._due = max(asked_at, self._stall[1])
        left = self._stall[1] - time.monotonic()
        if left > 0:
            stop.wait(left)

    def after(self, round_: int, samples: int, took: float, stop: threading.Event) -> None:
        """Sleep as much longer as the machine to be played would have computed.

        It would have had a core of its own: its time runs from when it was asked, not from when it got one here.
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
        """Seconds of a round's start-up delay that were not slept through."""
        return max(0.0, self._stall[1] - time.monotonic()) if self._stall[0] == round_ else 0.0

    def _draw(self, round_: int) -> Draw:
        if self._drawn is None or self._drawn[0] != round_:
            self._drawn = (round_, self._delays.draw(round_))
        return self._drawn[1]
