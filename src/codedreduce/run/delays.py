"""Models of stragglers, and measured traces.

A draw gives a start-up delay in seconds and a factor of slowness for every worker of a round. It depends only on the
seed and the round, so that all schemes have the same delays.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Floats = npt.NDArray[np.float64]


class Draw(NamedTuple):
    """The delays of one round, worker 1 first."""

    startup: Floats
    slowness: Floats


class Delays(ABC):
    """A model of delay for `workers` workers; an uncoded computation of one takes `unit` seconds."""

    def __init__(self, workers: int, unit: float, seed: int) -> None:
        self.workers = workers
        self.unit = unit
        self.seed = seed

    @abstractmethod
    def draw(self, round_: int) -> Draw:
        """The delays of a round."""

    def lateness(self, round_: int) -> Floats:
        """Seconds by which the delay makes the result of each worker late."""
        draw = self.draw(round_)
        return draw.startup + (draw.slowness - 1) * self.unit

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def _none(self) -> Draw:
        return Draw(np.zeros(self.workers), np.ones(self.workers))


class Calm(Delays):
    """Fault-free: no worker is late."""

    def draw(self, round_: int) -> Draw:
        """No delay."""
        return self._none()


class Exponential(Delays):
    """The paper's shifted exponential: a computation takes `unit` seconds plus an exponential time with that mean."""

    def draw(self, round_: int) -> Draw:
        """Independent delays with mean `unit`."""
        return Draw(self._random(round_).exponential(self.unit, self.workers), np.ones(self.workers))


class Bursty(Delays):
    """Transient and clustered, like cold starts: in a quarter of rounds 5 to 12 % of workers take 3x to 12x as long."""

    def draw(self, round_: int) -> Draw:
        """Usually no delay; sometimes a few large ones."""
        random = self._random(round_)
        startup, slowness = self._none()
        if random.random() < 0.25:
            late = random.random(self.workers) < random.uniform(0.05, 0.12)
            startup[late] = self.unit * random.uniform(2, 11, int(late.sum()))
        return Draw(startup, slowness)


