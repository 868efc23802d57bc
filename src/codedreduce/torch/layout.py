"""A model's trainable parameters as one vector, there and back.

The vector has the parameters one after the other, then for each of them whether it had a gradient, then the loss.
Numbers are float32, or float64 if a parameter is. Parameters that are frozen do not travel.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from codedreduce.errors import UsageError


class Layout:
    """Where each parameter lies in the vector."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters = [one for _, one in named]
        if not self.parameters:
            raise UsageError("the model has no parameter that requires a gradient")
        for name, one in named:
            if not one.is_floating_point():
                raise UsageError(
                    f"parameter {name!r} is {one.dtype}; only real floating-point parameters can be trained"
                )
        wide = any(one.dtype == torch.float64 for one in self.parameters)
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if wide else np.float32)
        self._sizes = [one.numel() for one in self.parameters]
        self.numbers = sum(self._sizes)
        self.length = self.numbers + len(self.parameters) + 1

    def digest(self) -> str:
        """What all nodes must have: names, shapes and types, and the values of what does not travel."""
        text = "\n".join(
            f"{name} {tuple(one.shape)} {one.dtype} {one.requires_grad}" for name, one in self._model.named_parameters()
        )
        code = zlib.crc32(text.encode())
        fixed = [*(one for one in self._model.parameters() if not one.requires_grad), *self._model.buffers()]
        for one in fixed:
            whole = one.detach().cpu().contiguous().reshape(-1)
            if whole.numel():
                code = zlib.crc32(whole.view(torch.uint8).numpy().data, code)
        count = len(self.parameters)
        return f"a model with {count} trainable parameters, {self.numbers} numbers, digest {code:08x}"

    def structure(self) -> str:
        """What stays the same while a model is trained, in words: names, shapes and types."""
        text = "\n".join(f"{name} {tuple(one.shape)} {one.dtype}" for name, one in self._model.state_dict().items())
        count = len(list(self._model.parameters()))
        return f"{type(self._model).__name__} with {count} parameters, structure {zlib.crc32(text.encode()):08x}"

    def is_current(self) -> bool:
        """Whether the model's trainable parameters are still those that were laid out."""
        now = [one for one in self._model.parameters() if one.requires_grad]
        return len(now) == len(self.parameters) and all(a is b for a, b in zip(now, self.parameters, strict=True))

    def _views(self, vector: np.ndarray[Any, Any]) -> list[torch.Tensor]:
        with warnings.catch_warnings():  # memory of another process cannot be written to, and is not
            warnings.simplefilter("ignore", UserWarning)
            flat = torch.from_numpy(vector)
        parts = torch.split(flat[: self.numbers], self._sizes)
        return [part.view(one.shape) for part, one in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def read_model(self, vector: np.ndarray[Any, Any]) -> None:
        """Write the parameters into a vector, to be sent."""
        torch._foreach_copy_(self._views(vector), [one.detach() for one in self.parameters])
        vector[self.numbers :] = 0

    @torch.no_grad()
    def write_model(self, vector: np.ndarray[Any, Any]) -> None:
        """Take the parameters from a vector that has arrived."""
        torch._foreach_copy_(list(self.parameters), self._views(vector))

    def forget_gradients(self) -> None:
        """No parameter has a gradient."""
        for one in self.parameters:
            one.grad = None

    @torch.no_grad()
    def read_gradients(self, vector: np.ndarray[Any, Any], loss: float) -> None:
        """Write the gradients into a vector, zero where there is none, and say which there are."""
        views = self._views(vector)
        there = [index for index, one in enumerate(self.parameters) if one.grad is not None]
        for index, view in enumerate(views):
            if self.parameters[index].grad is None:
                view.zero_()
        if there:
            torch._foreach_copy_([views[index] for index in there], [_gradient(self.parameters[i]) for i in there])
        vector[self.numbers : -1] = 0
        vector[[self.numbers + index for index in there]] = 1
        vector[-1] = loss

    @torch.no_grad()
    def add_gradients(self, vector: np.ndarray[Any, Any], loss: float) -> None:
        """Add the gradients to those in a vector, and say which there are."""
        views = self._views(vector)
        there = [index for index, one in enumerate(self.parameters) if one.grad is not None]
        if there:
            torch._foreach_add_([views[index] for index in there], [_gradient(self.parameters[i]) for i in there])
        vector[[self.numbers + index for index in there]] += 1
        vector[-1] += loss

    @torch.no_grad()
    def write_gradients(self, vector: np.ndarray[Any, Any], samples: int) -> float:
        """Give every parameter its mean gradient, None where no worker had one; the mean loss."""
        mean = np.divide(vector, vector.dtype.type(samples))
        present = vector[self.numbers : -1] != 0  # a cyclic code weighs workers with numbers of both signs
        for one, view, there in zip(self.parameters, self._views(mean), present.tolist(), strict=True):
            one.grad = view.to(dtype=one.dtype, device=one.device) if there else None
        return float(mean[-1])


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient


def on_device(batch: Any, device: torch.device | None) -> Any:
    """A batch with all its tensors moved."""
    if device is None:
        return batch
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(value, device) for value in batch))
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return type(batch)(on_device(value, device) for value in batch)  # type: ignore[call-arg]
    return batch
