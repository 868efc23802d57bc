"""The progress of a `Trainer`: part of a state transfer, beside the model and the optimizer.

Ranks send and load it at the same place in Lightning's loops: when Lightning requests a batch. So the counters of the
loops, the states of the callbacks and the values logged in this epoch are valid on another rank without changes.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.trainer import call


class FitState:
    """The counters of a trainer's loops, the states of its callbacks, and its metrics."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._missing: dict[str, dict[str, torch.Tensor]] = {}  # metrics of this epoch that this rank has not logged

    @property
    def _results(self) -> dict[str, Any]:
        return self._trainer.fit_loop.epoch_loop._results

    def state_dict(self) -> dict[str, Any]:
        """Return the current progress."""
        trainer = self._trainer
        return {
            "loops": trainer.fit_loop.state_dict(),
            "callbacks": call._call_callbacks_state_dict(trainer),
            "metrics": dict(trainer._logger_connector._callback_metrics),
            "epoch": {name: _sums(one) for name, one in self._results.items() if one.is_tensor and not one.has_reset},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the progress of another rank."""
        trainer = self._trainer
        _count_as(trainer.fit_loop, state["loops"], "")
        trainer._logger_connector._callback_metrics.update(state["metrics"])
        save_where(trainer, state["callbacks"])
        call._call_callbacks_load_state_dict(trainer, {"callbacks": state["callbacks"]})
        for one in self._results.values():
            one.reset()
        self._missing = dict(state["epoch"])
        self.complete()

    def complete(self) -> None:
        """Add what other ranks logged in this epoch to the metrics that this rank has logged by now."""
        for name in [one for one in self._missing if one in self._results]:
            result, sums = self._results[name], self._missing.pop(name)
            if not result.meta.on_epoch:
                continue
            if result.meta.is_max_reduction or result.meta.is_min_reduction:
                result.value = result.meta.reduce_fx(sums["value"], result.value)
            else:
                result.value = result.value + sums["value"]
            if "samples" in sums:
                result.cumulated_batch_size = result.cumulated_batch_size + sums["samples"]
            result._computed, result.has_reset = None, False


def save_where(trainer: pl.Trainer, states: dict[str, Any]) -> None:
    """Set the folder of each callback to that in its state; otherwise it would load only a part of the state."""
    for callback in trainer.checkpoint_callbacks:
        if "dirpath" in states.get(callback.state_key, {}):
            callback.dirpath = states[callback.state_key]["dirpath"]  # type: ignore[attr-defined]


def _sums(result: Any) -> dict[str, torch.Tensor]:
    """Return the sums of a metric over the epoch so far."""
    found = {"value": result.value}
    if result.meta.is_mean_reduction:
        found["samples"] = result.cumulated_batch_size
    return found


def _count_as(loop: _Loop, state: dict[str, Any], prefix: str) -> None:
    """Load only the counters: loops that load a whole checkpoint would start again."""
    loop._load_from_state_dict(state, prefix)
    for name, inner in vars(loop).items():
        if isinstance(inner, _Loop):
            _count_as(inner, state, f"{prefix}{name}.")
