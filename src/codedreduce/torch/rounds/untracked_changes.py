"""Detects changes of the model in a loop body that other processes do not receive.

In stripes the body runs on every rank, so its changes happen everywhere. Over a tree it runs at the root only, and the
root sends only the parameters that were trainable at the start. This module refuses changes of which parameters are
trainable, and of buffers or frozen parameters. It cannot see changes outside of the model.

A body that evaluates, often on one rank only, leaves the model in evaluation mode. Plain scripts reset it when their
next epoch begins. The next round's gradients are computed before that, so this module resets the mode.
"""

from __future__ import annotations

import torch

from codedreduce.errors import UsageError
from codedreduce.torch.model.batch_norm import normalising

#: The id of a tensor, and its number of in-place writes.
_Written = tuple[int, int]

_INSTEAD = (
    "over a tree workers do not receive this change. Train in stripes (codedreduce run -n, or cr.join(Striped(n))), "
    "where the body runs on every rank"
)


class UntrackedChanges:
    """Compares the model before and after a loop body. `reaches_all=False`: other processes do not run the body."""

    def __init__(self, model: torch.nn.Module, *, reaches_all: bool) -> None:
        self._model = model
        self._reaches_all = reaches_all

    def begins(self) -> None:
        """Record the model before the loop body."""
        self._was_training = [one.training for one in self._model.modules()]
        if not self._reaches_all:
            self._trainable = self._which_are_trainable()
            self._fixed = self._what_is_fixed()

    def ended(self, round_: int) -> None:
        """After the loop body, restore training mode, and refuse changes that workers would not receive."""
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
                    f"round {round_}: the loop body has changed {name!r}, which is not trained; {_INSTEAD}. Or let "
                    "losses(model, batch, step) compute it from step.round"
                )

    def _which_are_trainable(self) -> dict[str, bool]:
        return {name: one.requires_grad for name, one in self._model.named_parameters()}

    def _named(self) -> dict[str, torch.Tensor]:
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def _what_is_fixed(self) -> dict[str, _Written]:
        """Return buffers and frozen parameters, except running statistics, which the root updates and uses alone."""
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
