"""What a comparison gives: how each scheme did, what happened in each run, and the delays that all of them met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from codedreduce.run.delays import Delays
from codedreduce.run.journal import Interval, Journal

Floats = npt.NDArray[np.float64]


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one scheme did, in whatever world; losses where something was trained."""

    scheme: str
    name: str
    mean: float
    median: float
    p95: float
    p99: float
    work: float
    max_work: float
    busiest_bytes: float | None
    max_error: float
    bit_identical: bool
    round_seconds: tuple[float, ...]
    final_loss: float | None = None
    saved: float | None = None
    losses: tuple[float, ...] | None = None


class SchemeRun(NamedTuple):
    """A scheme's result, and all that happened on the way to it."""

    result: Result
    journal: Journal


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Schemes side by side; `delays` says how late each worker was made, rounds x workers.

    `stopped_by` is the error or the interrupt after which the remaining schemes were not run.
    """

    runs: tuple[SchemeRun, ...]
    delays: Floats
    stopped_by: BaseException | None = None

    @property
    def results(self) -> list[Result]:
        """How the schemes did, in the order they ran."""
        return [run.result for run in self.runs]

    @property
    def shown(self) -> int:
        """The round to look at."""
        return shown_round(self.delays)

    def timelines(self) -> dict[str, list[Interval]]:
        """What ranks did in that round, by scheme: counted from 0, also in a ring, whose nodes are counted from 1."""
        shown = self.shown
        return {
            run.result.scheme: [
                interval._replace(node=interval.node - (run.result.name == "ring"))
                for interval in run.journal.intervals
                if interval.round == shown
            ]
            for run in self.runs
        }


def run_in_turn(
    names: Iterable[str], run: Callable[[str], SchemeRun]
) -> tuple[tuple[SchemeRun, ...], BaseException | None]:
    """Run schemes one after the other; what is finished is kept if one of them fails or is interrupted."""
    finished: list[SchemeRun] = []
    try:
        for name in names:
            finished.append(run(name))
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return tuple(finished), error
    return tuple(finished), None


def lateness(delays: Delays | None, rounds: int, workers: int) -> Floats:
    """How late each worker is made in each round, rounds x workers."""
    if delays is None:
        return np.zeros((rounds, workers))
    return np.array([delays.lateness(round_) for round_ in range(1, rounds + 1)])


def shown_round(delays: Floats) -> int:
    """A round with a straggler in it, if there is one: the upper tenth by the worst delay.

    >>> shown_round(np.array([[0, 0], [9, 0], [0, 1], [0, 0]]))
    3
    """
    order = np.argsort(delays.max(axis=1), kind="stable")
    return 1 + int(order[(9 * (len(order) - 1)) // 10])


def round_times(seconds: Sequence[float] | Floats) -> dict[str, Any]:
    """Round times summed up: the mean, and how the slow ones are."""
    percentiles = {name: float(np.percentile(seconds, p)) for name, p in (("median", 50), ("p95", 95), ("p99", 99))}
    return {"mean": float(np.mean(seconds)), **percentiles}


def summed_up(seconds: Sequence[float] | Floats, work: Sequence[float] | Floats) -> dict[str, Any]:
    """What a `Result` says of the time and the work of rounds."""
    found = {"round_seconds": tuple(map(float, seconds)), "work": float(np.mean(work)), "max_work": float(np.max(work))}
    return {**round_times(seconds), **found}


def work_by_round(intervals: Iterable[Interval], *, rounds: int, samples: int) -> Floats:
    """How many times the batch was computed in each round."""
    work = np.zeros(rounds)
    for interval in intervals:
        if interval.round <= rounds:
            work[interval.round - 1] += interval.samples / samples
    return work
