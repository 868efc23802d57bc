"""What a training step logs while samples are computed, one part here and one there: taken as metrics of the batch.

`self.log` in a training step is called for the samples that a rank happens to compute. Its numbers, one a sample or a
mean over these samples, are added up over the batch beside the gradient; after the round the means are logged in
earnest, with what else was said (`prog_bar`, `on_epoch`, ...).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric

from codedreduce.errors import UsageError
from codedreduce.torch.gradient.loss_output import Sum


class Logged:
    """Names that a training step logs, and how."""

    def __init__(self) -> None:
        self._how: dict[str, dict[str, Any]] = {}
        self._now: dict[str, Any] = {}

    @contextlib.contextmanager
    def instead_of(self, module: LightningModule, samples: int) -> Iterator[dict[str, Any]]:
        """Take what is logged meanwhile, for so many samples; it is in the dictionary when this is left."""

        def log(name: str, value: Any, *args: Any, **how: Any) -> None:
            if args:
                raise UsageError(f"self.log({name!r}, ...): say prog_bar= and the like by their names")
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
            f"self.log({name!r}, ...) in training_step was given a {type(value).__name__}, whose state would have what "
            "this rank happens to compute; log a mean over the samples, or a number for each, whose mean over the "
            "whole batch is then logged"
        )
    number = torch.as_tensor(value).detach()
    return number if number.shape == (samples,) and samples > 1 else Sum(number.float().mean() * samples)
