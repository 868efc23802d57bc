"""Optimizers, which change the model in place and are deterministic; and their state with the model's, as bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError
from codedreduce.vectors import Vector

Array = npt.NDArray[Any]


class Optimizer(Protocol):
    """Takes a step against a gradient."""

    def step(self, model: Array, gradient: Array) -> None:
        """Change the model in place."""


@dataclass(kw_only=True)
class _Stateful:
    """The state of an optimizer by name; empty before the first step that needs one."""

    _state: dict[str, Array] = field(default_factory=dict, repr=False)

    def state_dict(self) -> dict[str, Array]:
        return self._state

    def load_state_dict(self, state: dict[str, Array]) -> None:
        self._state = dict(state)


@dataclass
class SGD(_Stateful):
    """Gradient descent, optionally with momentum or Nesterov's momentum.

    >>> model = np.ones(2); SGD(0.5).step(model, np.array([1.0, -1.0])); model
    array([0.5, 1.5])
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check(self.lr, {"momentum": self.momentum})
        if self.nesterov and not self.momentum:
            raise UsageError("Nesterov's method needs a momentum above zero")

    def step(self, model: Array, gradient: Array) -> None:
        """v = m v + g; w -= lr v, or with Nesterov w -= lr (g + m v)."""
        if not self.momentum:
            model -= model.dtype.type(self.lr) * gradient
            return
        momentum = model.dtype.type(self.momentum)
        if not self._state:
            self._state = {"velocity": np.zeros_like(model)}
        velocity = self._state["velocity"]
        velocity *= momentum
        velocity += gradient
        model -= model.dtype.type(self.lr) * (gradient + momentum * velocity if self.nesterov else velocity)


@dataclass
class Adam(_Stateful):
    """Adam (Kingma, Ba 2015)."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check(self.lr, {"beta1": self.beta1, "beta2": self.beta2})

    def step(self, model: Array, gradient: Array) -> None:
        """Scale each number's step by the moments of its past gradients."""
        if not self._state:
            self._state = {"first": np.zeros_like(model), "second": np.zeros_like(model), "steps": np.array(0)}
        first, second = self._state["first"], self._state["second"]
        kind = model.dtype.type
        steps = int(self._state["steps"]) + 1
        self._state["steps"] = np.array(steps)
        first += kind(1 - self.beta1) * (gradient - first)
        second += kind(1 - self.beta2) * (gradient * gradient - second)
        rate = self.lr * float(np.sqrt(1 - self.beta2**steps)) / (1 - self.beta1**steps)
        model -= kind(rate) * first / (np.sqrt(second) + kind(self.epsilon))


def _check(lr: float, fractions: dict[str, float]) -> None:
    if not lr > 0:
        raise UsageError(f"a learning rate must be above zero, got {lr}")
    for name, value in fractions.items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} must be at least 0 and below 1, got {value}")


def parse_optimizer(name: str, lr: float) -> SGD | Adam:
    """An optimizer by its name: sgd, momentum, nesterov or adam."""
    match name:
        case "sgd":
            return SGD(lr)
        case "momentum":
            return SGD(lr, 0.9)
        case "nesterov":
            return SGD(lr, 0.9, nesterov=True)
        case "adam":
            return Adam(lr)
    raise UsageError(f"unknown optimizer {name!r}; there are sgd, momentum, nesterov, adam")


class ModelReplica:
    """A model in NumPy and its optimizer. An optimizer without `state_dict` is assumed to have no state.

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
