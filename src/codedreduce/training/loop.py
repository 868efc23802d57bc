"""Training in NumPy: a job, the world that runs it, and the result."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from codedreduce.errors import Diverged, Outlived, UsageError
from codedreduce.launch.environment import Membership, read_membership
from codedreduce.node.local import LocalCluster, new_meeting
from codedreduce.node.node import Node, digest_of, root_of
from codedreduce.process.error_lines import speak_plainly
from codedreduce.process.telling import What, Word, tell
from codedreduce.protocol.core.settings import FLOAT32
from codedreduce.run.agreement import APART, Meeting, Run
from codedreduce.run.configuration import DEFAULTS, Configuration
from codedreduce.run.failures import REFUSE
from codedreduce.run.injected_delays import Injection
from codedreduce.run.journal import Journal, OnNote, OnRound, RoundLog, listening
from codedreduce.run.site import Site
from codedreduce.run.trainings import trainings_of
from codedreduce.run.world import Alone, World, leads
from codedreduce.schemes import MasterWorker, Plan, Scheme, Striped, StripedPlan, TreePlan
from codedreduce.schemes.choice import choose
from codedreduce.schemes.names import DEFAULT_WORKERS, default_scheme
from codedreduce.training.checkpoints import Saving, saving_to
from codedreduce.training.data import Shape, Source
from codedreduce.training.gradient import BatchGradient
from codedreduce.training.kept import Kept
from codedreduce.training.objectives import Objective
from codedreduce.training.optimizers import SGD, ModelReplica, Optimizer
from codedreduce.training.rounds import rounds
from codedreduce.training.samplers import Shuffled
from codedreduce.vectors import Vector, is_finite


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The parameters and the journal of the run."""

    parameters: Vector
    journal: Journal
    interrupted: bool = False
    resumed_after: int = 0  # the round of the checkpoint from which the run resumed

    @property
    def history(self) -> tuple[RoundLog, ...]:
        """The logs of the rounds."""
        return tuple(self.journal.rounds)

    @property
    def saved(self) -> float:
        """Seconds saved in the run, compared to waiting for all nodes."""
        return self.journal.saved


@dataclass(frozen=True, kw_only=True)
class Job:
    """The complete configuration of a run, which `train` makes from its arguments."""

    objective: Objective
    source: Source
    scheme: Scheme
    rounds: int
    optimizer: Optimizer
    batch: int | None = None
    seed: int = 0
    compute: float = 0.0  # minimum seconds of one worker for the whole batch; workers sleep for the rest
    shared_memory: bool = True
    start: Vector | None = None
    site: Site | None = None  # the nodes of the processes, if they are not all on this host
    saving: Saving | None = None  # checkpoints, if any
    restart: bool = True  # whether to restart child processes that are killed
    until: Callable[[RoundLog], bool] | None = None  # the leader calls it after every round; True ends the run
    configuration: Configuration = DEFAULTS

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"at least one round is needed, got {self.rounds}")
        if self.seed < 0:
            raise UsageError(f"a seed cannot be negative, got {self.seed}")
        samples = self.shape.samples
        if self.batch is not None and not 1 <= self.batch <= samples:
            raise UsageError(f"a batch has 1 to {samples} samples, as many as there are; got {self.batch}")

    @cached_property
    def shape(self) -> Shape:
        """The size of the data; read once."""
        return self.source.shape()

    @property
    def samples(self) -> int:
        """The number of samples in a batch."""
        return self.batch or self.shape.samples

    def plan(self) -> Plan:
        """The scheme laid over a batch."""
        return self.scheme.plan(samples=self.samples)

    def model(self) -> Vector:
        """The initial model."""
        count = self.objective.parameters(self.shape.features)
        if self.start is None:
            return np.zeros(count, dtype=FLOAT32)
        if self.start.shape != (count,):
            raise UsageError(f"the model has {count} parameters; the start has the shape {self.start.shape}")
        return np.array(self.start, dtype=FLOAT32)

    def subject(self) -> str:
        """A text that describes the training; it must be equal on all nodes."""
        batch = f"batches of {self.batch}" if self.batch else "whole batches"
        return APART.join([_called(self.objective), f"data {self.source.digest()}", batch, f"seed {self.seed}"])

    def kept_as(self) -> dict[str, str]:
        """The subject of its checkpoints: all that determines the bits of the result, except the number of rounds."""
        start = "zeros" if self.start is None else f"digest {digest_of(self.model())}"
        return {
            "model": f"{_called(self.objective)}, {len(self.model())} parameters from {start}",
            "data": self.source.digest(), "batch": f"{self.batch} {Shuffled()}" if self.batch else "all",
            "seed": str(self.seed), "scheme": self.scheme.expression,
            "optimizer": _called(self.optimizer),
        }  # fmt: skip

    def run(self, meeting: Meeting, plan: Plan, after: int = 0) -> Run:
        """The run of this job at a rendezvous. A vector has one number more than parameters: the loss."""
        return Run.of(
            meeting, plan, len(self.model()) + 1, self.configuration, after=after, seed=self.seed
        )  # fmt: skip

    def injection(self) -> Injection | None:
        """The injected delays; all processes draw the same ones."""
        return Injection.of(
            self.configuration.inject, workers=self.scheme.workers, seed=self.seed, compute=self.compute,
            samples=self.samples,
        )  # fmt: skip


