"""Objectives: a loss per sample, its sum over some samples, and the gradient of that sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Objective(Protocol):
    """A sum of losses over samples. Implement these two methods for an objective of your own."""

    def parameters(self, features: int) -> int:
        """The number of parameters of the model for data with this many features."""

    def evaluate(self, model: Array, x: Array, y: Array, weights: Array | None, gradient: Array) -> float:
        """Write the gradient of sum_i weights_i loss_i into `gradient`; return that sum. None: weights of one."""


def _weighted(residual: Array, weights: Array | None) -> Array:
    if weights is None:
        return residual
    shape = weights.reshape(-1, *(1,) * (residual.ndim - 1))
    return np.asarray(residual * shape)


def _total(losses: Array, weights: Array | None) -> float:
    return float(losses.sum(dtype=np.float64) if weights is None else losses @ weights)


class _Linear:
    """A model with one parameter for each feature."""

    def parameters(self, features: int) -> int:
        return features


@dataclass(frozen=True)
class LinearRegression(_Linear):
    """loss_i = (x_i w - y_i)^2 / 2.

    >>> gradient = np.empty(2, np.float32)
    >>> x, y = np.eye(2, dtype=np.float32), np.array([1, 2], np.float32)
    >>> LinearRegression().evaluate(np.zeros(2, np.float32), x, y, None, gradient), gradient.tolist()
    (2.5, [-1.0, -2.0])
    """

    def evaluate(self, model: Array, x: Array, y: Array, weights: Array | None, gradient: Array) -> float:
        """gradient = x' (x w - y)."""
        residual = x @ model - y
        np.dot(_weighted(residual, weights), x, out=gradient)
        return _total(residual * residual / 2, weights)


@dataclass(frozen=True)
class LogisticRegression(_Linear):
    """loss_i = log(1 + exp(-z_i)) for z_i = x_i w and label 1, log(1 + exp(z_i)) for label 0."""

    def evaluate(self, model: Array, x: Array, y: Array, weights: Array | None, gradient: Array) -> float:
        """gradient = x' (sigmoid(x w) - y)."""
        z = x @ model
        probability = 0.5 * (1 + np.tanh(0.5 * z))
        np.dot(_weighted(probability - y, weights), x, out=gradient)
        return _total(np.logaddexp(0, z) - y * z, weights)


@dataclass(frozen=True)
class Softmax:
    """Multinomial logistic regression over `classes` classes; the model is a matrix, features x classes."""

    classes: int

    def parameters(self, features: int) -> int:
        """One for each feature and class."""
        return features * self.classes

    def evaluate(self, model: Array, x: Array, y: Array, weights: Array | None, gradient: Array) -> float:
        """gradient = x' (softmax(x W) - one_hot(y))."""
        matrix = model.reshape(-1, self.classes)
        z = x @ matrix
        z -= z.max(axis=1, keepdims=True)
        exponential = np.exp(z)
        normaliser = exponential.sum(axis=1, keepdims=True)
        rows, labels = np.arange(len(y)), y.astype(np.intp)
        losses = np.log(normaliser[:, 0]) - z[rows, labels]
        probability = exponential / normaliser
        probability[rows, labels] -= 1
        np.dot(x.T, _weighted(probability, weights), out=gradient.reshape(-1, self.classes))
        return _total(losses, weights)
