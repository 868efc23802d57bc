"""What every rank steps by itself: the model, and the objects that a script names; there and back as bytes."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError

log = logging.getLogger("codedreduce")


class TorchReplica:
    """A model with all its parameters and buffers, and whatever else has `state_dict` and `load_state_dict`.

    Which parameters are trained is a part of it: a script may freeze some, or unfreeze them.
    """

    def __init__(self, model: torch.nn.Module, state: Sequence[Any] = ()) -> None:
        for one in state:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise UsageError(
                    f"state= takes objects with state_dict and load_state_dict, as optimizers and schedulers have; "
                    f"{type(one).__name__} has not"
                )
        self._model = model
        self._state = tuple(state)
        self.has_stepped = False

    def _now(self) -> dict[str, Any]:
        return {
            "model": self._model.state_dict(),
            "trainable": [one.requires_grad for one in self._model.parameters()],
            "state": [one.state_dict() for one in self._state],
        }

    def pack(self) -> np.ndarray[Any, Any]:
        """All of it, as it is now."""
        return _packed(self._now())

    def copy(self) -> Callable[[], np.ndarray[Any, Any]]:
        """A copy of all of it, to be packed when there is time."""
        return partial(_packed, copy.deepcopy(self._now()))

    def unpack(self, state: np.ndarray[Any, Any]) -> None:
        """Be as another was."""
        packed = torch.load(io.BytesIO(state.tobytes()), map_location="cpu", weights_only=True)
        self._model.load_state_dict(packed["model"])
        for parameter, is_trainable in zip(self._model.parameters(), packed["trainable"], strict=True):
            parameter.requires_grad_(is_trainable)
        for one, its in zip(self._state, packed["state"], strict=True):
            one.load_state_dict(its)
        if self.has_stepped and not self._state:
            log.warning(
                "this rank fell behind and takes the model of another, but not the optimizer's state, which the run "
                "does not know: name it in train(..., state=[optimizer, ...])"
            )


def _packed(state: dict[str, Any]) -> np.ndarray[Any, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)
