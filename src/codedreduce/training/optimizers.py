"""Optimizers. They change the model in place, and are deterministic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Array = npt.NDArray[Any]


class Optimizer(Protocol):
    """Takes a step against a gradient."""

    def step(self, model: Array, gradient: Array) -> None:
        """Change the model in place."""


@dataclass
class SGD:
    """Gradient descent, optionally with momentum or Nesterov's momentum.

    >>> model = np.ones(2); SGD(0.5).step(model, np.array([1.0, -1.0])); model
    array([0.5, 1.5])
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    _velocity: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check(self.lr, {"momentum": self.momentum})
        if self.nesterov and not self.momentum:
            raise UsageError("Nesterov's method needs a momentum above zero")

    def step(self, model: Array, gradient: Array) -> None:
        """v = m v + g; w -= lr v, or with Nesterov w -= lr (g + m v)."""
        if not self.momentum:
            model -= model.dtype.type(self.lr) * gradient
            return
        if self._velocity is None:
            self._velocity = np.zeros_like(model)
        self._velocity *= model.dtype.type(self.momentum)
        self._velocity += gradient
        direction = gradient + model.dtype.type(self.momentum) * self._velocity if self.nesterov else self._velocity
        model -= model.dtype.type(self.lr) * direction

    def state_dict(self) -> dict[str, Array]:
        """The state of the optimizer."""
        return {} if self._velocity is None else {"velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Restore the state of an optimizer."""
        self._velocity = state.get("velocity")


@dataclass
class Adam:
    """Adam (Kingma, Ba 2015)."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    _moments: tuple[Array, Array] | None = field(default=None, repr=False)
    _steps: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        _check(self.lr, {"beta1": self.beta1, "beta2": self.beta2})

    def step(self, model: Array, gradient: Array) -> None:
        """Scale each number's step by the moments of its past gradients."""
        if self._moments is None:
            self._moments = (np.zeros_like(model), np.zeros_like(model))
        first, second = self._moments
        kind = model.dtype.type
        self._steps += 1
        first += kind(1 - self.beta1) * (gradient - first)
        second += kind(1 - self.beta2) * (gradient * gradient - second)
        rate = self.lr * float(np.sqrt(1 - self.beta2**self._steps)) / (1 - self.beta1**self._steps)
        model -= kind(rate) * first / (np.sqrt(second) + kind(self.epsilon))

    def state_dict(self) -> dict[str, Array]:
        """The state of the optimizer."""
        if self._moments is None:
            return {}
        return {"first": self._moments[0], "second": self._moments[1], "steps": np.array(self._steps)}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Restore the state of an optimizer."""
        self._moments = (state["first"], state["second"]) if state else None
        self._steps = int(state["steps"]) if state else 0


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
