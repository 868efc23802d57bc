"""Detects mistakes in a loop body: optimizers that step without the gradients, and changes that others do not receive.

Plain scripts begin with `zero_grad()`, and accumulate gradients without it. Here each round sets `.grad` again.

In stripes the body runs on every rank, so its changes happen everywhere. Over a tree it runs at the root only, and the
root sends only the parameters that were trainable at the start. So changes of which parameters are trainable, and of
buffers or frozen parameters, are refused. Changes outside of the model cannot be seen.

A body that evaluates, often on one rank only, leaves the model in evaluation mode. Plain scripts reset it when their
next epoch begins. The next round's gradients are computed before that, so the mode is reset here.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from codedreduce.errors import UsageError
from codedreduce.torch.model.batch_norm import normalising

log = logging.getLogger("codedreduce")

#: The id of a tensor, and its number of in-place writes.
_Written = tuple[int, int]

_INSTEAD = (
    "over a tree workers do not receive this change. Train in stripes (codedreduce run -n, or cr.join(Striped(n))), "
    "where the body runs on every rank"
)


class Stepping:
    """Checks every optimizer's first step of a round, while it is entered.

    The gradients of a round are set before the loop body. A `zero_grad()` at its usual place removes them, so the model
    would never learn; that is an error. If a body steps only every few rounds, one warning says that the other
    gradients are lost. Gradients that are not finite do not count, because a scaler skips such steps.
    """

    def __init__(self) -> None:
        self.says = True  # only one process of a run logs warnings
        self.outside: tuple[weakref.ref[torch.Tensor], ...] = ()  # tensors that losses use outside of the model
        self._left_out = 0  # rounds with gradients that no optimizer used
        self._given: set[int] = set()
        self._witness: torch.nn.Parameter | None = None  # a parameter with a gradient that is not zero
        self._looked_at: set[int] = set()  # optimizers that were checked since gradients were set last
        self._has_stepped = False  # in this round
        self._was_finite = False
        self._round = self._rounds = 0
        self._untouched: _Untouched | None = None  # until an optimizer steps

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_pre_hook(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()

    def given(self, round_: int, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Record that these parameters have the gradients of a round."""
        have = [one for one in parameters if one.grad is not None]
        if not have:
            raise UsageError(
                f"round {round_}: no loss of the batch depends on a trainable parameter, so there is no gradient. Look "
                "for .detach(), torch.no_grad() or a constant between the model and the losses of this round"
            )
        if round_ != self._round:  # a closure sets gradients again in the same round
            if self._round and not self._has_stepped and self._was_finite:
                self._left_out += 1
            self._round, self._has_stepped = round_, False
            self._rounds += 1
        self._given = {id(one) for one in have}
        self._witness = next((one for one in sorted(have, key=torch.Tensor.numel) if _is_there(one)), None)
        if self._rounds == 1 and not self._has_stepped and self._untouched is None:
            self._untouched = _Untouched(parameters, self._witness)
        self._was_finite = self._witness is not None and bool(torch.isfinite(_values(self._witness)).all())
        self._looked_at = set()

    def over(self, *, by_break: bool = False) -> None:
        """At the end of the loop, warn if the model did not change.

        A `break` in the first round gets no warning: such a script wants only the gradient.
        """
        if by_break and self._rounds == 1:
            return
        if self.says and self._untouched is not None and self._untouched.is_so():
            log.warning(
                "no optimizer stepped: after %d round%s the model has not changed. .grad is set in every round; make "
                "an optimizer of this model's parameters, and call optimizer.step() in the loop body",
                self._rounds, "" if self._rounds == 1 else "s",
            )  # fmt: skip

    def _look(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._looked_at:
            return
        self._looked_at.add(id(optimizer))
        self._check_outside(optimizer)
        mine = [one for group in optimizer.param_groups for one in group["params"] if id(one) in self._given]
        if not mine:
            return
        self._has_stepped, self._untouched = True, None
        if self._left_out and self.says:
            self.says = False
            log.warning(
                "round %d: no optimizer used the gradients of the last %d rounds, and they are lost: every round sets "
                ".grad again. To accumulate, set a larger batch_size= and micro_batch=, or sum .grad yourself",
                self._round, self._left_out,
            )  # fmt: skip
        self._left_out = 0
        has_lost = any(one is self._witness for one in mine) and not _is_there(self._witness)
        if has_lost or all(one.grad is None for one in mine):
            raise UsageError(
                f"round {self._round}: {type(optimizer).__name__}.step() finds no gradients. They are set before the "
                "loop body begins, and zero_grad() before the step removes them: leave it out"
            )

    def _check_outside(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer of parameters outside of the model, as a loss function's, which get no gradients."""
        outside = {id(one) for one in (ref() for ref in self.outside) if one is not None}
        found = [one for group in optimizer.param_groups for one in group["params"] if id(one) in outside]
        if found and all(one.grad is None for one in found):
            raise UsageError(
                f"{type(optimizer).__name__} has {len(found)} parameter{'s' if len(found) > 1 else ''} that losses() "
                f"uses and the model does not have, of shape {tuple(found[0].shape)}: they get no gradient. Give "
                "train(...) one module with all: nn.ModuleList([model, criterion]), or model.extra = nn.Parameter(...)"
            )


class _Untouched:
    """Detects whether parameters were written to, by an optimizer or in any other way."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], learns: torch.nn.Parameter | None) -> None:
        self._versions = [(one, one._version) for one in parameters]
        sample = parameters[0] if learns is None else learns
        self._sample = sample, sample.detach().clone()  # writing to .data has no version

    def is_so(self) -> bool:
        """Whether the parameters have not changed."""
        now, then = self._sample
        return all(one._version == was for one, was in self._versions) and torch.equal(now.detach(), then)


def _is_there(parameter: torch.nn.Parameter | None) -> bool:
    return parameter is not None and parameter.grad is not None and bool(_values(parameter).any())


def _values(parameter: torch.nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.coalesce().values() if gradient.is_sparse else gradient


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
