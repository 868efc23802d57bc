"""Batch normalisation over fixed micro-batches, with running statistics over the whole batch.

In training mode a layer normalises by the statistics of its micro-batch, and keeps a running mean and variance for
evaluation. The result must not depend on how many micro-batches each rank computes. So a pass leaves the running
statistics unchanged, and its own mean and variance, times the number of samples, are summed beside the gradient. After
every round, on each rank that steps, each layer receives the average over all micro-batches as one update:

    running = (1 - momentum) running + momentum average
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from codedreduce.errors import UsageError

_TRACKED = ("running_mean", "running_var", "num_batches_tracked")


def normalising(model: torch.nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return the layers that normalise by the statistics of the current batch, with their names."""
    return [(name, one) for name, one in model.named_modules() if isinstance(one, _BatchNorm) and one.training]


class RunningStatistics:
    """The running statistics of all layers that track them: for each its mean, variance, and number of samples.

    `beside`: other models that a pass may go through, as a generator's pass goes through the discriminator.
    """

    def __init__(self, model: torch.nn.Module, beside: Sequence[torch.nn.Module] = ()) -> None:
        self._model = model
        layers = [one for each in (model, *beside) for _, one in normalising(each) if one.running_mean is not None]
        self._layers = list(dict.fromkeys(layers))
        self._sizes = [2 * one.num_features + 1 for one in self._layers]
        self.length = sum(self._sizes)
        self._seen: dict[_BatchNorm, list[torch.Tensor]] = {}

    def check(self) -> None:
        """Refuse layers that were set to training mode later: their statistics would not be summed over the ranks."""
        for name, one in normalising(self._model):
            if one.running_mean is not None and one not in self._layers:
                raise UsageError(
                    f"{name or 'the model'} is {type(one).__name__}, and was not in training mode when train(...) was "
                    "called: its running statistics would differ between ranks. Call model.train() before that"
                )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record the statistics of a pass, and leave the running statistics unchanged."""
        self._seen = {}
        with contextlib.ExitStack() as stack:
            for layer in self._layers:
                stack.enter_context(self._watched(layer))
            yield

    @contextlib.contextmanager
    def _watched(self, layer: _BatchNorm) -> Iterator[None]:
        """Replace the buffers, and set the momentum to 1, so that the layer writes the last statistics there.

        Losses that call `.eval()` on the way (adversarial samples, labels of a teacher) get the running statistics.
        """
        kept, momentum = {name: layer._buffers[name] for name in _TRACKED}, layer.momentum
        seen = {name: torch.zeros_like(cast(torch.Tensor, buffer)) for name, buffer in kept.items()}

        def before(layer: torch.nn.Module, given: Any) -> None:
            if not layer.training:
                layer._buffers.update(kept)

        def after(layer: torch.nn.Module, given: Any, found: Any) -> None:
            if not layer.training:
                layer._buffers.update(seen)
                return
            assert isinstance(layer, _BatchNorm)
            mean, variance = cast(torch.Tensor, layer.running_mean), cast(torch.Tensor, layer.running_var)
            self._seen.setdefault(layer, []).append(torch.cat([mean, variance]).double())

        layer._buffers.update(seen)
        layer.momentum = 1.0
        hooks = layer.register_forward_pre_hook(before), layer.register_forward_hook(after)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            layer.momentum = momentum
            layer._buffers.update(kept)

    def seen(self, samples: int, like: torch.Tensor) -> torch.Tensor:
        """Return the statistics of a pass over `samples` samples; if a layer was called several times, the average."""
        parts = [like.new_zeros(0)]
        for layer, size in zip(self._layers, self._sizes, strict=True):
            part = like.new_zeros(size)
            if layer in self._seen:
                part[:-1] = torch.stack(self._seen[layer]).mean(0) * samples
                part[-1] = samples
            parts.append(part)
        return torch.cat(parts)

    @torch.no_grad()
    def remember(self, totals: np.ndarray[Any, Any]) -> None:
        """Update the running statistics of the layers with the sums over a batch."""
        ends = np.cumsum(self._sizes)
        for layer, size, end in zip(self._layers, self._sizes, ends, strict=True):
            part = totals[end - size : end]
            if part[-1] == 0:  # the layer was not used, or not in training mode
                continue
            tracked = cast(torch.Tensor, layer.num_batches_tracked)
            tracked += 1
            momentum = 1 / float(tracked) if layer.momentum is None else layer.momentum
            mean, variance = np.split(part[:-1] / part[-1], 2)
            for running, now in ((layer.running_mean, mean), (layer.running_var, variance)):
                buffer = cast(torch.Tensor, running)
                buffer.lerp_(torch.from_numpy(now).to(buffer), momentum)
