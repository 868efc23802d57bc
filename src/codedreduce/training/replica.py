"""The state of a process in a replicated training: the model and its optimizer, packed to bytes and unpacked."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from codedreduce.training.optimizers import Optimizer
from codedreduce.vectors import Vector


class ModelReplica:
    """A model in NumPy and its optimizer. An optimizer without `state_dict` is assumed to have no state.

    >>> from codedreduce.training.optimizers import SGD
    >>> one, other = ModelReplica(np.ones(2), SGD(0.1, 0.9)), ModelReplica(np.zeros(2), SGD(0.1, 0.9))
    >>> one.optimizer.step(one.model, np.ones(2)); other.unpack(one.pack()); other.model
    array([0.9, 0.9])
    """

    def __init__(self, model: Vector, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def _arrays(self) -> dict[str, Any]:
        state: dict[str, Any] = getattr(self.optimizer, "state_dict", dict)()
        return {"model": self.model} | {f"optimizer.{name}": state[name] for name in state}

    def pack(self) -> Vector:
        """The model and the state of the optimizer, as bytes."""
        return _packed(self._arrays())

    def copy(self) -> Callable[[], Vector]:
        """Copy the state now; the returned function packs the copy later."""
        return partial(_packed, {name: np.array(array) for name, array in self._arrays().items()})

    def unpack(self, state: Vector) -> None:
        """Take over a packed state."""
        with np.load(io.BytesIO(state.tobytes()), allow_pickle=False) as archive:
            self.model[:] = archive["model"]
            load = getattr(self.optimizer, "load_state_dict", None)
            if load is not None:
                load({name.removeprefix("optimizer."): archive[name] for name in archive if name != "model"})


def _packed(arrays: dict[str, Any]) -> Vector:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)
