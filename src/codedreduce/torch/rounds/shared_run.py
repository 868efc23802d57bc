"""A run that trainings share: one set of connections, and rounds in the order of the script's requests.

Usually a run has one training. Trainings that are made before the first round of any of them share a run. So do
trainings that are made while another is in progress: the ranks then connect again, with longer vectors. A run ends when
all its trainings have ended.

A rank that fell behind catches up by state transfer. The state includes the progress of each training and the next
request. If the rank's own script requests something else, the rank helps to compute what the others request, and takes
a state again, until both request the same. A script cannot take a state in the middle of a step (`step.evaluate()`):
it gets zeros until the loop body ends, and takes a state after that.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from codedreduce.errors import CodedReduceError, Diverged, Outlived, UsageError
from codedreduce.run.failures import REFUSE
from codedreduce.run.journal import Journal
from codedreduce.run.world import Over, RoundResult, World, leads
from codedreduce.torch.gradient.unit_gradient import UnitGradient
from codedreduce.torch.model.layout import Means
from codedreduce.torch.model.seeding import BETWEEN_ROUNDS, random_state_kept, seed_everything
from codedreduce.torch.rounds.loop_body import UntrackedChanges
from codedreduce.torch.rounds.loop_exit import is_unwinding
from codedreduce.torch.rounds.model_replica import WholeReplica
from codedreduce.torch.rounds.requested_gradient import RequestedGradient
from codedreduce.torch.rounds.requests import DIGITS, Request, RequestMarks, Requests
from codedreduce.torch.rounds.run_trainings import RunTraining, RunTrainings
from codedreduce.torch.rounds.step import Number, Step
from codedreduce.torch.training.training import check_samples_are_apart
from codedreduce.training.kept import Kept
from codedreduce.training.rounds import Round
from codedreduce.vectors import Vector, is_finite

if TYPE_CHECKING:
    from codedreduce.torch.rounds.roles import Role

log = logging.getLogger("codedreduce")


class SharedRun:
    """The trainings of one run, from the first requested round to the last."""

    def __init__(
        self, role: Role, trainings: list[RunTraining], journal: Journal,
        watch: Callable[[contextlib.ExitStack, World], None],
    ) -> None:  # fmt: skip
        self.trainings = RunTrainings()
        self.journal = journal
        self.requests = Requests()
        self.replica = WholeReplica(self.requests)
        self._role = role
        self._watch = watch  # called with each world that is entered; it puts its own cleanup on the stack
        self._kept: Kept | None = None
        self._in_bodies: list[tuple[RunTraining, int]] = []  # the steps with an open loop body, in this order
        self._to_keep: Step | None = None  # the step to save after its loop body
        self._folder = contextlib.ExitStack()  # checkpoints, random generators, and processes that load samples
        self._stack = contextlib.ExitStack()  # the world
        self._world: World | None = None
        self._read_model: Callable[[], Vector] = lambda: np.zeros(0)
        self._has_met = self._is_adrift = self.is_over = False
        self.is_left = False  # an error in a loop body ended the loop; `close` receives that error
        self.left_alone: str | None = None  # why this rank may not leave its loop by itself
        self._is_new = True  # there are trainings that the world does not know
        self._add(trainings)
        self.trainings.lay_out()
        self.subject = self.trainings.subject()  # before a checkpoint is loaded
        with contextlib.ExitStack() as folder:
            if self._role.is_replicated:
                folder.enter_context(random_state_kept())
            self._resume(folder)
            self._load_ahead(trainings, folder)
            self._folder = folder.pop_all()
        self._process = os.getpid()
        atexit.register(self._close_at_exit)

    # -- begin and end

    def _add(self, trainings: list[RunTraining]) -> None:
        RunTrainings([*self.trainings, *trainings]).check(is_replicated=self._role.is_replicated)
        for one in trainings:
            one.run, one.number = self, len(self.trainings)
            one.untracked = UntrackedChanges(one.training.model, reaches_all=self._role.is_replicated)
            self.trainings.append(one)
            self.replica.add(one.replica)
            self.requests.add(one.training.after(0), one.stream)
        self.request_marks = RequestMarks(len(self.trainings)) if self._role.is_replicated else None

    def join(self, trainings: list[RunTraining]) -> None:
        """Add trainings while others are in progress."""
        if any(one.saving is not None for one in (*self.trainings, *trainings)):
            raise UsageError(
                "a training with checkpoint= can share a run only with trainings made before the first round: make all "
                "of them first, or close() those that have ended"
            )
        self._add(trainings)
        self._load_ahead(trainings, self._folder)
        self._is_new = True

    def _load_ahead(self, trainings: Sequence[RunTraining], folder: contextlib.ExitStack) -> None:
        """Start the processes that load samples, where `num_workers` is set; at first, before there are threads."""
        for one in trainings:
            plan, after = self.trainings.plan, self.requests.steps[one.number]
            one.source = folder.enter_context(one.training.loading(self._role.pieces(plan), after, plan.samples))

    def _resume(self, folder: contextlib.ExitStack) -> None:
        saved = next((one for one in self.trainings if one.saving is not None), None)
        if saved is None or saved.saving is None:
            return
        is_first = self._role.is_first
        if is_first and not any(one.state for one in self.trainings):
            log.warning("checkpoints have only the model: list the optimizer in train(..., state=[...])")
        subject = self.trainings.kept_as()
        self._kept = Kept(saved.saving, subject, self.replica, self.journal, ".pt", is_first=is_first)
        after = folder.enter_context(self._kept).resume()
        self.requests.begin_after(saved.number, saved.training.after(after))

    @property
    def length(self) -> int:
        """The length of its vectors: that of the longest training, and the marks of the request."""
        return self.trainings.length + (self.request_marks.length if self.request_marks is not None else DIGITS)

    def gradient(self) -> RequestedGradient:
        """Return the gradient function of its rounds, where every process has the models."""
        planned = self.trainings.plan.samples
        gradients = [
            UnitGradient(one.training, one.layout, given_model=False, source=one.source, planned=planned)
            for one in self.trainings
        ]
        return RequestedGradient(
            gradients, [one.training.model for one in self.trainings], self._asked, self.request_marks
        )

    def _asked(self, model: Vector) -> Request:
        assert self.requests.asked is not None
        return self.requests.asked

    def step(self) -> int:
        """Return the number of the step that a round begins, or 0 if it is an evaluation within a step."""
        asked = self.requests.asked
        return asked.step if asked is not None and asked.is_step else 0

    def _entered(self) -> World:
        """Return the world, with a vector layout for the current models; enter it again if the layout changed."""
        if self._world is not None and not self._is_new and self.trainings.are_current:
            return self._world
        if self._has_met:
            self._world = None
            self._stack.close()
        self.trainings.lay_out()
        if self._has_met:
            self.subject = self.trainings.subject()
        self._has_met, self._is_new = True, False
        for one in self.trainings:
            self._stack.enter_context(one.stepping)
        self._world, self._read_model = self._role.enter(self._stack, self)
        self._watch(self._stack, self._world)
        return self._world

    def close(self, kind: Any = None, error: Any = None, trace: Any = None, *, is_between_steps: bool = True) -> None:
        """End the run for this process, with the error if there was one."""
        if self.is_over:
            return
        self.is_over = True
        atexit.unregister(self._close_at_exit)
        self.requests.asked = None
        try:
            self._stack.__exit__(kind, error, trace)
        finally:
            self.left_alone = getattr(self._world, "left_alone", None)
            self._world = None
            if is_between_steps:
                self._folder.__exit__(kind, error, trace)
            else:
                self._folder.close()

    def _leave(self, *, by_error: bool) -> None:
        """The script has left its loop. After a `break` the run ends; an error goes to the caller of `close`."""
        self.is_left = by_error
        if not by_error:
            self.close(*sys.exc_info())

    def _close_at_exit(self) -> None:
        """Close the run if the script has ended without doing so; Python has printed the script's error, if any.

        A variable that still refers to the steps (often a progress bar) drops them too late: no thread runs any more.
        """
        if os.getpid() != self._process:  # in a process that the script has forked
            return
        error = getattr(sys, "last_value", None)
        self.close(type(error) if error is not None else None, error)

    def _close_if_through(self) -> None:
        given = zip(self.trainings, self.requests.steps, strict=True)
        if not any(one.is_open and step < one.training.steps for one, step in given):
            self._keep()
            self.close()

    # -- what a script does

    def steps(self, run_training: RunTraining) -> Iterator[Step]:
        """Yield the steps of one of its trainings."""
        try:
            while (step := self._next(run_training)) is not None:
                yield step
        except GeneratorExit:
            run_training.is_open = False
            run_training.stepping.over(by_break=True)
            if not any(one.is_open for one in self.trainings):
                self._leave(by_error=is_unwinding())
            raise
        except BaseException:
            self.close(*sys.exc_info(), is_between_steps=run_training.saving is not None)
            raise
        run_training.is_open = False
        run_training.stepping.over()
        self._close_if_through()

    def _next(self, run_training: RunTraining) -> Step | None:
        self._end_bodies(run_training)
        if run_training.saving is not None:
            self._keep()
        round_ = self._request(run_training, self.requests.step_of)
        if round_ is None:
            return None
        run_training.replica.has_stepped = True
        number = self.requests.steps[run_training.number]
        step = self._give(run_training, round_, number)
        if run_training.saving is not None:
            self._to_keep = step
        if self._role.is_replicated:
            seed_everything(
                run_training.training.seed, number, BETWEEN_ROUNDS, self.requests.streams[run_training.number]
            )
        assert run_training.untracked is not None
        run_training.untracked.begins()
        self._in_bodies.append((run_training, number))
        return step

    def _end_bodies(self, run_training: RunTraining) -> None:
        """End the loop body of a training's step, and those of other trainings that began in it."""
        if run_training in [one for one, _ in self._in_bodies]:
            is_through = False
            while not is_through:
                one, number = self._in_bodies.pop()
                assert one.untracked is not None
                one.untracked.ended(number)
                check_samples_are_apart(one.training.model, coupled=one.training.coupled is not None)
                if one.layout.is_current():  # otherwise a new layout follows
                    one.layout.statistics.check()
                is_through = one is run_training

    def _keep(self) -> None:
        """After the body of a step, write a checkpoint if it is time."""
        step, self._to_keep = self._to_keep, None
        if step is not None and self._kept is not None and self._world is not None and not self._is_adrift:
            steps = next(one.training.steps for one in self.trainings if one.saving is not None)
            self._kept.after(step.round, is_last=step.round == steps, leads=leads(self._world))

    def _evaluate(self, run_training: RunTraining, number: int) -> torch.Tensor:
        """Compute the gradient and loss of a step's batch again, at the current parameters."""
        if (
            self.is_over
            or not run_training.is_open
            or (self.requests.steps[run_training.number] != number and not self._is_adrift)
        ):
            raise UsageError(f"step {number} is over: call step.evaluate() in the loop body of the same step")
        try:
            with random_state_kept():
                round_ = None if self._is_adrift else self._request(run_training, self.requests.evaluation_of)
            if round_ is not None:
                return torch.tensor(self._give(run_training, round_, number).loss, dtype=torch.float64)
        except BaseException:
            self.close(*sys.exc_info(), is_between_steps=False)
            raise
        for one in run_training.layout.parameters:
            one.grad = torch.zeros_like(one)
        return torch.tensor(run_training.loss, dtype=torch.float64)

    # -- rounds

    def _request(self, run_training: RunTraining, what: Callable[[int], Request]) -> Round | None:
        """Run a round for the script's request; return None if there is none, or this rank cannot use it."""
        told: Request | None = None  # the request of the others, after this rank has taken a state
        while not self.is_over:
            request = what(run_training.number)
            skips = told is not None and told != request
            self.requests.asked = told if skips else request
            is_through = request.step > run_training.training.steps and not skips
            if is_through and self._has_met:
                return None
            try:
                world = self._entered()
            except Outlived:  # this process was restarted after this training, and gets its result with the next one
                self.close()
                return None
            if is_through:
                return None
            if self._is_adrift:
                self._is_adrift = False
                _drop(world)
            began, taken = time.monotonic(), self.replica.taken
            outcome = world.aggregate(self._read_model())
            if isinstance(outcome, RoundResult) and not skips:
                self._check(outcome, request)
                self.requests.answered(outcome.round)
                return Round(result=outcome, began=began, journal=self.journal)
            self.requests.round = outcome.round
            if isinstance(outcome, Over):
                self._end_with_others(request)
            elif isinstance(outcome, RoundResult):  # it is for another training, or in the middle of a step
                _drop(world)
            else:
                told = self._told(request, told if skips else None, has_taken=self.replica.taken > taken)
                if not request.is_step:
                    self._is_adrift = True
                    return None
        return None

    def _check(self, outcome: RoundResult, request: Request) -> None:
        """Check that all ranks made this request; before the error, `close` lets others get the sum and see it."""
        if self.request_marks is None:
            return
        try:
            self.request_marks.check(outcome.vector, request, outcome.round)
        except UsageError:
            with contextlib.suppress(UsageError):
                self.close(is_between_steps=False)
            raise

    def _told(self, request: Request, skipped: Request | None, *, has_taken: bool) -> Request | None:
        """Return the next request of the others, if this rank has taken their state; else it must keep its own."""
        if has_taken:
            return self.requests.asked
        if skipped is None:
            return None
        raise CodedReduceError(
            f"this rank fell behind: it requests {request}, but the others requested {skipped}; no rank is left that "
            "could give it the state after that"
        )

    def _end_with_others(self, request: Request) -> None:
        self.close()
        if not request.is_step:
            raise UsageError(
                f"the run was over when this rank requested {request}: the leader has left or finished its loop. All "
                "ranks must call step.evaluate() equally often"
            )

    def _give(self, run_training: RunTraining, round_: Round, number: int) -> Step:
        """Set `.grad` to the mean gradient, and return the step with all that is known of the round."""
        training, layout = run_training.training, run_training.layout
        total = round_.total[: layout.length]
        means = layout.write_gradients(total, training.batches.size(number))
        run_training.stepping.given(number, layout.parameters)
        if run_training.nonfinite == REFUSE:
            _check_finite(total, means, number)
        over = round_.over(means.loss)
        run_training.loss = over.loss
        return Step(
            round=number, epoch=training.batches.epoch(number), ends_epoch=training.batches.ends_epoch(number),
            loss=Number(over.loss), metrics={name: Number(mean) for name, mean in means.metrics.items()},
            seconds=round_.result.seconds, late=over.late, saved=self.journal.saved, residual=over.residual,
            _evaluate=lambda: self._evaluate(run_training, number),
        )  # fmt: skip


def _check_finite(total: Vector, means: Means, number: int) -> None:
    """Raise an error if the sum is not finite: workers check only their own part, and a process alone checks none."""
    if means.weight == 0:
        raise Diverged(
            number,
            f"round {number}: the weights that losses() returned sum to 0 over the whole batch, so it has no mean; "
            "leave such batches out, or use larger ones",
        )
    if not is_finite(total):
        raise Diverged(
            number,
            f"round {number}: the gradient is not finite; use a smaller learning rate, check the data, or accept it "
            'with nonfinite="pass"',
        )


def _drop(world: World) -> None:
    """Make a rank take another's state before its next round."""
    drop = getattr(world, "drop", None)
    assert drop is not None, "only ranks fall behind"
    drop()
