"""What a script sees: join a run, and train in it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from codedreduce.errors import Outlived, UsageError
from codedreduce.schemes import MasterWorker, Plan, Scheme, Striped, StripedPlan
from codedreduce.schemes.choice import choose_to_replicate
from codedreduce.torch.layout import Layout
from codedreduce.torch.replica import TorchReplica
from codedreduce.torch.unit import (
    BETWEEN_ROUNDS,
    GradientBesideScript,
    Losses,
    Training,
    UnitGradient,
    seed_everything,
)
from codedreduce.training.checkpoints import Saving, saving_to
from codedreduce.training.kept import Kept
from codedreduce.training.rounds import Round, rounds
from codedreduce.vectors import Vector
from codedreduce.worlds.alone import Alone
from codedreduce.worlds.environment import Membership, read_membership
from codedreduce.worlds.failures import REFUSE, check_nonfinite
from codedreduce.worlds.inject import Injection
from codedreduce.worlds.journal import Journal, OnNote, RoundLog, listening
from codedreduce.worlds.run import Run
from codedreduce.worlds.trainings import trainings_of
from codedreduce.worlds.world import World, leads
from codedreduce.worlds.zeromq.node import Node, root_of

log = logging.getLogger("codedreduce")

ReadModel = Callable[[Vector], None]

#: Enters a world for a model that is laid out so, after so many rounds; what reads the model, where it is to be read.
Enter = Callable[[contextlib.ExitStack, Layout, UnitGradient, int], tuple[World, ReadModel]]

#: Rounds that are remembered, to learn how late the late ones were.
REMEMBERED = 64


@dataclass(frozen=True, kw_only=True)
class Step:
    """One round: every parameter's `.grad` is the mean gradient of its batch.

    What follows is heard of by rank 0 alone, and is empty or 0 elsewhere: a rank has the sum from the keepers, often
    before rank 0 has it and knows who was late, and would wait for one more message in every step. So nothing that a
    step does may depend on it. `late` names the workers whose part somebody else delivered. `saved` is how much longer
    the rounds so far would have taken had they waited for all, as far as it is known by now: late workers are measured
    when they stop. `residual` is above 0 if more were late than tolerated and `on_excess="approximate"` left some of
    the batch out.
    """

    round: int
    loss: float
    seconds: float
    late: tuple[int, ...] = ()
    saved: float = 0.0
    residual: float = 0.0


def join(
    scheme: Scheme | None = None,
    stragglers: int = 1,
    *,
    inject: str | None = None,
    on_excess: str | None = None,
    on_note: OnNote | None = None,
    environment: Mapping[str, str] | None = None,
) -> Cluster:
    """Join the run that a launcher has started this process for.

    Rank, size and the address of rank 0 come from the environment, as `codedreduce run` and torchrun set them; mpiexec
    and srun set the first two, and MASTER_ADDR and MASTER_PORT must be set beside them. `scheme` is `Striped` by
    default: every process computes and steps. Over a tree (`CodedReduce`, the default beyond 300 processes) rank 0 is
    the root, which alone steps, and `stragglers` are tolerated under each parent. `inject` makes workers late on
    purpose, to try it out. With `on_excess="approximate"` a round over a tree goes on with the best approximation when
    more are late than tolerated, instead of waiting; stripes refuse it. `on_note` is told what a person should hear of
    (logged by default). Without a launcher this process is alone, and computes everything itself.
    """
    membership = read_membership(os.environ if environment is None else environment)
    if scheme is None:
        if membership is None:
            scheme = MasterWorker(1)
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
        membership = replace(membership, inject=inject or membership.inject, excess=excess)
    return Cluster(membership, scheme, on_note or (lambda note: log.warning(note.reason)))


class Cluster:
    """This process's place in a run. Use it in a `with` block; when rank 0 leaves it, the run ends for everyone."""

    def __init__(self, membership: Membership | None, scheme: Scheme, on_note: OnNote) -> None:
        self._membership = membership
        self._scheme = scheme
        self._on_note = on_note
        self._nonfinite = REFUSE
        self._running: contextlib.ExitStack | None = None
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
            self._running.close()
        if self._left_alone is not None and kind is None:
            raise UsageError(self._left_alone)

    def train(
        self,
        model: torch.nn.Module,
        dataset: Any,
        losses: Losses,
        batch_size: int,
        steps: int,
        seed: int = 0,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch: int | None = None,
        device: torch.device | str | None = None,
        wire: str | None = None,
        state: Sequence[Any] = (),
        checkpoints: str | Path | None = None,
        checkpoint_every: int | str = "60s",
        resume: bool = False,
        nonfinite: str | None = None,
    ) -> Iterator[Step]:
        """Yield once a round, with the mean gradient of its batch in every parameter's `.grad`.

        With `Striped` that is on every rank: each takes the same step of its own, as with DDP, and begins with the
        model of rank 0. Random generators are seeded anew each time, alike on all ranks. A `break` on the
        rank that leads (`is_root`) ends the run on all after the same round; one elsewhere alone is an error. `state`:
        whatever else a step changes and has `state_dict` (the optimizer, a scheduler, an average of the model), for a
        rank that fell so far behind that it must take it from another. Over a tree only rank 0 yields, and the others
        serve until the run is over.

        `losses(model, batch)` gives one loss per sample. Which samples a batch has follows from the seed
        (`batch_indices`). `micro_batch` bounds how many samples go through the model at once. `device` is where the
        model and the batches are moved. `wire="bfloat16"` halves what travels: it is rounded on the way, in the same
        way whoever straggles.

        With `checkpoints`, a folder, the rank that leads writes the model and `state` there every so many rounds
        (`checkpoint_every=100`) or seconds (`"60s"`), when the loop body is through, and after the last round;
        `resume=True` goes on from the last one, on all ranks.

        An error in `losses`, or a gradient that is not finite, is tried on another worker; the run ends if it repeats
        there. With `nonfinite="pass"` gradients that are not finite are summed like others, for those who scale losses.

        What cannot work (BatchNorm in training mode, a loss that is not per sample, a dataset without indices, another
        model on another node) raises here, on every node, before the first round.
        """
        said = self._membership.nonfinite if self._membership is not None else REFUSE
        self._nonfinite = check_nonfinite(nonfinite or said)
        where = torch.device(device) if device is not None else None
        if where is not None:
            model.to(where)
        training = Training(
            model=model, dataset=dataset, losses=losses, batch_size=batch_size, steps=steps, seed=seed,
            collate_fn=collate_fn, micro_batch=micro_batch, device=where,
        )  # fmt: skip
        layout = Layout(model)
        if wire is not None and layout.dtype != np.float32:
            raise UsageError(f"wire={wire!r} would lose what float64 parameters are for; leave it out")
        training.rehearse()
        plan = _scheme_for(self._scheme, wire).plan(samples=batch_size)
        replica = TorchReplica(model, state)
        subject = _subject(training, layout, wire)
        journal = Journal(remember=REMEMBERED)
        if self._membership is not None:
            journal = Journal(listening(on_note=self._on_note), remember=REMEMBERED)
        saving, kept = self._saving(checkpoints, checkpoint_every, resume), None
        if saving is not None:
            kept = self._keeping(saving, _kept_as(training, layout, plan, wire, state), plan, replica, journal)
        if self._membership is None:
            return self._train_where_it_is(training, replica, journal, _alone(plan), kept)
        self._membership.check(plan)
        trainings_of(self._membership.meeting.run).begin()
        if isinstance(plan, StripedPlan):
            return self._as_rank(training, replica, plan, wire, journal, kept)
        if self._membership.rank:
            return self._serve(training, layout, self._run(layout, plan, wire, subject), self._membership)

        def root(after: int) -> contextlib.AbstractContextManager[World]:
            run = self._run(layout, plan, wire, subject, after)
            return root_of(run, journal, GradientBesideScript(training, layout, one_core=run.meeting.same_machine))

        return self._train(training, layout, root, journal, kept)

    def _saving(self, checkpoints: str | Path | None, every: int | str, resume: bool) -> Saving | None:
        """Where and when checkpoints are written. A process in the place of one that died goes on from them."""
        saving, membership = saving_to(checkpoints, every, resume=resume), self._membership
        if saving is None or membership is None:
            return saving
        return replace(saving, resume=resume or bool(membership.restarted), run=membership.meeting.run)

    def _keeping(
        self, saving: Saving, subject: dict[str, str], plan: Plan, replica: TorchReplica, journal: Journal
    ) -> Kept | None:
        """Checkpoints, on the ranks that may come to write them."""
        is_first = self.rank == 0
        if not is_first and not isinstance(plan, StripedPlan):
            return None
        if is_first and subject["state"] == "none":
            log.warning("checkpoints have nothing but the model: name the optimizer in train(..., state=[...])")
        return Kept(saving, subject, replica, journal, ".pt", is_first=is_first)

    def _run(self, layout: Layout, plan: Plan, wire: str | None, subject: str, after: int = 0) -> Run:
        assert self._membership is not None
        meeting = replace(trainings_of(self._membership.meeting.run).meeting(self._membership.meeting), subject=subject)
        return Run.of(
            meeting, plan, layout.length, dtype=layout.dtype, wire=wire, excess=self._membership.excess, after=after,
            nonfinite=self._nonfinite,
        )  # fmt: skip

    def _train(
        self, training: Training, layout: Layout, root: Callable[[int], contextlib.AbstractContextManager[World]],
        journal: Journal, kept: Kept | None,
    ) -> Iterator[Step]:  # fmt: skip
        """On the root of a tree, which alone steps."""
        vector = np.zeros(layout.length, dtype=layout.dtype)
        with contextlib.ExitStack() as stack:
            self._running = stack
            after = stack.enter_context(kept).resume() if kept is not None else 0
            try:
                world = stack.enter_context(root(after))
            except Outlived:  # this process was started again, and its workers have gone on to the next training
                return
            stack.callback(self._part_from, world)
            for round_ in rounds(world, journal, training.steps, vector, layout.read_model, after):
                yield _step(round_.over(layout.write_gradients(round_.total, training.batch_size)), round_, journal)
                if kept is not None:
                    kept.after(round_.number, is_last=round_.number == training.steps)
            self._running = None

    def _train_where_it_is(
        self, training: Training, replica: TorchReplica, journal: Journal, enter: Enter, kept: Kept | None
    ) -> Iterator[Step]:
        """In a process alone, and on every rank: the parameters are as the script leaves them.

        When a script changes what is trainable, it does so on all ranks, and all lay the vector out anew; also one that
        fell behind, and is told by another's state what is trainable.
        """
        with contextlib.ExitStack() as folder:
            after = folder.enter_context(kept).resume() if kept is not None else 0
            yield from self._rounds_where_it_is(training, replica, journal, enter, kept, after)

    def _rounds_where_it_is(
        self, training: Training, replica: TorchReplica, journal: Journal, enter: Enter, kept: Kept | None, after: int
    ) -> Iterator[Step]:
        """Until all are taken. Also if a checkpoint was after the last one: the other ranks must be told so."""
        has_met = False

        def renewed(round_: int) -> bool:
            nonlocal after
            after = round_
            return layout.is_current()

        while after < training.steps or not has_met:
            has_met = True
            layout = Layout(training.model)
            vector = np.zeros(layout.length, dtype=layout.dtype)
            with contextlib.ExitStack() as stack:
                self._running = stack
                try:
                    world, read_model = enter(stack, layout, UnitGradient(training, layout, given_model=False), after)
                except Outlived:  # this process was started again, and takes what came of it with the next training
                    return
                stack.callback(self._part_from, world)
                self._world = world
                stack.callback(self._forget_world)
                for round_ in rounds(world, journal, training.steps, vector, read_model, after, renewed):
                    over = round_.over(layout.write_gradients(round_.total, training.batch_size))
                    after = over.round
                    replica.has_stepped = True
                    seed_everything(training.seed, after, BETWEEN_ROUNDS)
                    yield _step(over, round_, journal)
                    if kept is not None:
                        kept.after(after, is_last=after == training.steps, leads=leads(world))
                    if not layout.is_current():
                        break
                else:
                    if layout.is_current():
                        after = training.steps
            self._running = None

    def _as_rank(
        self, training: Training, replica: TorchReplica, plan: StripedPlan, wire: str | None, journal: Journal,
        kept: Kept | None,
    ) -> Iterator[Step]:  # fmt: skip
        """Every rank yields."""
        subject = _subject(training, Layout(training.model), wire)  # as the script made it, not as a checkpoint has it
        entered = False
        assert self._membership is not None
        membership = self._membership
        if membership.meeting.same_machine and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # ranks share this machine's cores
        injection = Injection.of(membership.inject, workers=plan.workers, seed=training.seed)

        def enter(
            stack: contextlib.ExitStack, layout: Layout, gradient: UnitGradient, after: int
        ) -> tuple[World, ReadModel]:
            nonlocal entered
            now = _subject(training, layout, wire) if entered else subject
            entered = True
            run = self._run(layout, plan, wire, now, after)
            node = Node(
                run, membership.rank, gradient=gradient, replica=replica, injection=injection, journal=journal
            )  # fmt: skip
            stack.callback(self._look_how_it_left, node)
            stack.enter_context(node)
            node.wait_for_all()

            def read_model(vector: Vector) -> None:
                if node.compares_next:  # nobody else reads it
                    layout.read_model(vector)

            return node, read_model

        return self._train_where_it_is(training, replica, journal, enter, kept)

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

    def _serve(self, training: Training, layout: Layout, run: Run, membership: Membership) -> Iterator[Step]:
        if run.meeting.same_machine and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # workers share this machine's cores
        injection = Injection.of(membership.inject, workers=run.plan.workers, seed=training.seed)
        with (
            contextlib.suppress(Outlived),
            Node(run, membership.rank, gradient=UnitGradient(training, layout), injection=injection) as node,
        ):
            node.serve()
            self._part_from(node)
        return
        yield  # a generator that yields nothing


