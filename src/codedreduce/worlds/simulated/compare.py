"""Schemes side by side: the same delays, the same data, one table."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError
from codedreduce.schemes.names import SCHEMES, parse_tree
from codedreduce.worlds.journal import listening
from codedreduce.worlds.simulated.gradients import Gradients
from codedreduce.worlds.simulated.record import Recorder
from codedreduce.worlds.simulated.scenario import Scenario

#: What `all` stands for, in the order of the table.
ALL = ("master-worker", "gradient-coding", "live-compensation", "ring", "eager", "progressive")

#: Rounds each S of gradient coding is tried for before the best is run in full.
SWEEP_ROUNDS = 40

#: Told (what is running, rounds done, rounds in all).
Progress = Callable[[str, int, int], None]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one scheme did, in whatever world."""

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


class RoundTimes(NamedTuple):
    """Round times summed up."""

    mean: float
    median: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: npt.NDArray[np.float64]) -> RoundTimes:
        """The mean, and how the slow ones are."""
        return cls(float(seconds.mean()), *(float(np.percentile(seconds, p)) for p in (50, 95, 99)))


def scheme_names(text: str) -> list[str]:
    """The schemes of a list such as `ring,progressive`, or `all`.

    >>> scheme_names("all")[-1]
    'progressive'
    """
    names = list(ALL) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ALL and name not in SCHEMES:
            raise UsageError(f"unknown scheme {name!r}; there are {', '.join((*ALL, 'all'))}")
    return names


def scenario_for(base: Scenario, name: str, tolerance: int | None = None) -> Scenario:
    """The scenario with the scheme of that name in it."""
    if name in ("progressive", "eager"):
        return msgspec.structs.replace(base, scheme="coded-reduce", order=name)
    workers = parse_tree(base.tree, base.stragglers).workers
    if tolerance is None:
        tolerance = max(1, workers // 20) if name == "live-compensation" else base.stragglers
    return msgspec.structs.replace(base, scheme=name, order="eager", tolerance=min(tolerance, workers - 1))


def run_scenario(
    scenario: Scenario,
    name: str,
    gradients: Gradients,
    *,
    timeline: Container[int] = (),
    progress: Progress | None = None,
) -> tuple[Result, Recorder]:
    """Run one scheme and sum it up."""
    label = scenario.parsed_scheme().label
    report = (lambda log: progress(label, log.round, scenario.rounds)) if progress else None
    recorder = Recorder(listening(on_round=report), timeline=timeline)
    scenario.cluster(gradients=gradients, recorder=recorder).run(scenario.rounds)
    seconds = recorder.seconds()
    if len(seconds) < scenario.rounds:
        raise UsageError(f"{label} did not get through: {_last_words(recorder)}")
    work = [record.work for record in recorder.rounds]
    result = Result(
        scheme=label,
        name=name,
        **RoundTimes.of(seconds)._asdict(),
        work=float(np.mean(work)),
        max_work=float(np.max(work)),
        busiest_bytes=recorder.busiest_bytes / len(seconds),
        max_error=recorder.max_error,
        bit_identical=recorder.identical,
        round_seconds=tuple(seconds.tolist()),
    )
    return result, recorder


def _last_words(recorder: Recorder) -> str:
    return recorder.notes[-1].note.reason if recorder.notes else "nothing more could happen"


def gradient_coding_choices(workers: int) -> list[int]:
    """The S worth trying: those that divide the workers evenly, or powers of two if few do.

    >>> gradient_coding_choices(84)
    [1, 2, 3, 5, 6, 11, 13, 20, 27, 41, 83]
    """
    even = [s for s in range(1, workers) if workers % (s + 1) == 0]
    return even if len(even) > 2 else [s for s in (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63) if s < workers]


def best_gradient_coding(base: Scenario, gradients: Gradients, progress: Progress | None = None) -> Scenario:
    """Gradient coding with the S that gives the shortest mean round."""
    workers = parse_tree(base.tree, base.stragglers).workers
    best: tuple[float, Scenario] | None = None
    for tolerance in gradient_coding_choices(workers):
        scenario = scenario_for(base, "gradient-coding", tolerance)
        short = msgspec.structs.replace(scenario, rounds=min(base.rounds, SWEEP_ROUNDS))
        result, _ = run_scenario(short, "gradient-coding", gradients, progress=progress)
        if best is None or result.mean < best[0]:
            best = (result.mean, scenario)
    return best[1] if best else scenario_for(base, "gradient-coding")


def typical_late_round(base: Scenario) -> int:
    """A round whose worst delay is the upper tenth of all: the one to show, the same for all schemes."""
    base.plan()
    delays = base.delay_model()
    worst = [float(draw.startup.max() + draw.slowness.max()) for draw in map(delays.draw, range(1, base.rounds + 1))]
    return 1 + int(np.argsort(worst, kind="stable")[(9 * (len(worst) - 1)) // 10])


def compare(base: Scenario, names: Sequence[str], *, progress: Progress | None = None) -> list[tuple[Result, Recorder]]:
    """Run schemes under the same conditions; gradient coding with its best S."""
    gradients = Gradients(base.samples, base.parameters, base.seed)
    shown = typical_late_round(base)
    results = []
    for name in names:
        if name == "gradient-coding":
            scenario = best_gradient_coding(base, gradients, progress)
        else:
            scenario = scenario_for(base, name)
        results.append(run_scenario(scenario, name, gradients, timeline={shown}, progress=progress))
    return results
