"""A training as the run has it that it is a part of."""

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
from codedreduce.torch.layout import Layout
from codedreduce.torch.model_replica import TorchReplica
from codedreduce.torch.rounds.optimizer_steps import Stepping
from codedreduce.torch.rounds.untracked_changes import UntrackedChanges
from codedreduce.torch.training import Training
from codedreduce.training.checkpoints import Saving

if TYPE_CHECKING:
    from codedreduce.torch.rounds.shared_run import SharedRun


@dataclass(eq=False, kw_only=True)
class RunTraining:
    """What is trained, how it is laid out by now, and what was said of how to run it."""

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
    is_open: bool = True  # its loop may go on
    loss: float = 0.0  # that was found last

    def lay_out(self, beside: Sequence[RunTraining]) -> None:
        """Anew: what is trainable may have changed, and there may be others by now whose models its losses use."""
        if not self.layout.is_current():
            self.layout.forget_gradients()  # what is frozen now has none, and keeps that of no round before
        models = [one.training.model for one in beside if one is not self]
        self.layout = Layout(self.training.model, self.training.form, models)

    def check_place(self) -> None:
        """Refuse what would need workers of a tree to hear what the loop body does."""
        is_known = any(isinstance(one, torch.amp.GradScaler) for one in self.state)
        if not isinstance(self.plan, StripedPlan) and (is_known or self.training.rehearsal.is_scaled):
            raise UsageError(
                "over a tree workers do not hear of a GradScaler's new scale, and would go on with the first one: use "
                "stripes (codedreduce run without --tree, cr.join(Striped(n))), or a fixed scale"
            )

    def subject(self) -> list[str]:
        """What is trained, in words, what may differ apart from the rest: all nodes must say the same."""
        training, layout = self.training, self.layout
        size = "whole" if training.micro_batch is None else f"by {training.micro_batch}"
        return [
            layout.shape(), layout.fixed(), f"{len(training.dataset)} samples", training.rehearsal.data,
            f"batches of {training.batch_size} computed {size}{', coupled' if training.coupled else ''}",
            f"batches drawn {training.batches}", f"rounds from {training.first_round}", f"{training.steps} steps",
            f"seed {training.seed}", str(training.form), f"numbers sent as {self.wire or 'they are'}",
        ]  # fmt: skip

    def kept_as(self) -> dict[str, str]:
        """What a checkpoint is of: whatever the bits of a training follow from, but the number of its steps."""
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
    """All trainings of a run. What the run has only one of must be the same for all, or suit all."""

    def check(self, *, is_replicated: bool) -> None:
        """Refuse what differs, and more than one where only the root runs the loop body."""
        if len(self) > 1 and not is_replicated:
            raise UsageError(
                "over a tree one training runs at a time, because the root alone runs the loop body: make each one "
                "when that before it is over, or close() that; for several at once, as GANs need, use stripes "
                "(codedreduce run without --tree, cr.join(Striped(n)))"
            )
        for what in ("wire", "nonfinite"):
            said = [getattr(one, what) for one in self]
            if len(set(said)) > 1:
                raise UsageError(f"trainings that share a run need the same {what}=, and were given {said}")
        if sum(one.saving is not None for one in self) > 1:
            raise UsageError("give checkpoint= to one of the trainings that share a run: it has the state of all")

    def lay_out(self) -> None:
        """All of them, as they are now."""
        for one in self:
            one.lay_out(self)

    @property
    def are_current(self) -> bool:
        """Whether what is trainable is still what was laid out."""
        return all(one.layout.is_current() for one in self)

    @property
    def plan(self) -> Plan:
        """The plan of that with the largest batch: smaller ones are laid over it, too."""
        return max(self, key=lambda one: one.training.planned).plan

    @property
    def planned(self) -> int:
        """What it is laid over."""
        return max(one.training.planned for one in self)

    @property
    def length(self) -> int:
        """Of a vector that holds what any of them needs."""
        return max(one.layout.length for one in self)

    @property
    def narrow(self) -> int:
        """How many of its numbers are gradients, whichever training they are of: what is behind them is exact."""
        return min(one.layout.numbers for one in self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of such a vector."""
        return max((one.layout.dtype for one in self), key=lambda dtype: dtype.itemsize)

    @property
    def device(self) -> torch.device | None:
        """Where all gradients are computed, if that is one device."""
        devices = {one.layout.device for one in self}
        return devices.pop() if len(devices) == 1 else None

    def subject(self) -> str:
        """What is trained, in words, what may differ apart from the rest: all nodes must say the same."""
        if len(self) == 1:
            return APART.join(self[0].subject())
        return APART.join(f"in training {one.number + 1} {what}" for one in self for what in one.subject())

    def kept_as(self) -> dict[str, str]:
        """What a checkpoint is of."""
        if len(self) == 1:
            return self[0].kept_as()
        return {f"{what} of training {one.number + 1}": said for one in self for what, said in one.kept_as().items()}

    def read_models(self) -> np.ndarray[Any, Any]:
        """The trainable parameters of all, to be compared with others'."""
        found = np.zeros(sum(one.layout.numbers for one in self), dtype=self.dtype)
        begin = 0
        for one in self:
            one.layout.read_model(found[begin : begin + one.layout.numbers])
            begin += one.layout.numbers
        return found
