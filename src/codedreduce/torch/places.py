"""Where a run of trainings takes place: in a process alone, on a rank, on the root of a tree or a worker of it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from codedreduce.errors import Outlived
from codedreduce.launch.environment import Membership
from codedreduce.node.node import Node, root_of
from codedreduce.run.alone import Alone
from codedreduce.run.inject import Injection
from codedreduce.run.run import Run
from codedreduce.run.trainings import trainings_of
from codedreduce.run.world import World
from codedreduce.schemes import Plan, StripedPlan
from codedreduce.schemes.work import Piece
from codedreduce.torch.arithmetic import arithmetic
from codedreduce.torch.asked import AskedGradient
from codedreduce.torch.book import Ask
from codedreduce.torch.compiling import compile_in_turn
from codedreduce.torch.device.memory import memory_alone, memory_for
from codedreduce.torch.loading import pieces_alone, pieces_of
from codedreduce.torch.marks import DIGITS, read_step, write_step
from codedreduce.torch.member import Members
from codedreduce.torch.seeding import random_state_kept
from codedreduce.torch.shared import SharedRun
from codedreduce.torch.unit import GradientBesideScript, UnitGradient
from codedreduce.training.checkpoints import Saving
from codedreduce.training.kept import Kept
from codedreduce.vectors import Vector

log = logging.getLogger("codedreduce")

#: Told of a world that is entered; what it has to do at the end goes on the stack.
Watch = Callable[[contextlib.ExitStack, World], None]


def kept_by(run: SharedRun, saving: Saving, *, is_first: bool) -> Kept:
    """The checkpoints of a run."""
    if is_first and not any(one.state for one in run.members):
        log.warning("checkpoints have nothing but the model: name the optimizer in train(..., state=[...])")
    return Kept(saving, run.members.kept_as(), run.replica, run.journal, ".pt", is_first=is_first)


class InOneProcess:
    """A process alone, which evaluates the plan where the models are."""

    is_replicated = True

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """All of a round."""
        return pieces_alone(plan)

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """There is nothing to enter."""
        members, nothing = run.members, np.zeros(0)
        if isinstance(members.plan, StripedPlan) and "OMP_NUM_THREADS" not in os.environ:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)  # to have the bits of ranks, which on one machine have a core each
        memory = memory_alone(members.device)
        world = Alone(members.plan, run.gradient(), run.length, members.dtype, run.book.round, memory)
        self._watch(stack, world)
        return world, lambda: nothing

    def keep(self, run: SharedRun, saving: Saving) -> Kept | None:
        """Checkpoints."""
        return kept_by(run, saving, is_first=True)


class _InCluster:
    """What all processes of a cluster have."""

    def __init__(self, membership: Membership, watch: Watch) -> None:
        self._membership = membership
        self._watch = watch
        self._trainings = trainings_of(membership.meeting.run)
        self._trainings.begin()

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Its own part of a round."""
        return pieces_of(plan, self._membership.rank)

    def _run(self, members: Members, length: int, subject: str, after: int = 0) -> Run:
        membership, first = self._membership, members[0]
        meeting = replace(self._trainings.meeting(membership.meeting), subject=subject)
        return Run.of(
            meeting, members.plan, length, dtype=members.dtype, wire=first.wire,
            exact=length - members.narrow, excess=membership.excess, after=after,
            nonfinite=first.nonfinite, audit=membership.auditing.of(first.training.seed),
            arithmetic=arithmetic(first.training.device),
        )  # fmt: skip

    def _injection(self, members: Members) -> Injection | None:
        return Injection.of(self._membership.inject, workers=members.plan.workers, seed=members[0].training.seed)

    def _share_cores(self) -> None:
        """Processes of one machine compute on one core each."""
        if self._membership.meeting.same_machine and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)


class OnRank(_InCluster):
    """A rank: it computes, and steps replicas of its own."""

    is_replicated = True

    def __init__(self, membership: Membership, watch: Watch, left: Callable[[Node], None]) -> None:
        super().__init__(membership, watch)
        self._left = left

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Meet the others. What is read of the models is only compared."""
        self._share_cores()
        members, nothing = run.members, np.zeros(1)
        for one in members:
            round_ = run.book.steps[one.number] + 1
            compile_in_turn(one.training, one.layout, self.pieces(members.plan), round_, members.planned)
        of_run = self._run(members, run.length, run.subject, run.book.round)
        node = Node(
            of_run, self._membership.rank, gradient=run.gradient(), replica=run.replica,
            injection=self._injection(members), journal=run.journal, step=run.step,
            memory=memory_for(members.device, of_run),
        )  # fmt: skip
        stack.callback(self._left, node)
        stack.enter_context(node)
        node.wait_for_all()
        self._watch(stack, node)
        return node, lambda: members.read_models() if node.compares_next else nothing

    def keep(self, run: SharedRun, saving: Saving) -> Kept | None:
        """Checkpoints, if it comes to lead."""
        return kept_by(run, saving, is_first=self._membership.rank == 0)


class AtRoot(_InCluster):
    """The root of a tree, which alone steps, and sends the model."""

    is_replicated = False

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Nothing: it stands in for workers only if too many are missing."""
        return []

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Wait for the workers."""
        members = run.members
        of_run = self._run(members, run.length, run.subject, run.book.round)
        layout, training = members[0].layout, members[0].training
        beside = GradientBesideScript(training, layout, one_core=of_run.meeting.same_machine)
        world = stack.enter_context(root_of(of_run, run.journal, _told_by_root(members, beside), run.step))
        self._watch(stack, world)
        vector = np.zeros(run.length, dtype=members.dtype)

        def read_model() -> Vector:
            layout.read_model(vector[: layout.length])
            assert run.book.asked is not None
            write_step(vector, run.book.asked.step)
            return vector

        return world, read_model

    def keep(self, run: SharedRun, saving: Saving) -> Kept | None:
        """Checkpoints."""
        return kept_by(run, saving, is_first=True)


class AtWorker(_InCluster):
    """A worker of a tree, which serves until the run is over."""

    def serve(self, members: Members) -> None:
        """Compute what is asked for."""
        members.check(is_replicated=False)
        self._share_cores()
        layout, training = members[0].layout, members[0].training
        run = self._run(members, layout.length + DIGITS, members.subject())
        compile_in_turn(training, layout, self.pieces(run.plan), training.after(0) + 1)
        with random_state_kept(), training.loading(self.pieces(run.plan), training.after(0)) as source:
            gradient = _told_by_root(members, UnitGradient(training, layout, source=source))
            with (
                contextlib.suppress(Outlived),
                Node(run, self._membership.rank, gradient=gradient, injection=self._injection(members)) as node,
            ):
                node.serve()
                self._trainings.part(node.reached, node.generation)


def _told_by_root(members: Members, gradient: UnitGradient) -> AskedGradient:
    return AskedGradient([gradient], [members[0].training.model], lambda model: Ask(0, read_step(model)))


def place_of(members: Members, membership: Membership | None, watch: Watch, left: Callable[[Node], None]) -> (
    InOneProcess | OnRank | AtRoot | AtWorker
):  # fmt: skip
    """Where the run of these trainings takes place."""
    if membership is None:
        return InOneProcess(watch)
    if isinstance(members.plan, StripedPlan):
        return OnRank(membership, watch, left)
    return AtWorker(membership, watch) if membership.rank else AtRoot(membership, watch)
