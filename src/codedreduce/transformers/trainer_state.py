"""The progress of a `Trainer`: part of a state transfer, beside the model and the optimizer.

Ranks send and load it at the same place: when the loop requests the next inputs.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from transformers.trainer_callback import ExportableState

#: Fields that differ between ranks.
_OWN = ("is_local_process_zero", "is_world_process_zero")

#: Counters of the trainer outside of its state.
_COUNTED = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")


class TrainerProgress:
    """A trainer's state, that of its callbacks, and the loss since the last log."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]

    def state_dict(self) -> dict[str, Any]:
        """Return the current progress."""
        state = {name: value for name, value in dataclasses.asdict(self._trainer.state).items() if name not in _OWN}
        return {
            "state": json.dumps(state),
            "callbacks": json.dumps([one.state()["attributes"] for one in self._callbacks]),
            "loss": self._trainer._tr_loss,
            "counted": {name: getattr(self._trainer, name) for name in _COUNTED},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the progress of another rank."""
        for name, value in json.loads(state["state"]).items():
            setattr(self._trainer.state, name, value)
        for callback, attributes in zip(self._callbacks, json.loads(state["callbacks"]), strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)
        self._trainer._tr_loss.copy_(state["loss"])
        for name, value in state["counted"].items():
            setattr(self._trainer, name, value)