class Sticky(Delays):
    """Persistent, like exhausted CPU credit: from some round on, one worker in ten stays 8x to 13x slow."""

    def draw(self, round_: int) -> Draw:
        """The same workers in each round, each from its own first round on."""
        random = self._random(0)
        startup, slowness = self._none()
        unlucky = random.permutation(self.workers)[: max(1, self.workers // 10)]
        onset = random.integers(2, 60, len(unlucky))
        factor = random.uniform(8, 13, len(unlucky))
        slowness[unlucky] = np.where(round_ >= onset, factor, 1.0)
        return Draw(startup, slowness)


class Stalls(Delays):
    """Each worker, in each round, stalls for some seconds with a probability."""

    def __init__(self, workers: int, unit: float, seed: int, *, probability: float, seconds: float) -> None:
        super().__init__(workers, unit, seed)
        self.probability = probability
        self.seconds = seconds

    def draw(self, round_: int) -> Draw:
        """Independent stalls."""
        startup, slowness = self._none()
        startup[self._random(round_).random(self.workers) < self.probability] = self.seconds
        return Draw(startup, slowness)


class Rotating(Delays):
    """In every round one worker stalls for some seconds, a different one each time."""

    def __init__(self, workers: int, unit: float, seed: int, *, seconds: float) -> None:
        super().__init__(workers, unit, seed)
        self.seconds = seconds
        self._order = self._random(0).permutation(workers)

    def draw(self, round_: int) -> Draw:
        """The next worker in a fixed random order."""
        startup, slowness = self._none()
        startup[self._order[round_ % self.workers]] = self.seconds
        return Draw(startup, slowness)


class OneWorker(Delays):
    """One worker, always the same, stalls for some seconds in each round with a probability."""

    def __init__(self, workers: int, unit: float, seed: int, *, node: int, probability: float, seconds: float) -> None:
        super().__init__(workers, unit, seed)
        if not 1 <= node <= workers:
            raise UsageError(f"there is no worker {node} to delay: workers are 1 to {workers}")
        self.node = node
        self.probability = probability
        self.seconds = seconds

    def draw(self, round_: int) -> Draw:
        """A stall of this worker, or none."""
        startup, slowness = self._none()
        if self._random(round_).random() < self.probability:
            startup[self.node - 1] = self.seconds
        return Draw(startup, slowness)


class Trace(Delays):
    """Measured latencies, workers x rounds, scaled so that their median is `unit`.

    Whole rounds are drawn and rows permuted; a trace with fewer rows than workers is drawn several times. Latency above
    the median is a start-up delay, since it hardly depends on the load; below it the worker is faster.
    """

    def __init__(self, workers: int, unit: float, seed: int, *, latencies: Floats) -> None:
        super().__init__(workers, unit, seed)
        median = float(np.nanmedian(latencies))
        self._relative = np.nan_to_num(latencies, nan=median) / median

    def draw(self, round_: int) -> Draw:
        """One measured round, or several if the trace has too few workers."""
        random = self._random(round_)
        rows, rounds = self._relative.shape
        copies = -(-self.workers // rows)
        drawn = [random.permutation(self._relative[:, random.integers(rounds)]) for _ in range(copies)]
        relative = np.concatenate(drawn)[: self.workers]
        return Draw(self.unit * np.maximum(relative - 1, 0), np.clip(relative, 0.05, 1.0))


#: A decimal number.
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"

MODELS: dict[str, type[Delays]] = {"calm": Calm, "exponential": Exponential, "bursty": Bursty, "sticky": Sticky}


def parse_delays(text: str, *, workers: int, unit: float, seed: int) -> Delays:
    """A delay model from `calm`, `exponential`, `bursty`, `sticky`, `stalls:P:SECONDS`, `one:SECONDS` (each in turn),
    `worker:NODE:P:SECONDS`, `rank:RANK:P:SECONDS`, `FILE.npz:key`.

    Workers of trees and rings are counted from 1, ranks of stripes from 0: `worker:3` and `rank:2` are the same
    computing process in every scheme, so that all schemes can have the same delays.

    >>> parse_delays("stalls:0.05:2s", workers=84, unit=0.24, seed=0).seconds
    2.0
    """
    if text in MODELS:
        return MODELS[text](workers, unit, seed)
    if match := re.fullmatch(rf"stalls:({_NUMBER}):({_NUMBER})s?", text):
        probability, seconds = _probability(match[1], text), float(match[2])
        return Stalls(workers, unit, seed, probability=probability, seconds=seconds)
    if match := re.fullmatch(rf"(worker|rank):(\d{{1,18}}):({_NUMBER}):({_NUMBER})s?", text):
        node, probability, seconds = int(match[2]), _probability(match[3], text), float(match[4])
        if match[1] == "rank":
            if node >= workers:
                raise UsageError(f"there is no rank {node} to delay: ranks are 0 to {workers - 1}")
            node += 1
        return OneWorker(workers, unit, seed, node=node, probability=probability, seconds=seconds)
    if match := re.fullmatch(rf"one:({_NUMBER})s?", text):
        return Rotating(workers, unit, seed, seconds=float(match[1]))
    if ".npz" in text:
        return Trace(workers, unit, seed, latencies=load_trace(text))
    known = ", ".join([*MODELS, "stalls:P:SECONDS", "one:SECONDS", "worker:NODE:P:SECONDS", "rank:RANK:P:SECONDS"])
    raise UsageError(f"unknown delays {text!r}: use one of {known} or FILE.npz:key")


def _probability(number: str, text: str) -> float:
    if not 0 <= float(number) <= 1:
        raise UsageError(f"{text!r}: the probability {number} is not between 0 and 1")
    return float(number)


def load_trace(text: str) -> Floats:
    """Load and check the matrix of `FILE.npz:key`."""
    name, _, key = text.rpartition(":") if not text.endswith(".npz") else (text, "", "")
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"there is no trace {name!r}; delays from a trace are written FILE.npz:key")
    try:
        if not zipfile.is_zipfile(path):
            raise UsageError(f"{path.name} is not a readable .npz archive: it is no archive")
        with np.load(path) as archive:
            keys = list(archive.keys())
            if not key and len(keys) == 1:
                key = keys[0]
            if key not in keys:
                raise UsageError(f"{path.name} has no {key!r}; write {path.name}:KEY with one of {', '.join(keys)}")
            found = archive[key]
            if found.dtype.kind not in "fiu":
                raise UsageError(f"a trace holds positive seconds; {path.name}:{key} holds {found.dtype}")
            latencies = np.asarray(found, dtype=np.float64)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path.name} is not a readable .npz archive: {error}") from None
    if latencies.ndim != 2 or 0 in latencies.shape:
        raise UsageError(f"a trace is a matrix of workers x rounds; {path.name}:{key} has the shape {latencies.shape}")
    known = latencies[~np.isnan(latencies)]
    if not known.size or np.isinf(known).any() or not np.median(known) > 0 or known.min() < 0:
        raise UsageError(f"a trace holds positive seconds; {path.name}:{key} does not")
    return latencies
