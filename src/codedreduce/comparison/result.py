"""The outcome of a comparison: the result and the journal of each scheme, and the delays that they share."""

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
    """The result of one scheme, simulated or real; with losses if it trained a model."""

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
    """A scheme's result, and the journal of its run."""

    result: Result
    journal: Journal


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs of all schemes. `delays` has the injected delay of each worker, rounds x workers.

    `stopped_by` is the error or interrupt that ended the comparison before the remaining schemes ran.
    """

    runs: tuple[SchemeRun, ...]
    delays: Floats
    stopped_by: BaseException | None = None

    @property
    def results(self) -> list[Result]:
        """The results of the schemes, in the order of the runs."""
        return [run.result for run in self.runs]

    @property
    def shown(self) -> int:
        """The round that the report shows."""
        return shown_round(self.delays)

    def timelines(self) -> dict[str, list[Interval]]:
        """The activities of ranks in the shown round, by scheme. Ranks begin at 0; the nodes of a ring begin at 1."""
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
    """Run schemes one after the other. Finished runs stay if a later one fails or is interrupted."""
    finished: list[SchemeRun] = []
    try:
        for name in names:
            finished.append(run(name))
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return tuple(finished), error
    return tuple(finished), None


def lateness(delays: Delays | None, rounds: int, workers: int) -> Floats:
    """The injected delay of each worker in each round, rounds x workers."""
    if delays is None:
        return np.zeros((rounds, workers))
    return np.array([delays.lateness(round_) for round_ in range(1, rounds + 1)])


def shown_round(delays: Floats) -> int:
    """A round with a straggler, if there is one: the 90th percentile by the worst delay.

    >>> shown_round(np.array([[0, 0], [9, 0], [0, 1], [0, 0]]))
    3
    """
    order = np.argsort(delays.max(axis=1), kind="stable")
    return 1 + int(order[(9 * (len(order) - 1)) // 10])


def round_times(seconds: Sequence[float] | Floats) -> dict[str, Any]:
    """Statistics of round times: the mean and percentiles."""
    percentiles = {name: float(np.percentile(seconds, p)) for name, p in (("median", 50), ("p95", 95), ("p99", 99))}
    return {"mean": float(np.mean(seconds)), **percentiles}


def summed_up(seconds: Sequence[float] | Floats, work: Sequence[float] | Floats) -> dict[str, Any]:
    """The fields of a `Result` for the time and the work of rounds."""
    found = {"round_seconds": tuple(map(float, seconds)), "work": float(np.mean(work)), "max_work": float(np.max(work))}
    return {**round_times(seconds), **found}


def work_by_round(intervals: Iterable[Interval], *, rounds: int, samples: int) -> Floats:
    """How many times the workers computed the batch in each round."""
    work = np.zeros(rounds)
    for interval in intervals:
        if interval.round <= rounds:
            work[interval.round - 1] += interval.samples / samples
    return work
