"""The training loop: the root sends the model, gets the gradient of the batch, and takes a step."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from codedreduce.errors import Diverged, UsageError
from codedreduce.protocol import Settings
from codedreduce.schemes import CodedReduce, MasterWorker, Piece, RingPlan, Scheme
from codedreduce.topology import Tree
from codedreduce.training.data import Source
from codedreduce.training.gradient import BatchGradient
from codedreduce.training.objectives import Objective
from codedreduce.training.optimizers import SGD, Optimizer
from codedreduce.worlds.delays import parse_delays
from codedreduce.worlds.environment import Membership, read_membership
from codedreduce.worlds.inject import DEFAULT_UNIT, Injection
from codedreduce.worlds.joined import JoinedCluster, serve_joined
from codedreduce.worlds.journal import Interval, Journal, OnNote, OnRound, RoundLog
from codedreduce.worlds.local import LocalCluster, LocalRing
from codedreduce.worlds.site import Site
from codedreduce.worlds.tuning import settings_for

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The parameters and how they came about."""

    parameters: Array
    history: tuple[RoundLog, ...]
    interrupted: bool = False
    journal: Journal = field(default_factory=Journal)

    @property
    def saved(self) -> float:
        """Seconds saved against waiting for all, over the run."""
        return sum(log.saved for log in self.history)


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a run needs, laid out: what `train` makes of its arguments."""

    objective: Objective
    source: Source
    scheme: Scheme
    rounds: int
    optimizer: Optimizer
    batch: int | None = None
    seed: int = 0
    delays: str | None = None
    compute: float = 0.0  # seconds the whole batch takes one worker at least; the rest is slept
    shared_memory: bool = True
    start: Array | None = None
    site: Site | None = None  # where the processes are, if not simply on this machine

    def __post_init__(self) -> None:
        shape = self.source.shape()
        if self.rounds < 1:
            raise UsageError(f"at least one round is needed, got {self.rounds}")
        if self.seed < 0:
            raise UsageError(f"a seed cannot be negative, got {self.seed}")
        if self.batch is not None and not 1 <= self.batch <= shape.samples:
            raise UsageError(f"a batch has 1 to {shape.samples} samples, as many as there are; got {self.batch}")

    @property
    def samples(self) -> int:
        """Samples in a batch."""
        return self.batch or self.source.shape().samples

    def model(self) -> Array:
        """The first model."""
        count = self.objective.parameters(self.source.shape().features)
        if self.start is None:
            return np.zeros(count, dtype=np.float32)
        if self.start.shape != (count,):
            raise UsageError(f"the model has {count} parameters; the start has the shape {self.start.shape}")
        return np.array(self.start, dtype=np.float32)

    def settings(self) -> Settings:
        """One number more than parameters: the loss."""
        return settings_for(len(self.model()) + 1, shared_memory=self.site is None)

    def injection(self) -> Injection | None:
        """The injected delays, drawn alike by everyone."""
        if self.delays is None and not self.compute:
            return None
        unit = self.compute / self.scheme.workers if self.compute else DEFAULT_UNIT
        delays = parse_delays(self.delays or "calm", workers=self.scheme.workers, unit=unit, seed=self.seed)
        return Injection(delays=delays, sample_seconds=self.compute / self.samples)


def train(
    objective: Objective,
    data: Source,
    *,
    scheme: Scheme | None = None,
    rounds: int,
    optimizer: Optimizer | None = None,
    batch: int | None = None,
    seed: int = 0,
    inject: str | None = None,
    start: Array | None = None,
    told: Callable[[RoundLog], None] | None = None,
    shared_memory: bool = True,
) -> TrainingResult:
    """Train a model on this machine: the root here, one process a worker.

    `scheme` says how many workers and how they are arranged; a tree of 2x2 with one straggler tolerated by default.
    `inject` makes workers late on purpose: `stalls:0.05:0.5s` or any delay model of the simulator. `told` is called
    after every round. An interrupt (Ctrl-C) ends the run with the parameters reached.

    Under a launcher (`codedreduce run`, torchrun, mpiexec) every process calls this with the same arguments: rank 0 is
    the root and returns the result, the others serve until the run is over and return the model they began with.
    """
    membership = read_membership(os.environ)
    if scheme is None:
        default = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
        scheme = membership.scheme_or_default() if membership else default
    job = Job(
        objective=objective, source=data, rounds=rounds, batch=batch, seed=seed, start=start,
        delays=inject or (membership.inject if membership else None), scheme=scheme, optimizer=optimizer or SGD(0.1),
        shared_memory=shared_memory,
    )  # fmt: skip
    return run_job(
        job,
        on_round=told,
        on_note=lambda note: logging.getLogger("codedreduce").warning(note.reason),
        membership=membership,
    )


def run_job(
    job: Job,
    *,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    membership: Membership | None = None,
    timeline: Container[int] = (),
) -> TrainingResult:
    """Run a job in processes of its own, or as the process of a run that a launcher has made this one."""
    plan = job.scheme.plan(samples=job.samples)
    gradient = BatchGradient(job.objective, job.source, plan, batch=job.batch, seed=job.seed)
    if membership is not None and membership.rank:
        serve_joined(membership, plan, job.settings(), gradient, injection=job.injection())
        return TrainingResult(parameters=job.model(), history=())
    if membership is not None:
        with JoinedCluster(membership, plan, job.settings(), noted=on_note) as joined:
            return _train_tree(job, joined, on_round, Journal(timeline=timeline))
    try:
        if isinstance(plan, RingPlan):
            return _train_ring(job, plan, gradient, on_round, on_note, Journal(timeline=timeline))
        with LocalCluster(
            plan, gradient, job.settings(), injection=job.injection(), shared_memory=job.shared_memory,
            record=timeline != (), noted=on_note, site=job.site,
        ) as cluster:  # fmt: skip
            return _train_tree(job, cluster, on_round, Journal(timeline=timeline))
    except KeyboardInterrupt:  # before the first round: there is nothing to show but the start
        return TrainingResult(parameters=job.model(), history=(), interrupted=True)


def _train_tree(
    job: Job, cluster: LocalCluster | JoinedCluster, told: OnRound | None, journal: Journal
) -> TrainingResult:
    model = job.model()
    history: list[RoundLog] = []
    interrupted = False
    sent = np.zeros(len(model) + 1, dtype=np.float32)
    try:
        for round_ in range(1, job.rounds + 1):
            sent[:-1] = model
            begin = time.monotonic()
            result = cluster.aggregate(sent)
            loss = take_step(job, model, result.vector, round_)
            for late in result.lateness:
                if 1 <= late.round <= len(history):
                    history[late.round - 1].lateness[late.node] = late.seconds
            history.append(RoundLog(round=round_, seconds=time.monotonic() - begin, loss=loss, late=result.late))
            for activity in cluster.activities() if isinstance(cluster, LocalCluster) else ():
                journal.add(Interval(*activity))
            if told is not None:
                told(history[-1])
    except KeyboardInterrupt:
        interrupted = True
    return TrainingResult(parameters=model, history=tuple(history), interrupted=interrupted, journal=journal)


def take_step(job: Job, model: Array, total: Array, round_: int) -> float:
    """Apply the mean gradient of a batch to the model; the mean loss."""
    mean = total / total.dtype.type(job.samples)
    if not np.isfinite(mean).all():
        raise Diverged(
            round_, f"round {round_}: the gradient is not finite; take a smaller learning rate, or look at the data"
        )
    job.optimizer.step(model, mean[:-1])
    return float(mean[-1])


def _train_ring(
    job: Job,
    plan: RingPlan,
    gradient: BatchGradient,
    told: OnRound | None,
    noted: OnNote | None,
    journal: Journal,
) -> TrainingResult:
    history: list[RoundLog] = []

    def update(sent: Array, total: Array, round_: int) -> Array:
        model = sent.copy()
        take_step(job, model[:-1], total, round_)
        model[-1] = total[-1] / job.samples
        return model

    def over(round_: int, seconds: float, loss: float) -> None:
        history.append(RoundLog(round=round_, seconds=seconds, loss=loss))
        for activity in ring.activities():
            journal.add(Interval(*activity))
        if told is not None:
            told(history[-1])

    first = np.append(job.model(), np.float32(0))
    interrupted = False
    model = first
    with LocalRing(
        plan, gradient, job.settings(), update=update, model=first, rounds=job.rounds, injection=job.injection(),
        shared_memory=job.shared_memory, record=journal.timeline != (), noted=noted, site=job.site,
    ) as ring:  # fmt: skip
        try:
            model = ring.run(over)
        except KeyboardInterrupt:
            interrupted = True
    return TrainingResult(
        parameters=model[:-1].copy(), history=tuple(history), interrupted=interrupted, journal=journal
    )


def reference_run(job: Job, rounds: int) -> tuple[Array, float]:
    """The same training in this process, each gradient evaluated directly from the plan: what a run must end with.

    Also the worst relative error of its gradients against float64. On one core, as a worker computes: linear algebra
    spread over several cores adds in another order.
    """
    with threadpool_limits(1):
        return _reference_run(job, rounds)


def _reference_run(job: Job, rounds: int) -> tuple[Array, float]:
    plan = job.scheme.plan(samples=job.samples)
    model = job.model()
    optimizer, worst = copy.deepcopy(job.optimizer), 0.0
    whole = MasterWorker(1).plan(samples=job.samples)
    gradient = BatchGradient(job.objective, job.source, whole, batch=job.batch, seed=job.seed)
    exact: tuple[Array, Array] | None = None
    for round_ in range(1, rounds + 1):

        def evaluate(piece: Piece, round_: int = round_) -> Array:
            out = np.empty(len(model) + 1, dtype=np.float32)
            gradient(piece, model, round_, out, 1)
            return out

        total = plan.reference(evaluate)
        if exact is None or job.batch:
            x, y = gradient.rows(0, job.samples, round_)
            exact = x.astype(np.float64), y.astype(np.float64)
        truth = np.empty(len(model))
        job.objective.evaluate(model.astype(np.float64), *exact, None, truth)
        worst = max(worst, float(np.linalg.norm(total[:-1] - truth)) / max(float(np.linalg.norm(truth)), 1e-30))
        optimizer.step(model, (total / total.dtype.type(job.samples))[:-1])
    return model, worst
