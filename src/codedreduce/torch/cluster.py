"""The interface that a script uses: join a run, and train in it."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from codedreduce.errors import PlanError, UsageError
from codedreduce.launch.environment import Membership, read_membership, units_said
from codedreduce.node.node import Node
from codedreduce.process.error_lines import speak_plainly
from codedreduce.process.telling import What, Word, tell
from codedreduce.run.failures import REFUSE, check_nonfinite
from codedreduce.run.journal import Journal, OnNote, listening
from codedreduce.run.trainings import trainings_of
from codedreduce.run.world import World, leads
from codedreduce.schemes import MasterWorker, Plan, Scheme, Striped
from codedreduce.schemes.choice import choose_to_replicate
from codedreduce.torch.argument_checks import Loops, check_not_wrapped, device_of, noticing_loops
from codedreduce.torch.data.prefetch import Prefetch
from codedreduce.torch.model.layout import Layout
from codedreduce.torch.model.loss_output import Losses
from codedreduce.torch.rounds.model_replica import TorchReplica
from codedreduce.torch.rounds.roles import AtWorker, role_of
from codedreduce.torch.rounds.run_trainings import RunTraining, RunTrainings
from codedreduce.torch.rounds.shared_run import SharedRun
from codedreduce.torch.rounds.step import Step
from codedreduce.torch.training.training import Training
from codedreduce.training.batches import Function
from codedreduce.training.checkpoints import saving_to
from codedreduce.training.samplers import Sampler

log = logging.getLogger("codedreduce")

#: The number of rounds that the journal remembers, to compute how late the late workers were.
REMEMBERED = 64


def join(
    scheme: Scheme | None = None,
    stragglers: int = 1,
    *,
    inject: str | None = None,
    on_excess: str | None = None,
    on_note: OnNote | None = None,
    audit: float | None = None,
    quarantine: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Cluster:
    """Join the run that a launcher has started this process for.

    The environment gives the rank, the size and the address of rank 0. `codedreduce run` and torchrun set all of them.
    mpiexec and srun set only rank and size; set MASTER_ADDR and MASTER_PORT as well.

    `scheme` is `Striped` by default: every process computes and steps. Over a tree (`CodedReduce`, the default beyond
    300 processes) only rank 0, the root, steps. Each parent then tolerates `stragglers` late children.

    `inject` delays workers on purpose, for experiments. With `on_excess="approximate"`, a round over a tree that has
    too many stragglers continues with the best approximation instead of waiting; stripes refuse this option. `on_note`
    is called with each note for the user; by default notes are logged.

    With `audit=0.02` a second worker recomputes 2 % of all gradients, and the results must be bit-identical before they
    are used. The verdict names the faulty worker, which is excluded after `quarantine` verdicts (default 2).

    Without a launcher this process is alone and computes everything. With `Striped(4)` or CODEDREDUCE_UNITS=4 its
    results are bit-identical to those of 4 ranks.
    """
    speak_plainly()
    membership = read_membership(os.environ if environment is None else environment)
    if membership is not None:
        tell(Word(membership.rank, What.JOINS))
        if membership.is_alone and scheme is None:
            membership = None
    if scheme is None:
        if membership is None:
            units = units_said(os.environ if environment is None else environment)
            scheme = MasterWorker(1) if units is None else Striped(1, units=units)
        elif membership.scheme is not None:
            scheme = membership.scheme
        else:
            chosen = choose_to_replicate(membership.size, stragglers)
            scheme = chosen.scheme
            if membership.rank == 0:
                log.info("%s: %s", scheme, chosen.reason)
    if membership is not None:
        scheme = membership.cut(scheme)
        configuration = membership.configuration.override(
            inject=inject or None, on_excess=on_excess or None, audit=audit, quarantine=quarantine
        )  # fmt: skip
        membership = replace(membership, configuration=configuration)
    return Cluster(membership, scheme, on_note or (lambda note: log.warning(note.reason)))


def join_ranks(scheme: Scheme | None) -> Cluster:
    """Join for a trainer of another library, which runs on every rank: over a tree only the root has its state."""
    cluster = join(scheme)
    if cluster.size > 1 and not isinstance(cluster.scheme, Striped):
        raise UsageError(f"{cluster.scheme} has its state at the root, but every rank runs the Trainer: use stripes")
    return cluster


class Cluster:
    """This process's place in a run. Use it in a `with` block; when rank 0 leaves it, the run ends on all ranks."""

    def __init__(self, membership: Membership | None, scheme: Scheme, on_note: OnNote) -> None:
        self._membership = membership
        self.rank = membership.rank if membership else 0  # rank 0 is the first leader, or the root of a tree
        self.size = membership.size if membership else 1  # the number of processes in the run
        self.scheme = scheme  # which rank computes which units, and which ranks step
        self._on_note = on_note
        self.loops = Loops()
        self._made: list[weakref.ref[RunTraining]] = []  # trainings without a requested round so far
        self._trainings = 0  # count of trainings made so far
        self._running: SharedRun | None = None
        self._world: World | None = None
        self._led_last: bool | None = None  # whether this rank was the leader at the end of the last run

    @property
    def is_root(self) -> bool:
        """Whether this rank is the leader, which should print and save: rank 0; in stripes, after it fails, another."""
        if self._world is not None:
            return leads(self._world)
        return self.rank == 0 if self._led_last is None else self._led_last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._running is not None:
            with contextlib.suppress(*(() if kind is None else (UsageError,))):  # the first error matters more
                self._running.close(kind, error, trace)
        if kind is None:
            if self._running is not None and self._running.left_alone is not None:
                raise UsageError(self._running.left_alone)
            self.loops.check()

    @noticing_loops
    def train(
        self,
        model: torch.nn.Module,
        dataset: Any,
        losses: Losses,
        batch_size: int,
        steps: int = 0,
        seed: int = 0,
        *,
        epochs: int | None = None,
        sampler: Sampler | Function | None = None,
        drop_last: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch: int | None = None,
        coupled: str | None = None,
        device: torch.device | str | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        wire: str | None = None,
        state: Sequence[Any] = (),
        checkpoint: str | Path | None = None,
        every: int | str = "60s",
        resume: bool = False,
        first_round: int = 1,
        nonfinite: str | None = None,
    ) -> Iterator[Step]:
        """Yield once a round, with the mean gradient of its batch in every parameter's `.grad`.

        With `Striped` every rank yields: each takes the same step, as with DDP, and starts with the model of rank 0.
        Before each step all ranks seed their random generators alike. A `break` on the leader (`is_root`) ends the run
        on all ranks after the same round; a `break` on another rank alone is an error. Over a tree only rank 0 yields,
        and the others serve until the run is over. `steps` or `epochs` sets the length of the training.

        `state` lists whatever else a step changes and has `state_dict`: the optimizer, a scheduler, an average of the
        model. A rank that fell too far behind takes it from another rank by state transfer.

        `losses(model, batch)` returns one loss per sample; or (sums, weights), for the mean sum(sums) / sum(weights)
        over the batch; or (losses, weights or None, metrics), where `metrics` is a dictionary with a number for each
        sample. `step.metrics` has their means. A third parameter receives the step: its round and epoch.

        The seed determines the samples of each batch (`batch_indices`). An epoch has all samples in a new random order.
        Its last batch is left out if it is not full; `drop_last=False` keeps it. `sampler` sets another order:
        `Sequential()`, `WithReplacement()`, `Weighted(weights)`, or a function of (seed, round) that returns the
        samples of the round's batch.

        At most `micro_batch` samples go through the model at once. `num_workers` processes load the samples of at most
        `prefetch` further rounds while this process computes. The model and the batches are moved to `device`.
        `wire="bfloat16"` halves the bytes sent: numbers are rounded on the way, alike whichever ranks are late.

        `checkpoint` is a folder. The leader writes the model and `state` there every so many rounds (`every=100`) or
        seconds (`"60s"`), after the loop body, and after the last round. `resume=True` continues from the latest
        checkpoint on all ranks. For checkpoints of your own, set the next round: `first_round=101` draws and counts as
        if 100 rounds were over.

        After an error in `losses`, or a gradient that is not finite, another worker retries; if it fails as well, the
        run ends. With `nonfinite="pass"`, gradients that are not finite are summed like others, for scaled losses.

        Trainings that are made before the first round of any of them share a run, except over a tree. Their rounds
        follow the order of the script's requests: `zip(d_steps, g_steps)`, or `next(g_steps)` in the other's loop.

        Errors are raised here, on every rank, before the first round: BatchNorm in training mode, a loss that is not
        per sample, a dataset without indices, a model or data that differ between ranks. A rehearsal also finds a loss
        that depends on the other samples of a batch. If that is intended, `coupled="micro-batch"` computes whole
        micro-batches of `micro_batch` samples, with the same result on any rank.
        """
        said = self._membership.configuration.nonfinite if self._membership is not None else REFUSE
        check_not_wrapped(model)
        where = device_of(device) if device is not None else None
        if where is not None:
            model.to(where)
        training = Training(
            model=model, dataset=dataset, losses=losses, batch_size=batch_size, steps=steps, seed=seed,
            collate_fn=collate_fn, micro_batch=micro_batch, device=where, sampler=sampler, drop_last=drop_last,
            coupled=coupled, first_round=first_round, epochs=epochs, ahead=Prefetch(num_workers, prefetch),
        )  # fmt: skip
        layout = Layout(model, training.form)
        if wire is not None and layout.dtype != np.float32:
            raise UsageError(f"wire={wire!r} would lose the precision of float64 parameters; leave it out")
        if self.rank == 0:
            for warning in training.rehearsal.warnings:
                log.warning(warning)
        run_training = RunTraining(
            training=training, layout=layout, plan=_planned(_scheme_for(self.scheme, wire, layout.device), training),
            replica=TorchReplica(model, state), wire=wire, nonfinite=check_nonfinite(nonfinite or said),
            saving=saving_to(checkpoint, every, resume=resume, membership=self._membership), state=state,
            stream=self._trainings,
        )  # fmt: skip
        self._trainings += 1
        run_training.stepping.says = self.rank == 0
        run_training.stepping.outside = training.rehearsal.outside
        if self._membership is not None:
            self._membership.check(run_training.plan)
            run_training.check_place()
        self._made.append(weakref.ref(run_training))
        return self._train(run_training)

    def _train(self, run_training: RunTraining) -> Iterator[Step]:
        """Start or join a run at the first request: the training shares it with all trainings made by then."""
        if self._running is not None and self._running.is_left:
            self._running.close()  # after an error that the script has caught
        if run_training.run is None:
            made = [one for one in (made() for made in self._made) if one is not None]
            made, self._made = made if run_training in made else [run_training], []
            if self._running is None or self._running.is_over:
                trainings = RunTrainings(made)
                role = role_of(trainings, self._membership)
                if isinstance(role, AtWorker):
                    role.serve(trainings)
                    return
                journal = Journal(listening(on_note=self._on_note), remember=REMEMBERED)
                self._running = SharedRun(role, trainings, journal, self._watch)
            else:
                self._running.join(made)
        assert run_training.run is not None
        yield from run_training.run.steps(run_training)

    def _watch(self, stack: contextlib.ExitStack, world: World) -> None:
        """Take the leader from this world until it is left, and keep the last: scripts save after the loop."""
        self._world = world

        def leave() -> None:
            self._world, self._led_last = None, leads(world)
            if self._membership is not None and isinstance(world, Node):
                trainings_of(self._membership.meeting.run).part(world.reached, world.generation)

        stack.callback(leave)


def _planned(scheme: Scheme, training: Training) -> Plan:
    try:
        return scheme.plan(samples=training.planned)
    except PlanError as error:
        if training.coupled is None:
            raise
        raise PlanError(
            f"a batch of {training.batch_size} has {training.planned} micro-batches of {training.micro_batch}, which "
            f"are coupled and count as one sample each: {error}"
        ) from None


def _scheme_for(scheme: Scheme, wire: str | None, device: torch.device) -> Scheme:
    """Choose how many blocks a unit has, if the scheme does not specify it: one with `wire` or on a GPU.

    Numbers that are rounded on the way are rounded once per unit, so a unit must travel whole. A GPU takes about as
    long for a quarter of a small unit as for all of it.
    """
    if not isinstance(scheme, Striped) or (wire is None and (device.type != "cuda" or scheme.blocks is not None)):
        return scheme
    if scheme.blocks not in (None, 1):
        raise UsageError(
            f"blocks={scheme.blocks} in the scheme: with wire={wire!r} a unit is one block; leave blocks= out"
        )
    return replace(scheme, blocks=1)
