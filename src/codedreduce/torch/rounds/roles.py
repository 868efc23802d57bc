"""The roles of a process in a run of trainings: alone, a rank, or the root or a worker of a tree.

`is_replicated`: every process runs the script, so random generators are seeded alike before a loop body, and several
trainings can share a run. Otherwise only the root runs it, and sends the step of a round after the model. `is_first`:
the process writes the checkpoints from the start, and not only if it becomes the leader. `pieces` are what the process
computes in a fault-free round; its samples can be loaded ahead. `enter` enters the run after the rounds that are over;
it returns the world, and the function that reads the model.
"""

from __future__ import annotations

import contextlib
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
from codedreduce.torch.device.device_memory import memory_alone, memory_for
from codedreduce.torch.gradient.torch_arithmetic import arithmetic
from codedreduce.torch.gradient.unit_gradient import GradientBesideScript, UnitGradient
from codedreduce.torch.model.seeding import random_state_kept
from codedreduce.torch.rounds.requested_gradient import RequestedGradient
from codedreduce.torch.rounds.requests import DIGITS, Request, read_step, write_step
from codedreduce.torch.rounds.run_trainings import RunTrainings
from codedreduce.torch.rounds.shared_run import SharedRun
from codedreduce.torch.training.compilation import compile_in_turn
from codedreduce.vectors import Vector


class InOneProcess:
    """A process alone, which computes the whole plan."""

    is_replicated = is_first = True

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Return all pieces of a round, in this order."""
        pieces: list[Piece] = []

        def note(piece: Piece) -> Vector:
            pieces.append(piece)
            return np.zeros(1)

        plan.reference(note)
        return pieces

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Return a world without other processes."""
        trainings, nothing = run.trainings, np.zeros(0)
        if isinstance(trainings.plan, StripedPlan) and "OMP_NUM_THREADS" not in os.environ:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)  # for results bit-identical to ranks, which on one host have a core each
        memory = memory_alone(trainings.device)
        world = Alone(trainings.plan, run.gradient(), run.length, trainings.dtype, run.requests.round, memory)
        return world, lambda: nothing


class _InCluster:
    """The common part of all processes of a cluster."""

    def __init__(self, membership: Membership) -> None:
        self.is_first = membership.rank == 0
        self._membership = membership
        self._trainings = trainings_of(membership.meeting.run)
        self._trainings.begin()

    def pieces(self, plan: Plan) -> Sequence[Piece]:
        """Return this process's own part of a round."""
        return [piece for unit in plan.calm_units(self._membership.rank) for piece in unit.pieces]

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

    def enter(self, stack: contextlib.ExitStack, run: SharedRun) -> tuple[World, Callable[[], Vector]]:
        """Connect to the other ranks. The function that reads the models serves only to compare them."""
        self._share_cores()
        trainings, nothing = run.trainings, np.zeros(1)
        for one in trainings:
            round_ = run.requests.steps[one.number] + 1
            compile_in_turn(one.training, one.layout, self.pieces(trainings.plan), round_, trainings.plan.samples)
        of_run = self._run(trainings, run.length, run.subject, run.requests.round)
        node = Node(
            of_run, self._membership.rank, gradient=run.gradient(), replica=run.replica,
            injection=self._injection(trainings), journal=run.journal, step=run.step,
            memory=memory_for(trainings.device, of_run),
        )  # fmt: skip
        stack.enter_context(node)
        node.wait_for_all()
        return node, lambda: trainings.read_models() if node.compares_next else nothing


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
        vector = np.zeros(run.length, dtype=trainings.dtype)

        def read_model() -> Vector:
            layout.read_model(vector[: layout.length])
            assert run.requests.asked is not None
            write_step(vector, run.requests.asked.step)
            return vector

        return world, read_model


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


#: The roles in which a process yields steps to its script.
Role = InOneProcess | OnRank | AtRoot


def role_of(trainings: RunTrainings, membership: Membership | None) -> Role | AtWorker:
    """Return the role of this process in the run of these trainings."""
    if membership is None:
        return InOneProcess()
    if isinstance(trainings.plan, StripedPlan):
        return OnRank(membership)
    return AtWorker(membership) if membership.rank else AtRoot(membership)