def _called(one: object) -> str:
    """A description of an object that is the same in every process."""
    kind = type(one)
    return kind.__qualname__ if kind.__repr__ is object.__repr__ else repr(one)


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
    start: Vector | None = None,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_excess: str | None = None,
    say_waiting_after: float | None = None,
    shared_memory: bool = True,
    checkpoint: str | Path | None = None,
    every: int | str = "60s",
    resume: bool = False,
    until: Callable[[RoundLog], bool] | None = None,
    nonfinite: str | None = None,
    replan_after: float | None = None,
    restart: bool = True,
    audit: float | None = None,
    quarantine: int | None = None,
) -> TrainingResult:
    """Train a model on this host. This process is the first node (the root of a tree, or rank 0); it forks the others.

    `scheme` sets the number of workers and their arrangement. Without it there are six, or all processes that a
    launcher has started. The default is a tree if memory is shared, else a tree or stripes, whichever is quicker for
    vectors of that length (`choose`).

    `inject` makes workers late on purpose: `stalls:0.05:0.5s` or any delay model of the simulator. `on_round` is called
    after every round, `on_note` with each note for the user (logged by default). If more workers are late than
    tolerated, a round waits. With `on_excess="approximate"` it uses the best approximation after `say_waiting_after`
    seconds (30); `Striped` does not support this. An interrupt (Ctrl-C) ends the run with the parameters reached.

    After an error in a gradient, or a gradient that is not finite, another worker computes it again; the run ends if
    that fails as well. If more workers are missing than tolerated, the root of a tree does their part itself after
    `replan_after` seconds (10), until they are back; the result is bit-identical. `nonfinite="pass"` sums gradients
    that are not finite like others.

    `checkpoint` is a folder: the first node writes the state there every so many rounds (`every=100`) or seconds
    (`"60s"`), and at the end. `resume` continues from the last checkpoint, bit-identical to a run without a stop. The
    leader calls `until` after every round, and ends the run before `rounds` when it returns True.

    With `audit=0.02` a second worker computes that part of all gradients again. Both results are compared to the bit
    before they are used. If they differ, a third worker decides. The wrong worker is reported, and quarantined after
    `quarantine` verdicts (2).

    A worker that is killed is restarted, and used from the next round on, unless `restart` is False.

    Under a launcher (`codedreduce run`, torchrun, mpiexec) every process calls this with the same arguments. Rank 0 is
    the root and returns the result. The others serve until the run is over and return the model with which they began.
    With `Striped` all of them train, and return the same parameters.
    """
    speak_plainly()
    membership = read_membership(os.environ)
    if membership is not None:
        tell(Word(membership.rank, What.JOINS))
    configuration = (membership.configuration if membership is not None else DEFAULTS).override(
        on_excess=on_excess or None, say_waiting_after=say_waiting_after, replan_after=replan_after, audit=audit,
        quarantine=quarantine, nonfinite=nonfinite or None, inject=inject or None,
    )  # fmt: skip
    if scheme is None:
        scheme = _default(objective, data, membership, shared_memory, audited=configuration.audit.fraction > 0)
    if membership is not None:
        scheme = membership.cut(scheme)
    job = Job(
        objective=objective, source=data, rounds=rounds, batch=batch, seed=seed, start=start,
        scheme=scheme, optimizer=optimizer or SGD(0.1), shared_memory=shared_memory,
        saving=saving_to(checkpoint, every, resume=resume, membership=membership), until=until, restart=restart,
        configuration=configuration,
    )  # fmt: skip
    on_note = on_note or (lambda note: logging.getLogger("codedreduce").warning(note.reason))
    return run_job(job, on_round=on_round, on_note=on_note, membership=membership)


