"""Fixed random numbers, so that the same samples can be computed together and apart, and compared.

Dropout drops nothing, every draw is the same number, and permutations reverse: so samples that are mixed get other
partners in another group. The precision of the computation is recorded as well, to bound the effect of rounding.

Meanwhile, functions of `random` and `numpy.random` are replaced in every module that has imported them. A function that
is kept elsewhere, or is not in the tables, draws as usual; the changed state of its generator shows that.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: The most draws that are fixed: a loop that draws until it finds another number would never end.
MOST = 10_000

#: The relative decrease from each number to the next, too small for rounding: sorting them reverses their order.
_TILT = 1e-12

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


class FixedDraws:
    """NumPy's and Python's draws at a level between 0 and 1: 0.02 gives small numbers, and heads where `draw < p`."""

    def __init__(self, level: float) -> None:
        self._level = level
        self._normal = NormalDist().inv_cdf(level)
        self.count = 0

    @contextlib.contextmanager
    def fixed(self) -> Iterator[None]:
        """Fix all draws in here."""
        draws: dict[int, Callable[..., Any]] = {}
        for module, table in ((random, self._of_python()), (np.random, self._of_numpy())):
            for name, draw in table.items():
                original = getattr(module, name)
                draws[id(original)] = self._counted(draw, original)
        replaced: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for names in _modules():
                for name, original in list(names.items()):
                    if id(original) in draws:
                        replaced.append((names, name, original))
                        names[name] = draws[id(original)]
            yield
        finally:
            for names, name, original in replaced:
                names[name] = original

    def _counted(self, draw: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*args: Any, **named: Any) -> Any:
            self.count += 1
            return (draw if self.count <= MOST else original)(*args, **named)

        return counted

    def _whole(self, low: Any, high: Any) -> Any:
        """Return a whole number from `low` up to, but not including, `high`."""
        return np.floor(low + self._level * (np.asarray(high) - low))

    def _next(self, value: float) -> float:
        return value - abs(value) * _TILT * self.count

    def _of_python(self) -> dict[str, Callable[..., Any]]:
        def choose(from_: Sequence[Any]) -> Any:
            return from_[int(self._level * len(from_))]

        def choices(
            population: Sequence[Any], weights: Any = None, *, cum_weights: Any = None, k: int = 1
        ) -> list[Any]:
            if weights is None and cum_weights is None:
                return [choose(population)] * k
            weights = list(weights) if weights is not None else np.diff(cum_weights, prepend=0).tolist()
            return [population[weights.index(max(weights))]] * k

        def sample(population: Any, k: int, *, counts: Any = None) -> list[Any]:
            numbers = counts if counts is not None else [1] * len(population)
            each = [one for one, count in zip(population, numbers, strict=True) for _ in range(count)]
            return each[::-1][:k]

        def gauss(mu: float = 0.0, sigma: float = 1.0) -> float:
            return self._next(mu + sigma * self._normal)

        return {
            "random": lambda: self._next(self._level),
            "uniform": lambda a, b: self._next(a + (b - a) * self._level),
            "randint": lambda a, b: int(self._whole(a, b + 1)),
            "randrange": lambda *of: choose(range(*of)),
            "choice": choose,
            "choices": choices,
            "sample": sample,
            "shuffle": _reverse,
            "gauss": gauss,
            "normalvariate": gauss,
            "betavariate": lambda alpha, beta: alpha / (alpha + beta),
            "gammavariate": lambda alpha, beta: alpha * beta,
            "expovariate": lambda lambd=1.0: 1 / lambd,
        }

    def _of_numpy(self) -> dict[str, Callable[..., Any]]:
        level, normal, full, whole = self._level, self._normal, self._full, self._whole

        def any_below_1(size: Any = None) -> Any:
            return full(level, size)

        def randint(low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
            found = full(whole(*((0, low) if high is None else (low, high))), size, tilted=False)
            return int(found) if np.ndim(found) == 0 else found.astype(dtype)

        def count(n: Any, p: Any, size: Any = None) -> Any:
            found = full(np.minimum(whole(0, np.asarray(n) + 1), n), size, tilted=False)
            return int(found) if np.ndim(found) == 0 else found.astype(int)

        def poisson(lam: Any = 1.0, size: Any = None) -> Any:
            return count(lam, None, size)

        def dirichlet(alpha: Any, size: Any = None) -> Any:
            mean = np.asarray(alpha) / np.sum(alpha)
            return np.broadcast_to(mean, (*_shape(size), len(mean))).copy()

        def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
            values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
            total = math.prod(_shape(size))
            order = np.arange(len(values))[::-1] if p is None else np.argsort(-np.asarray(p), kind="stable")
            first = int(level * len(values)) if p is None else order[0]
            chosen = np.full(total, first) if replace else order[:total]
            return values[first] if size is None else values[chosen].reshape(_shape(size) + values.shape[1:])

        def permutation(x: Any) -> Any:
            return (np.arange(x) if np.ndim(x) == 0 else np.array(x))[::-1].copy()

        numbers = dict.fromkeys(("random", "random_sample", "ranf", "sample"), any_below_1)
        return numbers | {
            "rand": lambda *of: full(level, of or None),
            "randn": lambda *of: full(normal, of or None),
            "standard_normal": lambda size=None: full(normal, size),
            "uniform": lambda low=0.0, high=1.0, size=None: full(low + level * (np.asarray(high) - low), size),
            "normal": lambda loc=0.0, scale=1.0, size=None: full(loc + normal * np.asarray(scale), size),
            "exponential": lambda scale=1.0, size=None: full(scale, size),
            "gamma": lambda shape, scale=1.0, size=None: full(np.multiply(shape, scale), size),
            "standard_gamma": full,
            "beta": lambda a, b, size=None: full(np.divide(a, np.add(a, b)), size),
            "dirichlet": dirichlet,
            "binomial": count,
            "poisson": poisson,
            "randint": randint,
            "choice": choice,
            "permutation": permutation,
            "shuffle": _reverse,
        }

    def _full(self, value: Any, size: Any = None, *, tilted: bool = True) -> Any:
        """Return the number, or an array of it with the requested size."""
        shape = np.shape(value) if size is None else _shape(size)
        if not shape:
            return self._next(float(value)) if tilted else value
        found = np.broadcast_to(np.asarray(value, dtype=float), shape).copy()
        if tilted:
            found -= np.abs(found) * _TILT * (self.count + np.arange(found.size)).reshape(shape)
        return found


def _modules() -> list[dict[str, Any]]:
    """Return the namespaces of all modules, except the many submodules of torch and sympy."""
    return [
        vars(module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and not name.startswith(("torch.", "sympy."))
    ]


def _shape(size: Any) -> tuple[int, ...]:
    return () if size is None else (int(size),) if np.ndim(size) == 0 else tuple(size)


def _reverse(x: Any) -> None:
    x[:] = x[::-1].copy() if hasattr(x, "copy") else x[::-1]
