"""A race: all schemes train the same model on the same data under the same injected delays, in real processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from codedreduce.comparison.result import Comparison, Result, SchemeRun, lateness, run_in_turn, summed_up, work_by_round
from codedreduce.comparison.simulated_runs import choose_tolerances
from codedreduce.run.journal import ALL_ROUNDS, OnNote, RoundLog
from codedreduce.schemes import LiveCompensation, Scheme
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.scenario import Scenario
from codedreduce.training.loop import Job, TrainingResult, reference_run, run_job

#: Called with (name of the scheme, log of the finished round).
OnRacingRound = Callable[[str, RoundLog], None]


def racing_schemes(base: Scenario, names: Sequence[str]) -> dict[str, Scheme]:
    """The schemes with these names for the same workers; for gradient coding a simulation finds the best S."""
    base = msgspec.structs.replace(base, rounds=40, parameters=10, samples=20 * base.workers, rate=1e9)
    chosen = choose_tolerances(base, names, Gradients(base.samples, base.parameters, base.seed))
    return {name: scenario.parsed_scheme() for name, scenario in chosen.items()}


def race_schemes(
    job: Job, schemes: Mapping[str, Scheme], *, on_round: OnRacingRound | None = None, on_note: OnNote | None = None
) -> Comparison:
    """Run the schemes one after the other, and compare each result with the same training in this process."""

    def run(name: str) -> SchemeRun:
        mine = replace(job, scheme=schemes[name], optimizer=copy.deepcopy(job.optimizer))
        listener = (lambda log: on_round(name, log)) if on_round else None
        outcome = run_job(mine, on_round=listener, on_note=on_note, timeline=ALL_ROUNDS)
        if outcome.interrupted:
            raise KeyboardInterrupt
        return SchemeRun(_sum_up(name, replace(mine, optimizer=job.optimizer), outcome), outcome.journal)

    runs, stopped_by = run_in_turn(schemes, run)
    injection = job.injection()
    delays = lateness(injection.delays if injection else None, job.rounds, job.scheme.workers)
    return Comparison(runs=runs, delays=delays, stopped_by=stopped_by)


def _sum_up(name: str, job: Job, outcome: TrainingResult) -> Result:
    rounds = len(outcome.history)
    seconds = [log.seconds for log in outcome.history]
    work = work_by_round(outcome.journal.intervals, rounds=rounds, samples=job.samples)
    if isinstance(job.scheme, LiveCompensation):
        identical, error = False, float("nan")
    else:
        parameters, error = reference_run(job, rounds)
        identical = parameters.tobytes() == outcome.parameters.tobytes()
    return Result(
        scheme=job.scheme.label, name=name, **summed_up(seconds, work), busiest_bytes=None, max_error=error,
        bit_identical=identical, final_loss=outcome.history[-1].loss, saved=outcome.saved,
        losses=tuple(log.loss for log in outcome.history),
    )  # fmt: skip