def _default(
    objective: Objective, data: Source, membership: Membership | None, shared_memory: bool, *, audited: bool
) -> Scheme:
    """The launcher's scheme; else a choice by the length of the vector, the number of processes and their hosts."""
    if membership is not None and membership.scheme is not None:
        return membership.scheme
    length = objective.parameters(data.shape().features) + 1
    meeting = membership.meeting if membership is not None else None
    shares = shared_memory and (meeting is None or (meeting.same_machine and meeting.shared_memory))
    count = DEFAULT_WORKERS if membership is None else membership.size
    choice = choose(count, length, shared_memory=shares, audited=audited)
    scheme = choice.scheme
    if membership is not None and not isinstance(scheme, Striped):  # one of the processes is the root
        scheme = default_scheme(membership.workers) if membership.workers else Striped(1)
    if membership is None or membership.rank == 0:
        logging.getLogger("codedreduce").info("%s: %s", scheme, choice.reason)
    return scheme


def run_job(
    job: Job,
    *,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    membership: Membership | None = None,
    timeline: Container[int] = (),
) -> TrainingResult:
    """Run a job in child processes, or take this process's place in a run that a launcher has started."""
    journal = Journal(listening(on_round, on_note), timeline=timeline)
    plan = job.plan()
    replica = ModelReplica(job.model(), job.optimizer)
    interrupted = False
    with contextlib.ExitStack() as stack:
        kept = None
        is_first = membership is None or membership.rank == 0
        if job.saving is not None and (is_first or isinstance(plan, StripedPlan)):
            kept = stack.enter_context(Kept(job.saving, job.kept_as(), replica, journal, is_first=is_first))
        after = kept.resume() if kept is not None else 0
        try:
            if membership is not None:
                world = stack.enter_context(_place(job, plan, replica, journal, after, membership))
            elif after < job.rounds:
                world = stack.enter_context(_processes(job, plan, replica, journal, after))
            else:
                world = None  # the checkpoint is of the last round
            if world is not None:
                _train(job, replica, world, journal, after=after, kept=kept)
        except KeyboardInterrupt:
            interrupted = True
        except Outlived:  # this process was restarted, and the others are at the script's next training
            logging.getLogger("codedreduce").warning("this training is over, and this process does not have its result")
    return TrainingResult(parameters=replica.model, journal=journal, interrupted=interrupted, resumed_after=after)


