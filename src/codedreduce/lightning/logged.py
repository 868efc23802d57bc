"""Collects what a training step logs for the samples of each rank, as metrics of the whole batch.

A training step calls `self.log` for the samples that a rank happens to compute. The numbers, one per sample or a mean
over these samples, are summed over the batch beside the gradient. After the round the means are logged with the
original options (`prog_bar`, `on_epoch`, ...).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric

from codedreduce.errors import UsageError
from codedreduce.torch.model.loss_output import Sum


class Logged:
    """The names that a training step logs, with their options."""

    def __init__(self) -> None:
        self._how: dict[str, dict[str, Any]] = {}
        self._now: dict[str, Any] = {}

    @contextlib.contextmanager
    def instead_of(self, module: LightningModule, samples: int) -> Iterator[dict[str, Any]]:
        """Replace `module.log`, and collect its values for `samples` samples in the dictionary that this yields."""

        def log(name: str, value: Any, *args: Any, **how: Any) -> None:
            if args:
                raise UsageError(f"self.log({name!r}, ...): pass prog_bar= and other options by keyword")
            self._how[name] = {key: how[key] for key in how if key not in ("batch_size", "sync_dist")}
            self._now[name] = _number(name, value, samples)

        found: dict[str, Any] = {}
        self._now = found
        module.log = log  # type: ignore[method-assign]
        try:
            yield found
        finally:
            del module.log

    def log(self, module: LightningModule, means: Any, samples: int) -> None:
        """Log the means over a batch."""
        for name, how in self._how.items():
            if name in means:
                module.log(name, torch.tensor(means[name]), batch_size=samples, **how)


def _number(name: str, value: Any, samples: int) -> Any:
    if isinstance(value, Metric):
        raise UsageError(
            f"self.log({name!r}, ...) in training_step received a {type(value).__name__}, which would cover only the "
            "samples of this rank; log a mean over the samples, or a number for each: the mean over the whole batch is "
            "then logged"
        )
    number = torch.as_tensor(value).detach()
    return number if number.shape == (samples,) and samples > 1 else Sum(number.float().mean() * samples)
