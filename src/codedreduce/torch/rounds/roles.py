"""The roles of a process in a run of trainings: alone, a rank, or the root or a worker of a tree."""

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
from codedreduce.run.agreement import Run
from codedreduce.run.injected_delays import Injection
from codedreduce.run.trainings import trainings_of
from codedreduce.run.world import Alone, World
from codedreduce.schemes import Plan, StripedPlan
from codedreduce.schemes.plan import Piece
from codedreduce.torch.data.prefetch import pieces_alone, pieces_of
from codedreduce.torch.device.device_memory import memory_alone, memory_for
from codedreduce.torch.gradient.torch_arithmetic import arithmetic
from codedreduce.torch.gradient.unit_gradient import GradientBesideScript, UnitGradient
from codedreduce.torch.model.seeding import random_state_kept
from codedreduce.torch.rounds.request_marks import DIGITS, read_step, write_step
from codedreduce.torch.rounds.requested_gradient import RequestedGradient
from codedreduce.torch.rounds.requests import Request
from codedreduce.torch.rounds.run_trainings import RunTrainings
from codedreduce.torch.rounds.shared_run import SharedRun
from codedreduce.torch.training.compilation import compile_in_turn
from codedreduce.training.checkpoints import Saving
from codedreduce.training.kept import Kept
from codedreduce.vectors import Vector

log = logging.getLogger("codedreduce")

#: Called with a world that was entered; it puts its own cleanup on the stack.
Watch = Callable[[contextlib.ExitStack, World], None]


def kept_by(run: SharedRun, saving: Saving, *, is_first: bool) -> Kept:
    """Return the checkpoints of a run."""
    if is_first and not any(one.state for one in run.trainings):
        log.warning("checkpoints have only the model: list the optimizer in train(..., state=[...])")
    return Kept(saving, run.trainings.kept_as(), run.replica, run.journal, ".pt", is_first=is_first)


class InOneProcess:
    """A process alone, which computes the whole plan."""

    is_replicated = True

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Return all pieces of a round."""
        return pieces_alone(plan)

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Return a world without other processes."""
        trainings, nothing = run.trainings, np.zeros(0)
        if isinstance(trainings.plan, StripedPlan) and "OMP_NUM_THREADS" not in os.environ:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)  # for results bit-identical to ranks, which on one host have a core each
        memory = memory_alone(trainings.device)
        world = Alone(trainings.plan, run.gradient(), run.length, trainings.dtype, run.requests.round, memory)
        self._watch(stack, world)
        return world, lambda: nothing

    def keep(self, run: SharedRun, saving: Saving) -> Kept | None:
        """Return the checkpoints."""
        return kept_by(run, saving, is_first=True)


class _InCluster:
    """The common part of all processes of a cluster."""

    def __init__(self, membership: Membership, watch: Watch) -> None:
        self._membership = membership
        self._watch = watch
        self._trainings = trainings_of(membership.meeting.run)
        self._trainings.begin()

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Return this process's own part of a round."""
        return pieces_of(plan, self._membership.rank)

    def _run(self, trainings: RunTrainings, length: int, subject: str, after: int = 0) -> Run:
        membership, first = self._membership, trainings[0]
        meeting = replace(self._trainings.meeting(membership.meeting), subject=subject)
        return Run.of(
            meeting, trainings.plan, length, membership.configuration.override(nonfinite=first.nonfinite),
            dtype=trainings.dtype, wire=first.wire, exact=length - trainings.narrow, after=after,
            seed=first.training.seed, arithmetic=arithmetic(first.training.device),
        )  # fmt: skip

    def _injection(self, trainings: RunTrainings) -> Injection | None:
        inject = self._membership.configuration.inject
        return Injection.of(inject, workers=trainings.plan.workers, seed=trainings[0].training.seed)

    def _share_cores(self) -> None:
        """Let processes of one host compute on one core each."""
        if self._membership.meeting.same_machine and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)


