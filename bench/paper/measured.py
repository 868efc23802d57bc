"""The experiments in the lab: real processes at real addresses, the gradient checked in every round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bench.paper.experiments import WARM_UP, Experiment, delay_model
from bench.paper.simulated import messages_a_round
from codedreduce.comparison.result import round_times, work_by_round
from codedreduce.lab import Lab
from codedreduce.run.configuration import Configuration
from codedreduce.run.journal import ALL_ROUNDS, Interval
from codedreduce.schemes import LiveCompensation, MasterWorker, Scheme
from codedreduce.simulator.scenario import Scenario
from codedreduce.training.data import Arrays, Source
from codedreduce.training.loop import Job, reference_run, run_job
from codedreduce.training.objectives import LinearRegression, Objective
from codedreduce.training.optimizers import SGD

#: Samples a worker has where nothing is to be computed: as few as all schemes can split.
IDLE_SAMPLES = 12

#: Rounds over which the cost of a message is measured, after as many to settle.
CALIBRATION_ROUNDS = 15


class Measuring:
    """One experiment in one lab; what is the same under all conditions is computed once."""

    def __init__(self, experiment: Experiment, lab: Lab, rounds: int) -> None:
        self.experiment = experiment
        self.lab = lab
        self.rounds = rounds
        self.data: Source = experiment.data()
        self._reference = cache(self._uncached_reference)

    def run(self, scheme: Scheme, delays: str) -> dict[str, Any]:
        """All rounds of a scheme under a condition."""
        job = self._job(scheme, delays)
        begin = time.monotonic()
        outcome = run_job(job, timeline=ALL_ROUNDS)
        if outcome.interrupted:
            raise KeyboardInterrupt
        seconds = np.array([log.seconds for log in outcome.history])[WARM_UP:]
        intervals = outcome.journal.intervals
        work = work_by_round(intervals, rounds=len(outcome.history), samples=job.samples)
        exact, error = False, None
        if not isinstance(scheme, LiveCompensation):
            parameters, error = self._reference(scheme)
            exact = parameters.tobytes() == outcome.parameters.tobytes()
        return {
            "scheme": scheme.label, **summed_up(seconds), "work": float(work[WARM_UP:].mean()), "exact": exact,
            "max_error": error, "late": float(np.mean([len(log.late) for log in outcome.history[WARM_UP:]])),
            "first": outcome.history[0].seconds, "wall": time.monotonic() - begin, "timeline": timeline(intervals),
        }  # fmt: skip

    def _job(self, scheme: Scheme, delays: str) -> Job:
        return Job(
            objective=self.experiment.objective, source=self.data, scheme=scheme, rounds=self.rounds + WARM_UP,
            optimizer=SGD(self.experiment.learning_rate), configuration=Configuration(inject=delay_model(delays)),
            compute=self.experiment.compute(delays), site=self.lab,
        )  # fmt: skip

    def _uncached_reference(self, scheme: Scheme) -> tuple[Any, float]:
        """The parameters a run must end with, to the bit, and the worst error of its gradients against float64."""
        job = self._job(scheme, "calm")
        return reference_run(job, job.rounds)

    def truth(self) -> Any:
        """The parameters after all rounds, each gradient summed in one process."""
        return self._reference(MasterWorker(self.experiment.workers))[0]

    def message_seconds(self, scenario: Scenario) -> float:
        """How long a core of this machine is busy with a message, from rounds in which nothing is computed."""
        samples = IDLE_SAMPLES * self.experiment.workers
        rows = np.zeros((samples, self.experiment.parameters), dtype=np.float32)
        busy = self._busy_a_round(scenario, LinearRegression(), Arrays(rows, rows[:, 0].copy()))
        return busy / messages_a_round(scenario)

    def arithmetic_seconds(self, scenario: Scenario, message_seconds: float) -> float:
        """How long a core is busy with a sample, from rounds of a scheme that computes each once and at full speed."""
        busy = self._busy_a_round(scenario, self.experiment.objective, self.data)
        samples = self.experiment.samples - IDLE_SAMPLES * self.experiment.workers  # those are counted as messages
        return max(0.0, busy - message_seconds * messages_a_round(scenario)) / samples

    def _busy_a_round(self, scenario: Scenario, objective: Objective, source: Source) -> float:
        busy: dict[int, float] = {}
        job = Job(
            objective=objective, source=source, scheme=scenario.plan().scheme, rounds=2 * CALIBRATION_ROUNDS,
            optimizer=SGD(0.1), site=self.lab,
        )  # fmt: skip
        run_job(job, on_round=lambda log: busy.__setitem__(log.round, busy_seconds()))
        return (busy[2 * CALIBRATION_ROUNDS] - busy[CALIBRATION_ROUNDS]) / CALIBRATION_ROUNDS


def busy_seconds() -> float:
    """Seconds that all cores of this machine together have been busy."""
    with open("/proc/stat") as file:
        user, nice, system, idle, waiting, *rest = map(int, file.readline().split()[1:9])
    del idle, waiting
    return (user + nice + system + sum(rest[:3])) / 100


def summed_up(seconds: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Round times, and every one of them."""
    return {**round_times(seconds), "rounds": [round(float(value), 5) for value in seconds]}


def timeline(intervals: Sequence[Interval]) -> dict[str, float]:
    """What a round spends, as means: from the first worker's begin to the last one's, computing, stalled."""
    rounds: dict[int, list[Interval]] = {}
    for interval in intervals:
        if interval.round > WARM_UP:
            rounds.setdefault(interval.round, []).append(interval)
    begins = {r: [i.begin for i in found if i.kind == "stall"] for r, found in rounds.items()}
    spread = [max(found) - min(found) for found in begins.values() if found]
    computing = [i.end - i.begin for found in rounds.values() for i in found if i.kind == "compute"]
    stalls = [max((i.end - i.begin for i in found if i.kind == "stall"), default=0.0) for found in rounds.values()]
    return {
        "first_to_last_begin": float(np.mean(spread)), "unit": float(np.median(computing)),
        "longest_stall": float(np.mean(stalls)),
    }  # fmt: skip
