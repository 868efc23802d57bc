"""Randomness held still: so that the same samples can be computed together and apart, and compared.

Dropout drops nothing, and what is drawn is one number everywhere, in the middle of what it might be. It is also noted
in which precision numbers were computed, to know what rounding alone may do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: What TF32 rounds to, in which a GPU may compute float32.
_TF32 = 2.0**-10


class Computed(NamedTuple):
    """What was computed, the widest step between numbers on the way, and whether all draws could be held still."""

    found: Any
    precision: float
    is_still: bool


def computed_still(compute: Callable[[], Any]) -> Computed:
    """Compute something with all that torch draws held still."""
    with _Still() as mode:
        found = compute()
    return Computed(found, mode.precision, mode.is_still)


class _Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.precision = torch.finfo(torch.float64).eps
        self.is_still = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        found = self._draw(func, args, kwargs) if is_random else func(*args, **kwargs)
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.dtype.is_floating_point:
                step = torch.finfo(one.dtype).eps
                self.precision = max(self.precision, _TF32 if one.device.type == "cuda" and step < _TF32 else step)
        return found

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, places = func._schema.name.removeprefix("aten::"), [one.name for one in func._schema.arguments]
        given = dict(zip(places, args, strict=False)) | kwargs
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if "dropout_p" in given:  # attention that drops by itself
            return func(**(given | {"dropout_p": 0.0}))
        found = func(*args, **kwargs)
        value = _middle(name.rstrip("_"), given)
        if value is None or not isinstance(found, torch.Tensor):
            self.is_still = False
            return found
        return found.copy_(value) if isinstance(value, torch.Tensor) else found.fill_(value)


def _middle(name: str, given: Mapping[str, Any]) -> Any:
    """A number that an operator might draw, or one for each place; None if that is not known."""
    match name:
        case "rand" | "rand_like" | "randn" | "randn_like":
            return 0.5
        case "uniform":
            return (given.get("from", 0.0) + given.get("to", 1.0)) / 2
        case "normal":
            return given.get("mean", 0.0)
        case "bernoulli" | "exponential" | "log_normal" | "cauchy" | "geometric":
            return 1
        case "randint" | "randint_like" | "random":
            return given.get("low", given.get("from")) or 0
        case "poisson" | "_standard_gamma":
            return given["self"]
    return None
