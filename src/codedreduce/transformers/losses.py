"""The loss of some samples as the `Trainer` computes it, converted to a sum, with the number of items.

The loss of a batch is a mean over its items: the tokens that count, or samples. Transformers' models receive the number
of items of the whole batch, and divide by it; with 1 they return a sum. Some models ignore the number, and return the
mean over their own items; times the number of these items that is the sum. A test computation shows which case holds;
any other loss is an error.
"""

from __future__ import annotations

from typing import Any

import torch

from codedreduce.errors import UsageError
from codedreduce.torch.data.data_loader import Counted
from codedreduce.torch.model.loss_output import Sum
from codedreduce.torch.model.seeding import random_state_kept


class ItemLosses:
    """The losses of a trainer's model, by `Trainer.compute_loss`."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._divides: bool | None = None

    def __call__(self, model: torch.nn.Module, batch: Counted) -> tuple[Sum, Sum]:
        """Return the sum over the items of these samples, and the number of items."""
        inputs = self._trainer._prepare_inputs(batch.batch)
        items = self._items(inputs)
        weight = torch.tensor(float(batch.samples)) if items is None else items.double()
        if self._divides is None:
            self._divides = items is not None and self._try(model, inputs)
        if self._divides:
            return Sum(self._loss(model, inputs, 1)), Sum(weight)
        if not weight:  # a mean over no items would be NaN
            return Sum(sum((one * 0).sum() for one in model.parameters() if one.requires_grad)), Sum(weight)  # type: ignore[arg-type]
        loss = self._loss(model, inputs, None if items is None else 1)
        return Sum(loss * weight.to(loss)), Sum(weight)

    def _items(self, inputs: dict[str, Any]) -> torch.Tensor | None:
        """Return the number of labels that count, as the `Trainer` counts them; None if it is unknown."""
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
            raise UsageError(f"compute_loss returned {getattr(loss, 'shape', type(loss))}; return one number, the loss")
        return loss

    def _try(self, model: torch.nn.Module, inputs: dict[str, Any]) -> bool:
        """Whether the model divides the loss by the number of items that it receives."""
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
            "the number of items nor a mean over its own items. It may have a term that belongs to no item (an "
            "auxiliary loss of a mixture of experts, a penalty). Leave that out, or add it to every item"
        )