@contextlib.contextmanager
def _place(
    job: Job, plan: Plan, replica: ModelReplica, journal: Journal, after: int, membership: Membership
) -> Iterator[World | None]:
    """This process's place in a run that a launcher has started; None after the end of the run if it was a worker."""
    membership.check(plan)
    shares = job.shared_memory and membership.meeting.shared_memory
    trainings = trainings_of(membership.meeting.run)
    trainings.begin()
    meeting = replace(trainings.meeting(membership.meeting), subject=job.subject(), shared_memory=shares)
    run = job.run(meeting, plan, after)
    gradient = BatchGradient(job.objective, job.source, plan, batch=job.batch, seed=job.seed)
    if isinstance(plan, StripedPlan):
        with Node(
            run, membership.rank, gradient=gradient, replica=replica, injection=job.injection(), journal=journal
        ) as rank:
            rank.wait_for_all()
            yield rank
            trainings.part(rank.reached, rank.generation)
    elif membership.rank == 0:
        with root_of(run, journal, gradient) as root:
            yield root
            trainings.part(root.reached, 0)
    else:
        with Node(run, membership.rank, gradient=gradient, injection=job.injection(), journal=journal) as node:
            node.serve()
        trainings.part(1, 0)
        yield None


@contextlib.contextmanager
def _processes(job: Job, plan: Plan, replica: ModelReplica, journal: Journal, after: int) -> Iterator[World]:
    """Child processes for this run. The data is loaded once, and the workers share its pages.

    Where every process has the model, each has its own copy of it and of the optimizer, made by the fork.
    """
    gradient = BatchGradient(job.objective, job.source.loaded(), plan, batch=job.batch, seed=job.seed)
    run = job.run(new_meeting(job.site, shared_memory=job.shared_memory), plan, after)

    def member(world: World) -> None:
        _train(job, replica, world, Journal(), after=after)

    with LocalCluster(
        run, gradient, injection=job.injection(), journal=journal, site=job.site,
        member=None if isinstance(plan, TreePlan) else member, replica=replica, restart=job.restart,
    ) as cluster:  # fmt: skip
        yield cluster


def _train(
    job: Job, replica: ModelReplica, world: World, journal: Journal, *, after: int = 0, kept: Kept | None = None,
    check: Callable[[int, Vector], None] | None = None,
) -> None:  # fmt: skip
    """Train the model in place. `check` gets every gradient sum before the step."""
    model = replica.model
    vector = np.zeros(len(model) + 1, dtype=model.dtype)

    def read_model(sent: Vector) -> None:
        sent[:-1] = model

    for round_ in rounds(world, journal, job.rounds, vector, read_model, after=after):
        if check is not None:
            check(round_.number, round_.total)
        mean = round_.total / round_.total.dtype.type(job.samples)
        if job.configuration.nonfinite == REFUSE and not is_finite(mean):
            raise Diverged(
                round_.number,
                f"round {round_.number}: the gradient is not finite; take a smaller learning rate, or look at the data",
            )
        job.optimizer.step(model, mean[:-1])
        log = round_.over(float(mean[-1]))
        is_last = round_.number == job.rounds or (job.until is not None and leads(world) and job.until(log))
        if kept is not None:
            kept.after(round_.number, is_last=is_last, leads=leads(world))
        if is_last:
            return


def reference_run(job: Job, rounds: int) -> tuple[Vector, float]:
    """The parameters with which a run must end: the same training in this process, evaluated directly from the plan.

    Also the worst relative error of its gradients against float64. It uses one core, as a worker does: linear algebra
    on several cores adds in another order.
    """
    job = replace(job, rounds=rounds, optimizer=copy.deepcopy(job.optimizer))
    model = job.model()
    whole = MasterWorker(1).plan(samples=job.samples)
    gradient = BatchGradient(job.objective, job.source.loaded(), whole, batch=job.batch, seed=job.seed)
    exact: list[Vector] = []
    truth = np.empty(len(model))
    worst = 0.0

    def check(round_: int, total: Vector) -> None:
        nonlocal worst
        if not exact or job.batch:
            exact[:] = (rows.astype(np.float64) for rows in gradient.rows(0, job.samples, round_))
        x, y = exact
        job.objective.evaluate(model.astype(np.float64), x, y, None, truth)
        worst = max(worst, float(np.linalg.norm(total[:-1] - truth)) / max(float(np.linalg.norm(truth)), 1e-30))

    with threadpool_limits(1):
        world = Alone(job.plan(), gradient, len(model) + 1, FLOAT32)
        _train(job, ModelReplica(model, job.optimizer), world, Journal(), check=check)
    return model, worst
