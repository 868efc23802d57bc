"""Fixed random numbers, so that the same samples can be computed together and apart, and compared.

Dropout drops nothing, every draw is the same number, and permutations reverse: so samples that are mixed get other
partners in another group. The precision of the computation is recorded as well, to bound the effect of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from codedreduce.torch.training.fixed_draws import MOST, FixedDraws

#: The precision of TF32, in which a GPU may compute float32.
_TF32 = 2.0**-10

#: Operators with an undefined order of equal numbers; all draws are equal here.
_SORTING = ("sort", "topk")


class FixedRngResult(NamedTuple):
    """The result of a computation, and how it was computed.

    `precision`: the coarsest precision of any intermediate result. `is_still`: whether all draws of torch could be
    fixed. `has_drawn`: whether there was any draw that another level would have changed.
    """

    found: Any
    precision: float
    is_still: bool
    has_drawn: bool


def compute_with_fixed_rng(compute: Callable[[], Any], level: float = 0.5) -> FixedRngResult:
    """Compute something with all draws fixed, at a level between 0 and 1 of their range."""
    beside = FixedDraws(level)
    with _FixedRng(level) as mode, beside.fixed():
        found = compute()
    return FixedRngResult(found, mode.precision, mode.is_still, mode.draws + beside.count > 0)


class _FixedRng(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, level: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.precision = torch.finfo(torch.float64).eps
        self.is_still = True
        self.draws = 0
        self._level = level

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if torch.Tag.nondeterministic_seeded in func.tags:
            found = self._draw(func, name, args, kwargs)
        elif name in _SORTING and func._overloadname in ("default", "stable"):
            found = _sorted(func, args, kwargs)
        else:
            found = func(*args, **kwargs)
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.dtype.is_floating_point:
                step = torch.finfo(one.dtype).eps
                self.precision = max(self.precision, _TF32 if one.device.type == "cuda" and step < _TF32 else step)
        return found

    def _draw(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _named(func, args, kwargs)
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if "dropout_p" in given:  # attention with dropout of its own
            return func(**(given | {"dropout_p": 0.0}))
        if name == "_cudnn_init_dropout_state":  # the state is not used afterwards
            return func(*args, **kwargs)
        if name == "_cudnn_rnn":
            return func(**(given | {"dropout": 0.0, "dropout_state": None}))
        name = name.rstrip("_")
        self.draws += name != "bernoulli"
        found = func(*args, **kwargs)
        value = _value(name, given, self._level, found) if self.draws <= MOST else None
        if value is None or not isinstance(found, torch.Tensor):
            self.is_still = False
            return found
        return found.copy_(value) if isinstance(value, torch.Tensor) else found.fill_(value)


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names: list[str] = [one.name for one in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _sorted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sort from the other end, which reverses the order of equal numbers, unless a stable order is requested."""
    given = _named(func, args, kwargs)
    of, dim = given["self"], given.get("dim", -1)
    if not of.ndim or given.get("stable"):
        return func(*args, **kwargs)
    values, indices = func(**(given | {"self": of.flip(dim)}))
    return values, of.shape[dim] - 1 - indices


def _value(name: str, given: Mapping[str, Any], level: float, found: Any) -> Any:
    """Return a number that an operator might draw, or one for each place; None for an unknown operator."""
    of, normal = given.get("self"), NormalDist().inv_cdf(level)
    match name:
        case "rand" | "rand_like":
            return level
        case "randn" | "randn_like":
            return normal or 0.5
        case "uniform":
            low, high = given.get("from", 0.0), given.get("to", 1.0)
            return low + level * (high - low)
        case "normal":
            return given.get("mean", 0.0) + normal * given.get("std", 1.0)
        case "bernoulli" | "exponential" | "log_normal" | "cauchy" | "geometric":
            return 1
        case "randint" | "randint_like" | "random":
            low, high = given.get("low", given.get("from")) or 0, given.get("high", given.get("to"))
            return low if high is None else low + int(level * (high - low))
        case "poisson" | "_standard_gamma":
            return of
        case "_sample_dirichlet" if of is not None:
            return of / of.sum(-1, keepdim=True)
        case "binomial":
            return (given["count"] * given["prob"]).round()
        case "randperm":
            return torch.arange(given["n"] - 1, -1, -1, dtype=found.dtype, device=found.device)
        case "multinomial" if of is not None:
            count = given["num_samples"]
            best = of.shape[-1] - 1 - of.flip(-1).topk(1 if given.get("replacement") else count).indices
            return best.expand(found.shape)
    return None
