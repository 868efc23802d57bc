"""What every rank steps by itself: the model, and the objects that a script names; there and back as bytes."""

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
from codedreduce.torch.layout import plain_name
from codedreduce.torch.rounds.requests import Requests

log = logging.getLogger("codedreduce")


class TorchReplica:
    """A model with all its parameters and buffers, and whatever else has `state_dict` and `load_state_dict`.

    Which parameters are trained is a part of it: a script may freeze some, or unfreeze them. Names are those of a model
    that is not compiled, so that it may be here and not there.
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

    def now(self) -> dict[str, Any]:
        """All of it, as it is now; what it has of tensors is not copied."""
        return {
            "model": {plain_name(name): one for name, one in self._model.state_dict().items()},
            "trainable": [one.requires_grad for one in self._model.parameters()],
            "state": [one.state_dict() for one in self._state],
        }

    def be(self, packed: Mapping[str, Any]) -> None:
        """Be as another was."""
        named = {plain_name(name): one for name, one in packed["model"].items()}
        called = {plain_name(name): name for name in self._model.state_dict()}
        self._model.load_state_dict({called.get(name, name): one for name, one in named.items()})
        for parameter, is_trainable in zip(self._model.parameters(), packed["trainable"], strict=True):
            parameter.requires_grad_(is_trainable)
        for one, its in zip(self._state, packed["state"], strict=True):
            one.load_state_dict(its)
        if self.has_stepped and not self._state:
            log.warning(
                "this rank fell behind and takes the model of another, but not the optimizer's state, which the run "
                "does not know: name it in train(..., state=[optimizer, ...])"
            )


class WholeReplica:
    """All trainings of a run, and the book that says how far each has come: what a rank takes, and checkpoints have."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._replicas: list[TorchReplica] = []
        self.taken = 0  # times that it has been made as another was

    def add(self, replica: TorchReplica) -> None:
        """One training more."""
        self._replicas.append(replica)

    def _now(self) -> dict[str, Any]:
        trainings = [one.now() for one in self._replicas]
        found = trainings[0] if len(trainings) == 1 else {"trainings": trainings}
        return found | {"book": self._requests.packed()}

    def pack(self) -> np.ndarray[Any, Any]:
        """All of it, as it is now."""
        return _packed(self._now())

    def copy(self) -> Callable[[], np.ndarray[Any, Any]]:
        """A copy of all of it, to be packed when there is time."""
        return partial(_packed, copy.deepcopy(self._now()))

    def unpack(self, state: np.ndarray[Any, Any]) -> None:
        """Be as another was."""
        packed = torch.load(io.BytesIO(state.tobytes()), map_location="cpu", weights_only=True)
        if "book" in packed:  # there are checkpoints from before there was one
            self._requests.read(packed["book"])
        for one, its in zip(self._replicas, packed.get("trainings", [packed]), strict=True):
            one.be(its)
        self.taken += 1


def _packed(state: dict[str, Any]) -> np.ndarray[Any, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)
