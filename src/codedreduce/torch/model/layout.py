"""Maps a model's trainable parameters to one vector and back.

The vector has the parameters one after the other; a flag for each that it had a gradient; the statistics of
normalising layers; the sums of metrics and weights; and the loss. Numbers are float32, or float64 if any parameter is.
Frozen parameters are not sent.
"""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.torch.model.batch_norm import RunningStatistics
from codedreduce.torch.model.loss_output import Form

PLAIN = Form()

#: On the host, or on a device.
AnyVector = np.ndarray[Any, Any] | torch.Tensor


class Means(NamedTuple):
    """The means of a batch, beside its gradient. If the total weight is 0, there is no mean loss."""

    loss: float
    metrics: dict[str, float]
    weight: float


class Layout:
    """The place of each parameter in the vector, and the sums beside gradients."""

    def __init__(
        self, model: torch.nn.Module, form: Form = PLAIN, beside: Sequence[torch.nn.Module] = ()
    ) -> None:  # fmt: skip
        self._model = model
        self.form = form
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        self.parameters = [one for _, one in named]
        if not self.parameters:
            raise UsageError("the model has no parameter that requires a gradient; set requires_grad for at least one")
        for name, one in named:
            if not one.is_floating_point():
                raise UsageError(
                    f"parameter {name!r} is {one.dtype}; only real floating-point parameters can be trained: convert it"
                )
        wide = any(one.dtype == torch.float64 for one in self.parameters)
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if wide else np.float32)
        self._sizes = [one.numel() for one in self.parameters]
        self.numbers = sum(self._sizes)
        self.statistics = RunningStatistics(model, beside)
        self._sparse = [id(one) in _with_sparse_gradients(model) for one in self.parameters]
        self.length = self.numbers + len(self.parameters) + self.statistics.length + form.numbers
        self._flags: tuple[list[int], torch.Tensor] | None = None  # the last flags: which parameters had a gradient

    def shape(self) -> str:
        """Describe the parameters, which must be the same on all ranks: names, shapes and types."""
        text = "\n".join(
            f"{name} {tuple(one.shape)} {one.dtype} {one.requires_grad}" for name, one in self._model.named_parameters()
        )
        text += f"\n{self.statistics.length} numbers that layers remember"
        count, code = len(self.parameters), zlib.crc32(text.encode())
        return f"a model with {count} trainable parameters, {self.numbers} numbers, names and shapes {code:08x}"

    def fixed(self) -> str:
        """Describe by a digest the values that are not sent, and must be the same on all ranks."""
        code = 0
        fixed = [*(one for one in self._model.parameters() if not one.requires_grad), *self._model.buffers()]
        for one in fixed:
            whole = one.detach().cpu().contiguous().reshape(-1)
            if whole.numel():
                code = zlib.crc32(whole.view(torch.uint8).numpy().data, code)
        return f"frozen parameters and buffers with the digest {code:08x}"

    def structure(self) -> str:
        """Describe what stays the same while a model is trained: names, shapes and types."""
        named = self._model.state_dict().items()
        text = "\n".join(f"{plain_name(name)} {tuple(one.shape)} {one.dtype}" for name, one in named)
        count = len(list(self._model.parameters()))
        kind = type(getattr(self._model, "_orig_mod", self._model)).__name__
        return f"{kind} with {count} parameters, structure {zlib.crc32(text.encode()):08x}"

    def is_current(self) -> bool:
        """Whether the model's trainable parameters are still those of this layout."""
        now = [one for one in self._model.parameters() if one.requires_grad]
        return len(now) == len(self.parameters) and all(a is b for a, b in zip(now, self.parameters, strict=True))

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split(flat[: self.numbers], self._sizes)
        return [part.view(one.shape) for part, one in zip(parts, self.parameters, strict=True)]

    @property
    def device(self) -> torch.device:
        """Where gradients are computed."""
        return self.parameters[0].device

    @torch.no_grad()
    def read_model(self, vector: np.ndarray[Any, Any]) -> None:
        """Write the parameters into a vector, to be sent."""
        torch._foreach_copy_(self._views(as_tensor(vector)), [one.detach() for one in self.parameters])
        vector[self.numbers :] = 0

    @torch.no_grad()
    def write_model(self, vector: np.ndarray[Any, Any]) -> None:
        """Set the parameters from a received vector."""
        torch._foreach_copy_(list(self.parameters), self._views(as_tensor(vector)))

    def forget_gradients(self) -> None:
        """Set `.grad` of every parameter to None."""
        for one in self.parameters:
            one.grad = None

    @torch.no_grad()
    def read_gradients(self, vector: AnyVector, totals: torch.Tensor) -> None:
        """Write to a vector the gradients (zero where there is none), the flags, and the other sums."""
        flat = as_tensor(vector)
        views, there = self._views(flat), self._there()
        for index in set(range(len(views))).difference(there):
            views[index].zero_()
        if there:
            torch._foreach_copy_([views[index] for index in there], [_gradient(self.parameters[i]) for i in there])
        self._beside(flat).copy_(self._beside_gradients(there, totals))

    @torch.no_grad()
    def add_gradients(self, vector: AnyVector, totals: torch.Tensor) -> None:
        """Add to a vector the gradients, the flags, and the other sums."""
        flat = as_tensor(vector)
        views, there = self._views(flat), self._there()
        if there:
            gradients = [_gradient(self.parameters[index]).to(flat.device) for index in there]
            torch._foreach_add_([views[index] for index in there], gradients)
        self._beside(flat).add_(self._beside_gradients(there, totals).to(flat))

    def _there(self) -> list[int]:
        """Return the indices of parameters that have a gradient."""
        return [index for index, one in enumerate(self.parameters) if one.grad is not None]

    def _beside(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.numbers :]

    def _beside_gradients(self, there: list[int], totals: torch.Tensor) -> torch.Tensor:
        """Return the part of the vector after the gradients."""
        if self._flags is None or self._flags[0] != there or self._flags[1].device != totals.device:
            flags = torch.zeros(len(self.parameters), dtype=totals.dtype)
            flags[there] = 1
            self._flags = (there, flags.to(totals.device))
        return torch.cat([self._flags[1], totals])

    @torch.no_grad()
    def write_gradients(self, vector: AnyVector, samples: int) -> Means:
        """Set every parameter's mean gradient (None where no worker had one), and update running statistics.

        A vector on a device belongs to this process, and is divided in place.
        """
        flat = as_tensor(vector)
        beside = self._beside(flat).cpu().numpy()
        weight = beside[-2] if self.form.weighted else beside.dtype.type(samples)
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.divide(beside[-1], weight)
        sums = flat[: self.numbers].to(self.device, non_blocking=True)
        divisor = torch.full((), float(weight), dtype=flat.dtype, device=self.device)  # torch inverts a plain number
        mean = sums.div_(divisor) if sums.device.type != "cpu" else sums / divisor
        present = beside[: len(self.parameters)] != 0  # weights of a cyclic code may be negative
        for one, view, there, sparse in zip(
            self.parameters, self._views(mean), present.tolist(), self._sparse, strict=True
        ):
            found = view.to(dtype=one.dtype, device=one.device) if there else None
            one.grad = found.to_sparse(1) if found is not None and sparse else found
        first = len(self.parameters)
        self.statistics.remember(beside[first : first + self.statistics.length].astype(np.float64))
        metrics = (beside[first + self.statistics.length :].astype(np.float64) / samples).tolist()
        return Means(float(loss), dict(zip(self.form.metrics, metrics, strict=False)), float(weight))


