"""What a script sees: join a run, and train in it."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
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
from codedreduce.torch.checks.argument_checks import Loops, check_not_wrapped, device_of, noticing_loops
from codedreduce.torch.data.prefetch import Prefetch
from codedreduce.torch.gradient.loss_output import Losses
from codedreduce.torch.layout import Layout
from codedreduce.torch.model_replica import TorchReplica
from codedreduce.torch.rounds.roles import AtWorker, role_of
from codedreduce.torch.rounds.run_trainings import RunTraining, RunTrainings
from codedreduce.torch.rounds.shared_run import SharedRun
from codedreduce.torch.step import Step
from codedreduce.torch.training import Training
from codedreduce.training.batches import Function
from codedreduce.training.checkpoints import Saving, saving_to
from codedreduce.training.samplers import Sampler

log = logging.getLogger("codedreduce")

#: Rounds that are remembered, to learn how late the late ones were.
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

    Rank, size and the address of rank 0 come from the environment, as `codedreduce run` and torchrun set them; mpiexec
    and srun set the first two, and MASTER_ADDR and MASTER_PORT must be set beside them. `scheme` is `Striped` by
    default: every process computes and steps. Over a tree (`CodedReduce`, the default beyond 300 processes) rank 0 is
    the root, which alone steps, and `stragglers` are tolerated under each parent. `inject` makes workers late on
    purpose, to try it out. With `on_excess="approximate"` a round over a tree goes on with the best approximation when
    more are late than tolerated, instead of waiting; stripes refuse it. `on_note` is told what a person should hear of
    (logged by default). With `audit=0.02` that part of all gradients is computed by a second worker, and compared to
    the bit before it is used; who was wrong is named, and not used any more after `quarantine` times (2). Without a
    launcher this process is alone, and computes everything itself; with `Striped(4)`, or CODEDREDUCE_UNITS=4, as 4
    ranks would, to the bit.
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
        excess = replace(membership.excess, do=on_excess or membership.excess.do)
        membership = replace(
            membership, inject=inject or membership.inject, excess=excess,
            auditing=membership.auditing.or_else(audit, quarantine),
        )  # fmt: skip
    return Cluster(membership, scheme, on_note or (lambda note: log.warning(note.reason)))


class Cluster:
    """This process's place in a run. Use it in a `with` block; when rank 0 leaves it, the run ends for everyone."""

    def __init__(self, membership: Membership | None, scheme: Scheme, on_note: OnNote) -> None:
        self._membership = membership
        self._scheme = scheme
        self._on_note = on_note
        self.loops = Loops()
        self._made: list[weakref.ref[RunTraining]] = []  # trainings whose first round has not been asked for
        self._trainings = 0  # that were made so far
        self._running: SharedRun | None = None
        self._world: World | None = None
        self._led_last: bool | None = None  # whether the last run was led from here
        self._left_alone: str | None = None  # why this rank may not leave its loop by itself

    @property
    def rank(self) -> int:
        """0 coordinates, or is the root of a tree."""
        return self._membership.rank if self._membership else 0

    @property
    def size(self) -> int:
        """Processes in the run."""
        return self._membership.size if self._membership else 1

    @property
    def scheme(self) -> Scheme:
        """Who computes what, and who steps."""
        return self._scheme

    @property
    def is_root(self) -> bool:
        """Whether the run is led from here: where to print and save. Rank 0 at first; of ranks, another if it dies."""
        if self._world is not None:
            return leads(self._world)
        return self.rank == 0 if self._led_last is None else self._led_last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            with contextlib.suppress(*(() if kind is None else (UsageError,))):  # there is an error already
                self._running.close(kind, error, trace)
        if self._left_alone is not None and kind is None:
            raise UsageError(self._left_alone)
        if kind is None:
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

        With `Striped` that is on every rank: each takes the same step of its own, as with DDP, and begins with the
        model of rank 0. Random generators are seeded anew each time, alike on all ranks. A `break` on the
        rank that leads (`is_root`) ends the run on all after the same round; one elsewhere alone is an error. `state`:
        whatever else a step changes and has `state_dict` (the optimizer, a scheduler, an average of the model), for a
        rank that fell so far behind that it must take it from another. Over a tree only rank 0 yields, and the others
        serve until the run is over. How long it is trained is said by `steps`, or by `epochs`.

        `losses(model, batch)` gives one loss per sample; or (sums, weights), for the mean sum(sums) / sum(weights) over
        the batch; or (losses, weights or None, metrics), a dictionary of numbers for each sample, whose means are in
        `step.metrics`. By a third parameter it is told the step: its round and epoch. Which samples a batch has follows
        from the seed (`batch_indices`): all of them in a new random order in every epoch, whose last batch, if it is
        not full, is left out (`drop_last=False` keeps it). `sampler` draws otherwise: `Sequential()`,
        `WithReplacement()`, `Weighted(weights)`, or a function of (seed, round) that gives the samples of the round's
        batch. `micro_batch` bounds how many samples go through the model at once. `num_workers` processes load the
        samples of the next rounds, `prefetch` ahead at most, while this one computes. `device` is where the model and
        the batches are moved. `wire="bfloat16"` halves what travels: it is rounded on the way, in the same way whoever
        straggles.

        With `checkpoint`, a folder, the rank that leads writes the model and `state` there every so many rounds
        (`every=100`) or seconds (`"60s"`), when the loop body is through, and after the last round; `resume=True` goes
        on from the last one, on all ranks. Who keeps files of his own says where they end: `first_round=101` draws and
        counts as if 100 rounds had been.

        An error in `losses`, or a gradient that is not finite, is tried on another worker; the run ends if it repeats
        there. With `nonfinite="pass"` gradients that are not finite are summed like others, for those who scale losses.

        Several trainings that are made before the first round of any share a run, and take turns as the script asks
        for their steps: `zip(d_steps, g_steps)`, or `next(g_steps)` in the other's loop; not over a tree.

        What cannot work (BatchNorm in training mode, a loss that is not per sample, a dataset without indices, another
        model or other data on another node) raises here, on every node, before the first round. So does a loss that
        depends on the samples beside it, found by a rehearsal; if it is meant, `coupled="micro-batch"` computes whole
        micro-batches of `micro_batch` samples, the same whoever does.
        """
        said = self._membership.nonfinite if self._membership is not None else REFUSE
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
            raise UsageError(f"wire={wire!r} would lose what float64 parameters are for; leave it out")
        if self.rank == 0:
            for warning in training.rehearsal.warnings:
                log.warning(warning)
        run_training = RunTraining(
            training=training, layout=layout, plan=_planned(_scheme_for(self._scheme, wire, layout.device), training),
            replica=TorchReplica(model, state), wire=wire, nonfinite=check_nonfinite(nonfinite or said),
            saving=self._saving(checkpoint, every, resume), state=state, stream=self._trainings,
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
        """When its first round is asked for, a training shares a run with all that were made by then."""
        if self._running is not None and self._running.is_left:
            self._running.close()  # by an error that the script has caught
        if run_training.run is None:
            made = [one for one in (made() for made in self._made) if one is not None]
            made, self._made = made if run_training in made else [run_training], []
            if self._running is None or self._running.is_over:
                trainings = RunTrainings(made)
                role = role_of(trainings, self._membership, self._watch, self._look_how_it_left)
                if isinstance(role, AtWorker):
                    role.serve(trainings)
                    return
                self._running = SharedRun(role, trainings, self._journal())
            else:
                self._running.join(made)
        assert run_training.run is not None
        yield from run_training.run.steps(run_training)

    def _journal(self) -> Journal:
        return Journal(listening(on_note=self._on_note), remember=REMEMBERED)

    def _saving(self, checkpoint: str | Path | None, every: int | str, resume: bool) -> Saving | None:
        """Where and when checkpoints are written. A process in the place of one that died goes on from them."""
        saving, membership = saving_to(checkpoint, every, resume=resume), self._membership
        if saving is None or membership is None:
            return saving
        return replace(saving, resume=resume or bool(membership.restarted), run=membership.meeting.run)

    def _watch(self, stack: contextlib.ExitStack, world: World) -> None:
        """Ask this world who leads, as long as it is entered."""
        self._world = world
        stack.callback(self._part_from, world)
        stack.callback(self._forget_world)

    def _part_from(self, world: World) -> None:
        """A training, or what was trained so far, is over: how many were in."""
        if self._membership is not None and isinstance(world, Node):
            trainings_of(self._membership.meeting.run).part(world.reached, world.generation)

    def _forget_world(self) -> None:
        """The run is over; who led it last is still asked where to save."""
        self._led_last = self._world is not None and leads(self._world)
        self._world = None

    def _look_how_it_left(self, node: Node) -> None:
        self._left_alone = node.left_alone


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
    """How a unit is cut, if nobody said so.

    Numbers that are rounded on their way are so once a unit: it then travels whole, whoever computes it. A GPU takes
    about as long for a quarter of a small unit as for all of it.
    """
    if not isinstance(scheme, Striped) or (wire is None and (device.type != "cuda" or scheme.blocks is not None)):
        return scheme
    if scheme.blocks not in (None, 1):
        raise UsageError(f"with wire={wire!r} a unit is computed in one block, and the scheme says {scheme.blocks}")
    return replace(scheme, blocks=1)
