"""Sources of samples: arrays, a generator, and in files.py files.

A source reads the requested ranges of rows and no others. `loaded()` returns the same data as arrays, in memory or
mapped: a process that forks its workers loads once, and the workers share its pages.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Array = npt.NDArray[Any]

#: The number of rows in a digest.
DIGESTED = 64

#: The number of values that are checked at a time, so that the check needs little memory.
CHECKED = 1 << 20


class Shape(NamedTuple):
    """The size of the data."""

    samples: int
    features: int


class Source(ABC):
    """Rows that can be read by ranges."""

    @abstractmethod
    def shape(self) -> Shape:
        """The number of samples and of features."""

    @abstractmethod
    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """The rows of these ranges, one after the other: x and y."""

    def loaded(self) -> Arrays:
        """All of it as arrays."""
        return Arrays(*self.read([range(self.shape().samples)]))

    def digest(self) -> str:
        """The shape, and a checksum over evenly spread rows, by which nodes detect different data.

        It depends on the numbers only, not on how they are stored.

        >>> Arrays(np.eye(2), np.ones(2)).digest()
        '2 x 2, checksum dbbcbb0e'
        """
        samples, features = self.shape()
        count = min(DIGESTED, samples)
        places = [place * (samples - 1) // max(count - 1, 1) for place in range(count)]
        checksum = 0
        for values in self.read([range(place, place + 1) for place in places]):
            checksum = zlib.crc32(np.ascontiguousarray(values, dtype="<f4").tobytes(), checksum)
        return f"{samples} x {features}, checksum {checksum:08x}"


@dataclass(frozen=True)
class Arrays(Source):
    """Data in memory, or in a mapped file. `name` names the data in errors."""

    x: Array
    y: Array
    name: str = "the data"

    def __post_init__(self) -> None:
        check_shapes(self.x, self.y, self.name)
        check_values(self.x, self.y, self.name)

    def shape(self) -> Shape:
        """The shape of x."""
        return Shape(*self.x.shape)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Views where the ranges follow one another."""
        return rows_of(self.x, ranges), rows_of(self.y, ranges)

    def loaded(self) -> Arrays:
        """These arrays."""
        return self


def rows_of(values: Array, ranges: Sequence[range]) -> Array:
    """The rows of these ranges: a view where they follow one another, else a copy."""
    if not ranges:
        return values[:0]
    if all(one.stop == following.start for one, following in pairwise(ranges)):
        return values[ranges[0].start : ranges[-1].stop]
    return np.concatenate([values[one.start : one.stop] for one in ranges])


class Header(NamedTuple):
    """The shape and type of an array in an archive, and the offset of its numbers in the file if they can be mapped."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None


def check_shapes(x: Array | Header, y: Array | Header, name: str) -> None:
    """Raise `UsageError` unless x is samples x features of numbers, and y has one number for each sample."""
    if len(x.shape) != 2 or len(y.shape) != 1 or x.shape[0] != y.shape[0]:
        raise UsageError(f"{name}: x must be samples x features and y one label a sample; got {x.shape} and {y.shape}")
    for what, values in (("x", x), ("y", y)):
        if values.dtype.kind not in "fiub":
            raise UsageError(f"{name}: {what} must hold numbers, but holds {values.dtype}")


def check_values(x: Array, y: Array, name: str, ranges: Sequence[range] | None = None) -> None:
    """Raise `UsageError` for a value that is not finite, and name its sample.

    Row i of x is the i-th sample of the ranges; without ranges it is sample i.
    """
    step = max(1, CHECKED // max(1, x.shape[1]))
    for what, values in (("x", x), ("y", y)):
        for start in range(0, len(values), step):
            good = np.isfinite(values[start : start + step])
            if not good.all():
                first = np.argwhere(~good)[0]
                row, is_nan = start + int(first[0]), np.isnan(values[start:][tuple(first)])
                sample = row if ranges is None else [number for one in ranges for number in one][row]
                raise UsageError(
                    f"{name}: {what} has a value that is {'not a number' if is_nan else 'infinite'} in sample {sample}"
                )


def synthetic(samples: int, features: int, *, kind: str = "logistic", seed: int = 0) -> Arrays:
    """Data from a known model: linear with a little noise, or labels drawn from its logistic.

    >>> synthetic(100, 5).shape()
    Shape(samples=100, features=5)
    """
    if samples < 1 or features < 1 or seed < 0:
        raise UsageError(
            f"samples and features must be above 0 and the seed 0 or more; got {samples}, {features}, seed {seed}"
        )
    random = np.random.default_rng([seed, samples, features])
    x = random.standard_normal((samples, features), dtype=np.float32)
    truth = random.standard_normal(features, dtype=np.float32) / np.float32(np.sqrt(features))
    z = x @ truth
    if kind == "linear":
        return Arrays(x, (z + 0.1 * random.standard_normal(samples, dtype=np.float32)).astype(np.float32))
    if kind == "logistic":
        return Arrays(x, (random.random(samples) < 1 / (1 + np.exp(-4 * z))).astype(np.float32))
    raise UsageError(f"kind of synthetic data must be 'linear' or 'logistic', got {kind!r}")
