"""The replica that each rank steps: the model and the objects in `state=`, converted to bytes and back."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.torch.model.layout import plain_name
from codedreduce.torch.rounds.requests import Requests

log = logging.getLogger("codedreduce")


class TorchReplica:
    """A model with all its parameters and buffers, and other objects with `state_dict` and `load_state_dict`.

    It includes which parameters are trainable: a script may freeze or unfreeze some. Names are those of a model that is
    not compiled, so that ranks may differ in whether they compile it.
    """

    def __init__(self, model: torch.nn.Module, state: Sequence[Any] = ()) -> None:
        for one in state:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise UsageError(
                    f"{type(one).__name__} in state= has no state_dict and load_state_dict: give objects that have "
                    "both, such as optimizers and schedulers"
                )
        self._model = model
        self._state = tuple(state)
        self.has_stepped = False

    def now(self) -> dict[str, Any]:
        """Return the current state; its tensors are not copied."""
        return {
            "model": {plain_name(name): one for name, one in self._model.state_dict().items()},
            "trainable": [one.requires_grad for one in self._model.parameters()],
            "state": [one.state_dict() for one in self._state],
        }

    def be(self, packed: Mapping[str, Any]) -> None:
        """Load the state of another replica."""
        named = {plain_name(name): one for name, one in packed["model"].items()}
        called = {plain_name(name): name for name in self._model.state_dict()}
        self._model.load_state_dict({called.get(name, name): one for name, one in named.items()})
        for parameter, is_trainable in zip(self._model.parameters(), packed["trainable"], strict=True):
            parameter.requires_grad_(is_trainable)
        for one, its in zip(self._state, packed["state"], strict=True):
            one.load_state_dict(its)
        if self.has_stepped and not self._state:
            log.warning(
                "this rank fell behind and took the model of another rank, but not the optimizer's state: list the "
                "optimizer in train(..., state=[optimizer, ...])"
            )


class WholeReplica:
    """The state of all trainings of a run, with the progress of each: for state transfers and checkpoints."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._replicas: list[TorchReplica] = []
        self.taken = 0  # the number of states loaded

    def add(self, replica: TorchReplica) -> None:
        """Add a training."""
        self._replicas.append(replica)

    def _now(self) -> dict[str, Any]:
        trainings = [one.now() for one in self._replicas]
        found = trainings[0] if len(trainings) == 1 else {"trainings": trainings}
        return found | {"book": self._requests.packed()}

    def pack(self) -> np.ndarray[Any, Any]:
        """Return the current state as bytes."""
        return _packed(self._now())

    def copy(self) -> Callable[[], np.ndarray[Any, Any]]:
        """Copy the current state, and return a function that packs the copy later."""
        return partial(_packed, copy.deepcopy(self._now()))

    def unpack(self, state: np.ndarray[Any, Any]) -> None:
        """Load a packed state."""
        packed = torch.load(io.BytesIO(state.tobytes()), map_location="cpu", weights_only=True)
        if "book" in packed:  # older checkpoints have none
            self._requests.read(packed["book"])
        for one, its in zip(self._replicas, packed.get("trainings", [packed]), strict=True):
            one.be(its)
        self.taken += 1


def _packed(state: dict[str, Any]) -> np.ndarray[Any, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)
