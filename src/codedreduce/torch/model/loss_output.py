"""The return value of a script's `losses`: a loss for each sample, with optional weights and metrics.

    losses                      one loss per sample: the step has the gradient of their mean
    (sums, weights)             the gradient of sum(sums) / sum(weights) over the batch: for example a mean over tokens
    (losses, weights, metrics)  a dictionary of numbers, one for each sample: `step.metrics` has their means
    (losses, metrics)           the same without weights, like (losses, None, metrics)

All of these are summed over the batch beside the gradient, and divided after that, so the result does not depend on
which rank computed which samples. So each of them may also be the `Sum` over the samples, as frameworks return it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from codedreduce.errors import UsageError

#: The script's function: losses(model, batch), or losses(model, batch, step).
Losses = Callable[..., Any]


class At(NamedTuple):
    """The step that losses are computed for: its round and its epoch, both counted from 1."""

    round: int
    epoch: int


class Sum(NamedTuple):
    """One number for several samples: the sum of their numbers."""

    of: torch.Tensor


@dataclass(frozen=True)
class Form:
    """Which numbers come with the losses: the same in every batch, and on every rank."""

    weighted: bool = False
    metrics: tuple[str, ...] = ()

    @property
    def numbers(self) -> int:
        """The number of sums beside a gradient: one per metric, the weights, the loss."""
        return len(self.metrics) + self.weighted + 1

    def __str__(self) -> str:
        beside = [
            *(["weights"] if self.weighted else []),
            *([f"metrics {', '.join(self.metrics)}"] if self.metrics else []),
        ]
        return " with ".join(["losses", *([" and ".join(beside)] if beside else [])])


@dataclass(frozen=True)
class LossOutput:
    """The loss output for some samples: one number for each, or their sum."""

    losses: torch.Tensor
    weights: torch.Tensor | None
    metrics: dict[str, torch.Tensor]

    @property
    def form(self) -> Form:
        """Which numbers come with the losses."""
        return Form(self.weights is not None, tuple(sorted(self.metrics)))

    def totals(self) -> torch.Tensor:
        """Return the sums: metrics in the order of their names, then weights, then losses."""
        parts = [self.metrics[name] for name in sorted(self.metrics)]
        if self.weights is not None:
            parts.append(self.weights)
        return torch.stack([*(_wide(part).sum() for part in parts), _wide(self.losses.detach().sum())])

    def rows(self) -> dict[str, torch.Tensor]:
        """Return all numbers by kind, one for each sample; for a `Sum` that one number."""
        rows = {"the loss": self.losses}
        if self.weights is not None:
            rows["the weight"] = self.weights
        rows |= {f"the metric {name!r}": self.metrics[name] for name in sorted(self.metrics)}
        return {name: _wide(row.detach()) for name, row in rows.items()}


def _wide(part: torch.Tensor) -> torch.Tensor:
    """Convert to float64, to hold sums of many numbers; Apple's devices have only float32."""
    return part.to(torch.float32 if part.device.type == "mps" else torch.float64)


def read_loss_output(found: Any, samples: int) -> LossOutput:
    """Check the return value of `losses` for `samples` samples."""
    losses, weights, metrics = _parts(found)
    losses = _checked("losses", losses, samples)
    if weights is not None:
        weights = _checked("weights", weights, samples, losses.device)
        if weights.requires_grad:
            raise UsageError(
                "the weights that losses() returned depend on parameters: the gradient of sum(sums) / sum(weights) is "
                "only known for constant weights; .detach() them"
            )
    if metrics is not None and not isinstance(metrics, Mapping):
        raise UsageError(f"losses() returned metrics of type {type(metrics).__name__}; return a dictionary")
    named = {}
    for name, one in (metrics or {}).items():
        named[str(name)] = _checked(f"metric {name!r}", one, samples, losses.device).detach()
    return LossOutput(losses, weights, named)


def _parts(found: Any) -> tuple[Any, Any, Any]:
    if isinstance(found, Sum) or not isinstance(found, tuple | list):
        return found, None, None
    if len(found) == 2:
        return (found[0], None, found[1]) if isinstance(found[1], Mapping) else (found[0], found[1], None)
    if len(found) == 3:
        return found[0], found[1], found[2]
    raise UsageError(
        f"losses() returned {len(found)} values; return losses, (sums, weights), or (losses, weights or None, metrics)"
    )


def _checked(what: str, found: Any, samples: int, device: torch.device | None = None) -> torch.Tensor:
    """Return one number for each of `samples` samples, or their sum; raise an error for another shape."""
    if isinstance(found, Sum):
        return found.of.reshape(()).to(device or found.of.device)
    if device is not None:
        found = torch.as_tensor(found, device=device)
    if isinstance(found, torch.Tensor) and found.shape == (samples,):
        return found
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    each = "one loss per sample" if what == "losses" else f"one number per sample in its {what}"
    hint = " Is reduction='none' missing?" if what == "losses" else ""
    raise UsageError(
        f"losses() must return {each}: for {samples} samples a tensor of shape ({samples},); it returned {shape}.{hint}"
    )


def takes_step(losses: Losses) -> bool:
    """Whether `losses` takes the step: it has a third parameter that is required, or is named `step`.

    >>> takes_step(lambda model, batch, step: 0), takes_step(lambda model, batch, temperature=1.0: 0)
    (True, False)
    """
    try:
        parameters = inspect.signature(losses).parameters.values()
    except (TypeError, ValueError):  # something that is not written in Python
        return False
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in places if one.default is one.empty]
    has_others = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if len(needed) > 3 or (len(places) < 2 and not has_others):
        raise UsageError(f"losses takes {len(places)} parameters; it must take (model, batch) or (model, batch, step)")
    return len(places) > 2 and (len(needed) == 3 or places[2].name == "step")
