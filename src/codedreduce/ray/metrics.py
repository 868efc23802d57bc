"""Rounds as Ray's metrics: its dashboard and Prometheus show them.

Ranks report at most ten rounds per second. The counts of rounds and of saved seconds include all rounds.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from codedreduce.process.telling import What, Word

#: The borders of the histogram of round times, in seconds.
BORDERS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]

#: The tag that identifies a run: the number of Ray's job, and a random suffix.
RUN = "run"


class Metrics:
    """The metrics of one run, in the process of its launcher."""

    def __init__(self) -> None:
        import ray
        from ray.util.metrics import Counter, Gauge, Histogram

        job = ray.get_runtime_context().get_job_id()
        self._tags = {RUN: f"{job}-{uuid.uuid4().hex[:6]}"}
        keys = tuple(self._tags)
        self._rounds = Counter("codedreduce_rounds", "Rounds that are over", keys)
        self._saved = Counter("codedreduce_seconds_saved", "Seconds saved by not waiting for late ranks", keys)
        late = "Reported rounds in which other ranks did the work of this rank"
        self._late = Counter("codedreduce_late", late, (*keys, "rank"))
        self._seconds = Histogram("codedreduce_round_seconds", "Seconds of each reported round", BORDERS, keys)
        self._loss = Gauge("codedreduce_loss", "The loss of the latest round", keys)
        self._round = Gauge("codedreduce_round", "The latest round", keys)
        self._before: dict[str, float] = {"round": 0.0, "saved": 0.0}

    def hear(self, word: Word) -> None:
        """Update the metrics from a rank's report of a round; ignore other reports."""
        if word.what is not What.STEPS:
            return
        step: Mapping[str, Any] = word.step
        self._count(self._rounds, "round", float(step["round"]))
        self._count(self._saved, "saved", float(step["saved"]))
        self._seconds.observe(float(step["seconds"]), self._tags)
        self._loss.set(float(step["loss"]), self._tags)
        self._round.set(float(step["round"]), self._tags)
        for rank in step.get("late", []):
            self._late.inc(1.0, {**self._tags, "rank": str(rank)})

    def _count(self, counter: Any, name: str, now: float) -> None:
        """Add the increase since the last report; a new leader may count from 0 again."""
        before, self._before[name] = self._before[name], now
        if now > before:
            counter.inc(now - before, self._tags)
