"""What is known of rounds, as metrics of Ray's: its dashboard and Prometheus show them.

At most ten rounds a second are told of; rounds and seconds that were saved are counted whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from codedreduce.process.telling import What, Word

#: Seconds of a round, where histograms have their borders.
BORDERS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]

#: What tells runs apart: the number of Ray's job, and one of its own.
RUN = "run"


class Metrics:
    """Those of one run, kept by the process that launched it."""

    def __init__(self, tags: Mapping[str, str]) -> None:
        import ray
        from ray.util.metrics import Counter, Gauge, Histogram

        job = ray.get_runtime_context().get_job_id()
        self._tags = {RUN: f"{job}-{uuid.uuid4().hex[:6]}", **tags}
        keys = tuple(self._tags)
        self._rounds = Counter("codedreduce_rounds", "Rounds that are over", keys)
        self._saved = Counter("codedreduce_seconds_saved", "Seconds that were not waited for late ranks", keys)
        late = "Rounds told of in which a rank's work was done by others"
        self._late = Counter("codedreduce_late", late, (*keys, "rank"))
        self._seconds = Histogram("codedreduce_round_seconds", "Seconds of the rounds told of", BORDERS, keys)
        self._loss = Gauge("codedreduce_loss", "Of the latest round", keys)
        self._round = Gauge("codedreduce_round", "The latest round", keys)
        self._before: dict[str, float] = {"round": 0.0, "saved": 0.0}

    def hear(self, word: Word) -> None:
        """Of what a rank tells, take the rounds."""
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
        """What came to it; another rank that leads may begin to count anew."""
        before, self._before[name] = self._before[name], now
        if now > before:
            counter.inc(now - before, self._tags)
