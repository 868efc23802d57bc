"""Optimizers that step without gradients, which a loop body took away first, or with those of one round of many.

Plain scripts begin with `zero_grad()`, and accumulate gradients by leaving it out. Here `.grad` is set anew each round.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from codedreduce.errors import UsageError

log = logging.getLogger("codedreduce")


class Stepping:
    """Looks at every optimizer's first step of a round, as long as it is entered.

    The gradients of a round are there when a body begins. A `zero_grad()` at its usual place then leaves nothing to
    step with, and nothing is ever learnt; so that is refused. Of a body that steps every few rounds it is said once
    that the other gradients are lost; not if they were not finite, which is why a scaler leaves steps out.
    """

    def __init__(self) -> None:
        self.says = True  # on one process of a run
        self.outside: tuple[weakref.ref[torch.Tensor], ...] = ()  # what losses use, and the model has not
        self._left_out = 0  # rounds with gradients that nobody stepped with
        self._given: set[int] = set()
        self._witness: torch.nn.Parameter | None = None  # one whose gradient is not zero
        self._looked_at: set[int] = set()  # optimizers, since gradients were given last
        self._has_stepped = False  # in this round
        self._was_finite = False
        self._round = self._rounds = 0
        self._untouched: _Untouched | None = None  # until somebody steps

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_pre_hook(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()

    def given(self, round_: int, parameters: Sequence[torch.nn.Parameter]) -> None:
        """These have the gradients of a round now."""
        have = [one for one in parameters if one.grad is not None]
        if not have:
            raise UsageError(
                f"round {round_}: no loss of the batch depends on a trainable parameter, so there is no gradient. In "
                "this round losses() has .detach(), torch.no_grad() or a constant on the way from the model to them"
            )
        if round_ != self._round:  # and not once more in the middle of one, as a closure does
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
        """The loop is over: say so if its model is as it was at first.

        A script that leaves it in the first round has the gradient that it wanted.
        """
        if by_break and self._rounds == 1:
            return
        if self.says and self._untouched is not None and self._untouched.is_so():
            log.warning(
                "nobody stepped: after %d round%s the model is as it was at first. .grad is set in every round; have "
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
                "round %d: nobody stepped with the gradients of the last %d rounds, and they are lost: .grad is set "
                "anew every round. To accumulate, say a larger batch_size= and micro_batch=, or add .grad up yourself",
                self._round, self._left_out,
            )  # fmt: skip
        self._left_out = 0
        has_lost = any(one is self._witness for one in mine) and not _is_there(self._witness)
        if has_lost or all(one.grad is None for one in mine):
            raise UsageError(
                f"round {self._round}: {type(optimizer).__name__}.step() finds no gradients. They are there when the "
                "loop body begins, so zero_grad() before the step takes them away: leave it out"
            )

    def _check_outside(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse to leave out silently what would be learnt if the model had it, as a loss function's parameters."""
        outside = {id(one) for one in (ref() for ref in self.outside) if one is not None}
        found = [one for group in optimizer.param_groups for one in group["params"] if id(one) in outside]
        if found and all(one.grad is None for one in found):
            raise UsageError(
                f"{type(optimizer).__name__} has {len(found)} parameter{'s' if len(found) > 1 else ''} that losses() "
                f"uses and the model has not, of shape {tuple(found[0].shape)}: they get no gradient. Give train(...) "
                "one module that has all: nn.ModuleList([model, criterion]), or model.extra = nn.Parameter(...)"
            )


class _Untouched:
    """Whether nobody has written to parameters, in any way, with an optimizer of torch's or without."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], learns: torch.nn.Parameter | None) -> None:
        self._versions = [(one, one._version) for one in parameters]
        sample = parameters[0] if learns is None else learns
        self._sample = sample, sample.detach().clone()  # writing to .data has no version

    def is_so(self) -> bool:
        """Whether they are as they were."""
        now, then = self._sample
        return all(one._version == was for one, was in self._versions) and torch.equal(now.detach(), then)


def _is_there(parameter: torch.nn.Parameter | None) -> bool:
    return parameter is not None and parameter.grad is not None and bool(_values(parameter).any())


def _values(parameter: torch.nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.coalesce().values() if gradient.is_sparse else gradient