def _alone(plan: Plan) -> Enter:
    """The world of a process alone, which evaluates the plan where the model is."""

    def enter(
        stack: contextlib.ExitStack, layout: Layout, gradient: UnitGradient, after: int
    ) -> tuple[World, ReadModel]:
        return Alone(plan, gradient, layout.length, layout.dtype, after), lambda vector: None

    return enter


def _scheme_for(scheme: Scheme, wire: str | None) -> Scheme:
    """Numbers that are rounded on their way are so once a unit: it then travels whole, whoever computes it."""
    if wire is None or not isinstance(scheme, Striped):
        return scheme
    if scheme.blocks not in (None, 1):
        raise UsageError(f"with wire={wire!r} a unit is computed in one block, and the scheme says {scheme.blocks}")
    return replace(scheme, blocks=1)


def _step(over: RoundLog, round_: Round, journal: Journal) -> Step:
    return Step(
        round=over.round, loss=over.loss, seconds=round_.result.seconds, late=over.late, saved=journal.saved,
        residual=over.residual,
    )  # fmt: skip


def _kept_as(training: Training, layout: Layout, plan: Plan, wire: str | None, state: Sequence[Any]) -> dict[str, str]:
    """What a checkpoint is of: whatever the bits of a training follow from, but the number of its steps."""
    return {
        "model": layout.structure(), "samples": str(len(training.dataset)), "batch": str(training.batch_size),
        "micro-batch": str(training.micro_batch or "none"), "seed": str(training.seed),
        "scheme": plan.scheme.expression, "wire": wire or "as they are",
        "state": ", ".join(type(one).__name__ for one in state) or "none",
    }  # fmt: skip


def _subject(training: Training, layout: Layout, wire: str | None) -> str:
    """What is trained, in words: all nodes must say the same."""
    size = "whole" if training.micro_batch is None else f"by {training.micro_batch}"
    return (
        f"{layout.digest()}, {len(training.dataset)} samples, batches of {training.batch_size} computed {size}, "
        f"seed {training.seed}" + (f", sent as {wire}" if wire else "")
    )
