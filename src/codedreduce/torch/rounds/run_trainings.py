"""The trainings of a run, with their layouts, plans and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.run.agreement import APART
from codedreduce.schemes import Plan, StripedPlan
from codedreduce.torch.data.prefetch import BatchSource
from codedreduce.torch.model.layout import Layout
from codedreduce.torch.rounds.loop_body import Stepping, UntrackedChanges
from codedreduce.torch.rounds.model_replica import TorchReplica
from codedreduce.torch.training.training import Training
from codedreduce.training.checkpoints import Saving

if TYPE_CHECKING:
    from codedreduce.torch.rounds.shared_run import SharedRun


@dataclass(eq=False, kw_only=True)
class RunTraining:
    """A training, its current layout, and the options to run it."""

    training: Training
    layout: Layout
    plan: Plan
    replica: TorchReplica
    wire: str | None
    nonfinite: str
    saving: Saving | None
    state: Sequence[Any]
    stepping: Stepping = field(default_factory=Stepping)
    run: SharedRun | None = None
    untracked: UntrackedChanges | None = None
    source: BatchSource | None = None  # of its batches
    number: int = 0  # in its run
    stream: int = 0  # in its script, counted from 0
    is_open: bool = True  # its loop may continue
    loss: float = 0.0  # the latest loss

    def lay_out(self, beside: Sequence[RunTraining]) -> None:
        """Make a new layout: trainable parameters may have changed, and its losses may use models of new trainings."""
        if not self.layout.is_current():
            self.layout.forget_gradients()  # parameters that are frozen now must not keep gradients
        models = [one.training.model for one in beside if one is not self]
        self.layout = Layout(self.training.model, self.training.form, models)

    def check_place(self) -> None:
        """Refuse loss scaling over a tree: workers do not receive what the loop body changes."""
        is_known = any(isinstance(one, torch.amp.GradScaler) for one in self.state)
        if not isinstance(self.plan, StripedPlan) and (is_known or self.training.rehearsal.is_scaled):
            raise UsageError(
                "over a tree workers do not receive a GradScaler's new scale, and would keep the first one: use "
                "stripes (codedreduce run without --tree, cr.join(Striped(n))), or a fixed scale"
            )

    def subject(self) -> list[str]:
        """Describe the training, in parts that may differ separately; it must be the same on all ranks."""
        training, layout = self.training, self.layout
        size = "whole" if training.micro_batch is None else f"by {training.micro_batch}"
        return [
            layout.shape(), layout.fixed(), f"{len(training.dataset)} samples", training.rehearsal.data,
            f"batches of {training.batch_size} computed {size}{', coupled' if training.coupled else ''}",
            f"batches drawn {training.batches}", f"rounds from {training.first_round}", f"{training.steps} steps",
            f"seed {training.seed}", str(training.form), f"numbers sent as {self.wire or 'they are'}",
        ]  # fmt: skip

    def kept_as(self) -> dict[str, str]:
        """Describe the training for a checkpoint: all that determines its bits, except the number of steps."""
        training = self.training
        return {
            "model": self.layout.structure(), "samples": str(len(training.dataset)), "data": training.rehearsal.data,
            "batch": str(training.batch_size), "micro-batch": str(training.micro_batch or "none"),
            "coupled": training.coupled or "no", "seed": str(training.seed),
            "sampler": str(training.batches),
            "scheme": self.plan.scheme.expression, "wire": self.wire or "as they are",
            "state": ", ".join(type(one).__name__ for one in self.state) or "none",
        }  # fmt: skip


class RunTrainings(list[RunTraining]):
    """All trainings of a run. Options of the whole run must be the same for all trainings, or suit all."""

    def check(self, *, is_replicated: bool) -> None:
        """Refuse options that differ, and several trainings where only the root runs the loop body."""
        if len(self) > 1 and not is_replicated:
            raise UsageError(
                "over a tree one training runs at a time, because only the root runs the loop body: make each training "
                "after the one before it has ended, or close() that; for several at once, as GANs need, use stripes "
                "(codedreduce run without --tree, cr.join(Striped(n)))"
            )
        for what in ("wire", "nonfinite"):
            said = [getattr(one, what) for one in self]
            if len(set(said)) > 1:
                raise UsageError(f"{what}={said}: trainings that share a run must have the same {what}=")
        if sum(one.saving is not None for one in self) > 1:
            raise UsageError(
                "several trainings of one run have checkpoint=: give it to only one, which saves the state of all"
            )

    def lay_out(self) -> None:
        """Make a new layout for each training."""
        for one in self:
            one.lay_out(self)

    @property
    def are_current(self) -> bool:
        """Whether the trainable parameters are still those of the layouts."""
        return all(one.layout.is_current() for one in self)

    @property
    def plan(self) -> Plan:
        """The plan of the training with the largest batch; smaller batches use it, too."""
        return max(self, key=lambda one: one.training.planned).plan

    @property
    def length(self) -> int:
        """The length of a vector that suffices for each of them."""
        return max(one.layout.length for one in self)

    @property
    def narrow(self) -> int:
        """The number of leading numbers that are gradients in every training; the numbers after these are exact."""
        return min(one.layout.numbers for one in self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of such a vector."""
        return max((one.layout.dtype for one in self), key=lambda dtype: dtype.itemsize)

    @property
    def device(self) -> torch.device | None:
        """The device that computes all gradients, if there is only one."""
        devices = {one.layout.device for one in self}
        return devices.pop() if len(devices) == 1 else None

    def subject(self) -> str:
        """Describe the trainings, in parts that may differ separately; it must be the same on all ranks."""
        if len(self) == 1:
            return APART.join(self[0].subject())
        return APART.join(f"in training {one.number + 1} {what}" for one in self for what in one.subject())

    def kept_as(self) -> dict[str, str]:
        """Describe the trainings for a checkpoint."""
        if len(self) == 1:
            return self[0].kept_as()
        return {f"{what} of training {one.number + 1}": said for one in self for what, said in one.kept_as().items()}

    def read_models(self) -> np.ndarray[Any, Any]:
        """Return the trainable parameters of all trainings, to compare them with those of other ranks."""
        found = np.zeros(sum(one.layout.numbers for one in self), dtype=self.dtype)
        begin = 0
        for one in self:
            one.layout.read_model(found[begin : begin + one.layout.numbers])
            begin += one.layout.numbers
        return found