class OnRank(_InCluster):
    """A rank: it computes, and steps its own replicas."""

    is_replicated = True

    def __init__(self, membership: Membership, watch: Watch, left: Callable[[Node], None]) -> None:
        super().__init__(membership, watch)
        self._left = left

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Connect to the other ranks. The function that reads the models serves only to compare them."""
        self._share_cores()
        trainings, nothing = run.trainings, np.zeros(1)
        for one in trainings:
            round_ = run.requests.steps[one.number] + 1
            compile_in_turn(one.training, one.layout, self.pieces(trainings.plan), round_, trainings.planned)
        of_run = self._run(trainings, run.length, run.subject, run.requests.round)
        node = Node(
            of_run, self._membership.rank, gradient=run.gradient(), replica=run.replica,
            injection=self._injection(trainings), journal=run.journal, step=run.step,
            memory=memory_for(trainings.device, of_run),
        )  # fmt: skip
        stack.callback(self._left, node)
        stack.enter_context(node)
        node.wait_for_all()
        self._watch(stack, node)
        return node, lambda: trainings.read_models() if node.compares_next else nothing

    def keep(self, run: SharedRun, saving: Saving) -> Kept | None:
        """Return the checkpoints, in case this rank becomes the leader."""
        return kept_by(run, saving, is_first=self._membership.rank == 0)


class AtRoot(_InCluster):
    """The root of a tree: the only process that steps; it sends the model."""

    is_replicated = False

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Return nothing: the root replaces workers only if too many are missing."""
        return []

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Wait for the workers."""
        trainings = run.trainings
        of_run = self._run(trainings, run.length, run.subject, run.requests.round)
        layout, training = trainings[0].layout, trainings[0].training
        beside = GradientBesideScript(training, layout, one_core=of_run.meeting.same_machine)
        world = stack.enter_context(root_of(of_run, run.journal, _told_by_root(trainings, beside), run.step))
        self._watch(stack, world)
        vector = np.zeros(run.length, dtype=trainings.dtype)

        def read_model() -> Vector:
            layout.read_model(vector[: layout.length])
            assert run.requests.asked is not None
            write_step(vector, run.requests.asked.step)
            return vector

        return world, read_model

    def keep(self, run: SharedRun, saving: Saving) -> Kept | None:
        """Return the checkpoints."""
        return kept_by(run, saving, is_first=True)


class AtWorker(_InCluster):
    """A worker of a tree, which serves until the run is over."""

    def serve(self, trainings: RunTrainings) -> None:
        """Compute gradients on request."""
        trainings.check(is_replicated=False)
        self._share_cores()
        layout, training = trainings[0].layout, trainings[0].training
        run = self._run(trainings, layout.length + DIGITS, trainings.subject())
        compile_in_turn(training, layout, self.pieces(run.plan), training.after(0) + 1)
        with random_state_kept(), training.loading(self.pieces(run.plan), training.after(0)) as source:
            gradient = _told_by_root(trainings, UnitGradient(training, layout, source=source))
            with (
                contextlib.suppress(Outlived),
                Node(run, self._membership.rank, gradient=gradient, injection=self._injection(trainings)) as node,
            ):
                node.serve()
                self._trainings.part(node.reached, node.generation)


def _told_by_root(trainings: RunTrainings, gradient: UnitGradient) -> RequestedGradient:
    return RequestedGradient([gradient], [trainings[0].training.model], lambda model: Request(0, read_step(model)))


def role_of(trainings: RunTrainings, membership: Membership | None, watch: Watch, left: Callable[[Node], None]) -> (
    InOneProcess | OnRank | AtRoot | AtWorker
):  # fmt: skip
    """Return the role of this process in the run of these trainings."""
    if membership is None:
        return InOneProcess(watch)
    if isinstance(trainings.plan, StripedPlan):
        return OnRank(membership, watch, left)
    return AtWorker(membership, watch) if membership.rank else AtRoot(membership, watch)