@contextlib.contextmanager
def gradients_kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore `.grad` of these tensors at the end: a backward pass in here starts with none, and leaves none."""
    kept = [one.grad for one in tensors]
    for one in tensors:
        one.grad = None
    try:
        yield
    finally:
        for one, was in zip(tensors, kept, strict=True):
            one.grad = was


def as_tensor(vector: AnyVector) -> torch.Tensor:
    """Return a vector as a tensor, without a copy."""
    if isinstance(vector, torch.Tensor):
        return vector
    with warnings.catch_warnings():  # memory of another process is read-only, and is not written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(vector)


def _with_sparse_gradients(model: torch.nn.Module) -> set[int]:
    """Return the ids of parameters of sparse embeddings: torch gives their gradients as rows, as SparseAdam takes."""
    kinds = torch.nn.Embedding | torch.nn.EmbeddingBag
    return {id(one.weight) for one in model.modules() if isinstance(one, kinds) and one.sparse}


def plain_name(name: str) -> str:
    """Return a name as in a model that is not compiled; `torch.compile` wraps modules and adds `_orig_mod.`.

    >>> plain_name("_orig_mod.encoder._orig_mod.weight")
    'encoder.weight'
    """
    return name.replace("_orig_mod.", "")


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient


def on_device(batch: Any, device: torch.device | None) -> Any:
    """Move all tensors of a batch to a device."""
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
