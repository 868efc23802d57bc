"""A race: all schemes train the same model on the same data under the same injected delays, in real processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from codedreduce.protocol.events import Note
from codedreduce.schemes import LiveCompensation, Scheme
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.training.loop import Job, RoundLog, TrainingResult, reference_run, run_job
from codedreduce.worlds.local import Activity
from codedreduce.worlds.simulated.compare import Result, RoundTimes, best_gradient_coding
from codedreduce.worlds.simulated.gradients import Gradients
from codedreduce.worlds.simulated.scenario import Scenario

#: Told (which scheme, the round just over).
Told = Callable[[str, RoundLog], None]


class RaceResult(Result, frozen=True, kw_only=True):
    """How one scheme did in real processes, and where it got."""

    final_loss: float
    saved: float
    losses: tuple[float, ...]


def racing_schemes(
    names: Sequence[str], *, tree: str, stragglers: int, delays: str, compute: float, seed: int
) -> dict[str, Scheme]:
    """The schemes of these names over one number of workers; gradient coding with the S a simulation finds best."""
    shape = parse_tree(tree, stragglers)
    chosen: dict[str, Scheme] = {}
    for name in names:
        if name in ("progressive", "eager"):
            chosen[name] = parse_scheme("coded-reduce", tree=shape, stragglers=stragglers, order=name)
        elif name == "gradient-coding":
            base = Scenario(
                tree=tree, stragglers=stragglers, delays=delays, compute=compute or 1.0, rounds=40, seed=seed,
                parameters=10, samples=20 * shape.workers, rate=1e9,
            )  # fmt: skip
            best = best_gradient_coding(base, Gradients(base.samples, base.parameters, seed))
            chosen[name] = best.plan().scheme
        else:
            late = max(1, shape.workers // 20) if name == "live-compensation" else stragglers
            chosen[name] = parse_scheme(name, tree=shape, stragglers=late)
    return chosen


def run_race(
    job: Job, schemes: dict[str, Scheme], told: Told | None = None, noted: Callable[[Note], None] | None = None
) -> list[tuple[RaceResult, TrainingResult]]:
    """Let each scheme run in turn, and check each against the same training done in this process."""
    results = []
    for name, scheme in schemes.items():
        mine = replace(job, scheme=scheme, optimizer=copy.deepcopy(job.optimizer), record=True)
        listener = (lambda log, name=name: told(name, log)) if told else None
        outcome = run_job(mine, listener, noted=noted)
        if not outcome.history:
            break
        results.append((_sum_up(name, replace(mine, optimizer=job.optimizer), outcome), outcome))
        if outcome.interrupted:
            break
    return results


def _sum_up(name: str, job: Job, outcome: TrainingResult) -> RaceResult:
    seconds = np.array([log.seconds for log in outcome.history])
    if isinstance(job.scheme, LiveCompensation):
        identical, error = False, float("nan")
    else:
        parameters, error = reference_run(job, len(outcome.history))
        identical = parameters.tobytes() == outcome.parameters.tobytes()
    work = np.zeros(len(seconds))
    for activity in outcome.activities:
        if activity.round <= len(work):
            work[activity.round - 1] += activity.samples / job.samples
    return RaceResult(
        scheme=job.scheme.label,
        name=name,
        **RoundTimes.of(seconds)._asdict(),
        work=float(work.mean()),
        max_work=float(work.max()),
        busiest_bytes=None,
        max_error=error,
        bit_identical=identical,
        final_loss=outcome.history[-1].loss,
        saved=outcome.saved,
        round_seconds=tuple(seconds.tolist()),
        losses=tuple(log.loss for log in outcome.history),
    )


def injected_delays(job: Job, rounds: int) -> npt.NDArray[np.float32]:
    """How late each worker was made in each round, rounds x workers."""
    injection = job.injection()
    if injection is None:
        return np.zeros((rounds, job.scheme.workers), dtype=np.float32)
    draws = [injection.delays.draw(round_) for round_ in range(1, rounds + 1)]
    return np.array([draw.startup + (draw.slowness - 1) * injection.delays.unit for draw in draws], dtype=np.float32)


def shown_round(delays: npt.NDArray[np.float32]) -> int:
    """A round with a straggler in it, if there is one: the upper tenth by the worst delay."""
    order = np.argsort(delays.max(axis=1), kind="stable")
    return 1 + int(order[(9 * (len(order) - 1)) // 10])


def intervals_of(activities: Sequence[Activity], round_: int) -> list[tuple[int, str, float, float]]:
    """What workers did in a round, for a timeline."""
    return [(a.node, a.kind, a.begin, a.end) for a in activities if a.round == round_ and a.end > a.begin]
