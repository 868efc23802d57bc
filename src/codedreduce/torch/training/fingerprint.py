"""Compares samples of any type by a digest: tensors, arrays, numbers, text, and containers of these."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from blake3 import blake3


def fingerprint(samples: Iterable[Any]) -> str:
    """Return a short digest of samples.

    >>> fingerprint([(torch.zeros(2), 1)]) == fingerprint([(torch.zeros(2), 1)]) != fingerprint([(torch.zeros(2), 2)])
    True
    """
    found = blake3(max_threads=1)
    for sample in samples:
        for part in _parts(sample):
            found.update(len(part).to_bytes(8, "little"))
            found.update(part)
    return found.hexdigest(length=4)


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the parts of a value as bytes. An unknown type yields its name, and `tobytes()` if it has it (images)."""
    yield type(value).__name__.encode()
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu()
        dense = dense.to_dense() if dense.layout is not torch.strided else dense
        yield f"{tuple(dense.shape)} {dense.dtype}".encode()
        yield dense.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield f"{value.shape} {value.dtype}".encode()
        yield value.tobytes()
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _parts(key)
            yield from _parts(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, Sequence):
        yield str(len(value)).encode()
        for one in value:
            yield from _parts(one)
    elif callable(getattr(value, "tobytes", None)):
        yield value.tobytes()
