"""What a loop body did to the model that others do not hear of.

In stripes every rank's body runs, and what it changes is changed everywhere. Over a tree it runs at the root alone:
workers are sent the trainable parameters as they were laid out. A change of what is trainable, and of buffers or frozen
parameters, is seen here and refused. What a body changes outside of the model cannot be seen.

A body that evaluates, often on one rank alone, leaves the model in evaluation mode, and plain scripts set it back when
their next epoch begins. The next round's gradients are computed before that, so it is set back here.
"""

from __future__ import annotations

import torch

from codedreduce.errors import UsageError
from codedreduce.torch.gradient.batch_norm import normalising

#: A tensor, and how often it was written to in place.
_Written = tuple[int, int]

_INSTEAD = (
    "over a tree workers do not hear of it, and would go on as before. Train in stripes (codedreduce run -n, or "
    "cr.join(Striped(n))), where the body runs on every rank"
)


class UntrackedChanges:
    """Looks at the model before and after a loop body. With `reaches_all=False` others keep what they have."""

    def __init__(self, model: torch.nn.Module, *, reaches_all: bool) -> None:
        self._model = model
        self._reaches_all = reaches_all

    def begins(self) -> None:
        """The script goes on."""
        self._was_training = [one.training for one in self._model.modules()]
        if not self._reaches_all:
            self._trainable = self._which_are_trainable()
            self._fixed = self._what_is_fixed()

    def ended(self, round_: int) -> None:
        """The script is through with a round: go on training, and refuse what will not be as it means it."""
        if self._was_training[0] and not self._model.training:
            for module, was_training in zip(self._model.modules(), self._was_training, strict=False):
                module.training = was_training
        if self._reaches_all:
            return
        now = self._which_are_trainable()
        for name, was_trainable in self._trainable.items():
            if now.get(name) != was_trainable:
                raise UsageError(
                    f"round {round_}: the loop body has {'frozen' if was_trainable else 'unfrozen'} {name!r}; "
                    + _INSTEAD
                )
        there = self._named()
        for name, was in self._fixed.items():
            if name not in there or _written(there[name]) != was:
                raise UsageError(
                    f"round {round_}: the loop body has changed {name!r}, which is not trained; {_INSTEAD}. Or have "
                    "losses(model, batch, step) work it out from step.round"
                )

    def _which_are_trainable(self) -> dict[str, bool]:
        return {name: one.requires_grad for name, one in self._model.named_parameters()}

    def _named(self) -> dict[str, torch.Tensor]:
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def _what_is_fixed(self) -> dict[str, _Written]:
        """Buffers and frozen parameters; not running statistics, which are folded in at the root and used there."""
        running = {
            id(one) for _, module in normalising(self._model) for _, one in module.named_buffers(recurse=False)
        }  # fmt: skip
        return {
            name: _written(one)
            for name, one in self._named().items()
            if not one.requires_grad and id(one) not in running and not one.is_inference()
        }


def _written(tensor: torch.Tensor) -> _Written:
    return id(tensor), -1 if tensor.is_inference() else tensor._version
