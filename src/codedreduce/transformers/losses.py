"""The loss of some samples as the `Trainer` computes it, as a sum, and of how many items it is.

The loss of a batch is a mean over its items: the tokens that count, or samples. Transformers' models are told how many
items the whole batch has, and divide by that; with 1 they give a sum. Some do not listen, and give the mean over what
they are given: that times its items is the sum. Which it is, is tried; what is neither is refused.
"""

from __future__ import annotations

from typing import Any

import torch

from codedreduce.errors import UsageError
from codedreduce.torch.data.data_loader import Counted
from codedreduce.torch.gradient.loss_output import Sum
from codedreduce.torch.seeding import random_state_kept


class ItemLosses:
    """Losses of a trainer's model, by `Trainer.compute_loss`."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._divides: bool | None = None

    def __call__(self, model: torch.nn.Module, batch: Counted) -> tuple[Sum, Sum]:
        """The sum over the items of these samples, and how many there are."""
        inputs = self._trainer._prepare_inputs(batch.batch)
        items = self._items(inputs)
        weight = torch.tensor(float(batch.samples)) if items is None else items.double()
        if self._divides is None:
            self._divides = items is not None and self._try(model, inputs)
        if self._divides:
            return Sum(self._loss(model, inputs, 1)), Sum(weight)
        if not weight:  # a mean over nothing is not a number
            return Sum(sum((one * 0).sum() for one in model.parameters() if one.requires_grad)), Sum(weight)  # type: ignore[arg-type]
        loss = self._loss(model, inputs, None if items is None else 1)
        return Sum(loss * weight.to(loss)), Sum(weight)

    def _items(self, inputs: dict[str, Any]) -> torch.Tensor | None:
        """How many labels count, as the `Trainer` counts them; None if that cannot be said."""
        labels = inputs.get("shift_labels", inputs.get("labels"))
        if not isinstance(labels, torch.Tensor):
            return None
        if "shift_labels" not in inputs and self._trainer._loss_shifts_labels:
            labels = labels[..., 1:]
        return labels.ne(-100).sum()

    def _loss(self, model: torch.nn.Module, inputs: dict[str, Any], items: int | None) -> torch.Tensor:
        trainer = self._trainer
        number = None if items is None else torch.tensor(items, device=trainer.args.device)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, dict(inputs), num_items_in_batch=number)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise UsageError(f"compute_loss gives one number, a loss; it gave {getattr(loss, 'shape', type(loss))}")
        return loss

    def _try(self, model: torch.nn.Module, inputs: dict[str, Any]) -> bool:
        """Whether the loss is divided by the number of items that it is told."""
        found = []
        for items in (1, 2):
            with random_state_kept(), torch.no_grad():
                torch.manual_seed(0)
                found.append(self._loss(model, inputs, items))
        rounding = torch.finfo(found[0].dtype).eps ** 0.7  # 1.4e-5 in float32
        one, two = map(float, found)
        if abs(one - two) <= rounding * abs(one):
            return False
        if abs(one - 2 * two) <= rounding * abs(one):
            return True
        raise UsageError(
            f"the loss is {one:.5g} when num_items_in_batch is 1, and {two:.5g} when it is 2: it is neither divided by "
            "the number of items nor a mean over those at hand, as if something were added that belongs to no item "
            "(an auxiliary loss of a mixture of experts, a penalty). Leave that out, or give it to every item"
        )
