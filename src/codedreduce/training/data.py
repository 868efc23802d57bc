"""Where samples come from: arrays, .npz, .csv, LIBSVM text, a generator. A worker reads only the rows it may need."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Array = npt.NDArray[Any]


class Shape(NamedTuple):
    """How much data there is."""

    samples: int
    features: int


class Source(Protocol):
    """Rows that can be read by ranges."""

    def shape(self) -> Shape:
        """How many samples, with how many features."""

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """The rows of these ranges, one after the other: x and y."""


@dataclass(frozen=True)
class Arrays:
    """Data in memory."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        _check(self.x, self.y, "the data")

    def shape(self) -> Shape:
        """As the arrays are."""
        return Shape(*self.x.shape)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Views where one range suffices."""
        if len(ranges) == 1:
            part = slice(ranges[0].start, ranges[0].stop)
            return self.x[part], self.y[part]
        rows = np.concatenate([np.arange(one.start, one.stop) for one in ranges])
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class NpzFile:
    """An archive with x (samples x features) and y."""

    path: Path

    def shape(self) -> Shape:
        """Read from the header of x."""
        return Shape(*self._load()[0].shape)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """The archive is unpacked whole, and what is not needed let go."""
        x, y = self._load()
        rows = np.concatenate([np.arange(one.start, one.stop) for one in ranges])
        return np.ascontiguousarray(x[rows], dtype=np.float32), np.ascontiguousarray(y[rows], dtype=np.float32)

    def _load(self) -> tuple[Array, Array]:
        try:
            with np.load(self.path) as archive:
                missing = {"x", "y"} - set(archive)
                if missing:
                    raise UsageError(
                        f"{self.path.name} has {', '.join(archive)}; it needs x (samples x features) and y"
                    )
                x, y = archive["x"], archive["y"]
        except UsageError:
            raise
        except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
            raise UsageError(f"{self.path.name} is not a readable .npz archive: {error}") from None
        _check(x, y, self.path.name)
        return x, y


@dataclass(frozen=True)
class CsvFile:
    """Numbers separated by commas, the label in the last column; a first line of names is skipped."""

    path: Path

    def shape(self) -> Shape:
        """Lines and columns, counted."""
        with self.path.open() as file:
            first = file.readline()
            named = _is_header(first)
            columns = len(first.split(","))
            lines = sum(1 for line in file if line.strip()) + (0 if named else 1)
        if columns < 2:
            raise UsageError(f"{self.path.name} has {columns} column; it needs features and, last, the label")
        return Shape(lines, columns - 1)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Only the lines asked for are parsed."""
        columns = self.shape().features + 1
        rows = []
        with self.path.open() as file:
            first = file.readline()
            if not _is_header(first):
                file.seek(0)
            for number, line in _lines(file, ranges):
                cells = line.split(",")
                if len(cells) != columns:
                    raise UsageError(
                        f"{self.path.name}: sample {number} has {len(cells)} columns; the first has {columns}"
                    )
                try:
                    rows.append([float(cell) for cell in cells])
                except ValueError:
                    raise UsageError(
                        f"{self.path.name}: sample {number} is not all numbers: {line.strip()[:60]!r}"
                    ) from None
        table = np.array(rows, dtype=np.float32).reshape(-1, columns)
        x, y = np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
        _check(x, y, self.path.name)
        return x, y


@dataclass(frozen=True)
class LibsvmFile:
    """`label index:value ...` lines, indices from 1, as GISETTE comes; labels -1 and +1 become 0 and 1."""

    path: Path

    def shape(self) -> Shape:
        """The largest index there is."""
        samples = features = 0
        with self.path.open() as file:
            for line in file:
                cells = line.split()
                if cells:
                    samples += 1
                    features = max([features, *(_index(cell) for cell in cells[-1:] if ":" in cell)])
        return Shape(samples, features)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Only the lines asked for are parsed."""
        count = sum(len(one) for one in ranges)
        x = np.zeros((count, self.shape().features), dtype=np.float32)
        y = np.zeros(count, dtype=np.float32)
        with self.path.open() as file:
            for row, (number, line) in enumerate(_lines(file, ranges)):
                label, *cells = line.split()
                try:
                    y[row] = max(float(label), 0.0)
                    for cell in cells:
                        index = _index(cell)
                        if index < 1:
                            raise ValueError("indices count from 1")
                        x[row, index - 1] = float(cell.partition(":")[2])
                except (ValueError, IndexError):
                    raise UsageError(
                        f"{self.path.name}: sample {number} is not LIBSVM text: {line.strip()[:60]!r}"
                    ) from None
        _check(x, y, self.path.name)
        return x, y


def _index(cell: str) -> int:
    """The feature of a LIBSVM cell; 0 if it is not one, which reading then refuses."""
    text = cell.partition(":")[0]
    return int(text) if text.isdigit() else 0


def _is_header(line: str) -> bool:
    try:
        float(line.split(",")[0])
    except ValueError:
        return True
    return False


def _lines(file: Any, ranges: Sequence[range]) -> Any:
    """The lines of these samples, in the order of the ranges, with their numbers."""
    wanted = {number for one in ranges for number in one}
    found = {}
    number = 0
    for line in file:
        if line.strip():
            if number in wanted:
                found[number] = line
            number += 1
    for one in ranges:
        for index in one:
            if index in found:
                yield index, found[index]


def _check(x: Array, y: Array, name: str) -> None:
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise UsageError(f"{name}: x must be samples x features and y one label a sample; got {x.shape} and {y.shape}")
    for what, values in (("x", x), ("y", y)):
        if values.dtype.kind not in "fiub":
            raise UsageError(f"{name}: {what} must hold numbers, and holds {values.dtype}")
        bad = ~np.isfinite(values)
        if bad.any():
            raise UsageError(f"{name}: {what} has a value that is not a number in sample {int(np.argwhere(bad)[0][0])}")


def open_data(path: Path) -> Source:
    """The source for a file, by its ending: .npz, .csv, or anything else as LIBSVM text."""
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    if path.suffix != ".npz":
        with path.open("rb") as file:
            if b"\0" in file.read(4096):
                raise UsageError(f"{path.name} is not text; data comes as .npz, .csv or LIBSVM text")
    if path.suffix == ".npz":
        return NpzFile(path)
    return CsvFile(path) if path.suffix == ".csv" else LibsvmFile(path)


def synthetic(samples: int, features: int, *, kind: str = "logistic", seed: int = 0) -> Arrays:
    """Data from a known model: linear with a little noise, or labels drawn from its logistic.

    >>> synthetic(100, 5).shape()
    Shape(samples=100, features=5)
    """
    if samples < 1 or features < 1 or seed < 0:
        raise UsageError(f"data needs samples and features above zero, got {samples} and {features} (seed {seed})")
    random = np.random.default_rng([seed, samples, features])
    x = random.standard_normal((samples, features), dtype=np.float32)
    truth = random.standard_normal(features, dtype=np.float32) / np.float32(np.sqrt(features))
    z = x @ truth
    if kind == "linear":
        return Arrays(x, (z + 0.1 * random.standard_normal(samples, dtype=np.float32)).astype(np.float32))
    if kind == "logistic":
        return Arrays(x, (random.random(samples) < 1 / (1 + np.exp(-4 * z))).astype(np.float32))
    raise UsageError(f"data can be made for a linear or a logistic model, not {kind!r}")
