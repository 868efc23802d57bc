"""Samples from files: .npz, .csv, LIBSVM text."""

from __future__ import annotations

import codecs
import os
import zipfile
import zlib
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from codedreduce.errors import UsageError
from codedreduce.training.data import Array, Arrays, Header, Shape, Source, check_shapes, check_values, rows_of


def open_data(path: str | Path) -> Source:
    """The source for a file, by its ending: .npz, .csv, or anything else as LIBSVM text."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    if path.suffix == ".npz":
        return NpzFile(path)
    with path.open("rb") as file:
        if b"\0" in file.read(4096):
            raise UsageError(f"{path.name} is not text; data comes as .npz, .csv or LIBSVM text")
    return CsvFile(path) if path.suffix == ".csv" else LibsvmFile(path)


@dataclass(frozen=True)
class _File(Source):
    """A file, with checks of its values."""

    path: Path

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """The rows of these ranges, checked."""
        x, y = self._read(ranges)
        check_values(x, y, self.path.name, ranges)
        return x, y

    def loaded(self) -> Arrays:
        """All of it, read and checked once."""
        return Arrays(*self._read([range(self.shape().samples)]), self.path.name)

    @abstractmethod
    def _read(self, ranges: Sequence[range]) -> tuple[Array, Array]: ...


class NpzFile(_File):
    """An archive with x (samples x features) and y.

    An uncompressed x of float32 (`np.savez`) is mapped and read in place. Any other x is unpacked and converted once,
    at the first access to a row.
    """

    def shape(self) -> Shape:
        """Read from the header of x."""
        return Shape(*self._headers[0].shape)

    def _read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        x, y = self._arrays
        return rows_of(x, ranges), rows_of(y, ranges)

    @cached_property
    def _headers(self) -> tuple[Header, Header]:
        with _reading(self.path), zipfile.ZipFile(self.path) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not found.keys() >= {"x", "y"}:
                raise UsageError(f"{self.path.name} has {', '.join(found)}; it needs x (samples x features) and y")
            x, y = (_header(archive, found[name]) for name in ("x", "y"))
        check_shapes(x, y, self.path.name)
        return x, y

    @cached_property
    def _arrays(self) -> tuple[Array, Array]:
        header = self._headers[0]
        with _reading(self.path), np.load(self.path) as archive:
            if header.offset is None:
                x = np.ascontiguousarray(archive["x"], dtype=np.float32)
            else:
                mapped = np.memmap(self.path, np.float32, mode="r", offset=header.offset, shape=header.shape)
                x = mapped.view(np.ndarray)
            return x, np.ascontiguousarray(archive["y"], dtype=np.float32)


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Header:
    with archive.open(info) as member:
        read = npy.read_array_header_1_0 if npy.read_magic(member) == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read(member)
        passed = member.tell()
    if info.compress_type != zipfile.ZIP_STORED or fortran_order or dtype != np.float32 or 0 in shape:
        return Header(shape, dtype, None)
    assert archive.fp is not None
    archive.fp.seek(info.header_offset + 26)  # a header of 30 bytes ends with the lengths of the name and extra field
    lengths = np.frombuffer(archive.fp.read(4), dtype="<u2")
    return Header(shape, dtype, info.header_offset + 30 + int(lengths.sum()) + passed)


class _TextFile(_File):
    """One sample per line. One pass over the file finds the starts of lines; later only requested lines are parsed."""

    def shape(self) -> Shape:
        """Lines and features, counted."""
        return self._lines.shape

    @cached_property
    def _lines(self) -> _Lines:
        starts = array("q")
        features = end = 0
        with _reading(self.path), self.path.open("rb") as file:
            for data in file:
                line, begin, end = data.decode(errors="replace"), end, end + len(data)
                if not begin and data.startswith(codecs.BOM_UTF8):  # not part of the first number
                    line, begin = line[1:], len(codecs.BOM_UTF8)
                if line.strip():
                    if features or not self._is_header(line):
                        starts.append(begin)
                    features = self._features(line, features)
            return _Lines(Shape(len(starts), features), starts, _stamp(file))

    def _read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        shape, starts, stamp = self._lines
        numbers = [number for one in ranges for number in range(shape.samples)[one.start : one.stop]]
        x = np.zeros((len(numbers), shape.features), dtype=np.float32)
        y = np.zeros(len(numbers), dtype=np.float32)
        with _reading(self.path), self.path.open("rb") as file:
            if _stamp(file) != stamp:
                raise UsageError(f"{self.path.name} has changed since it was first read; start again")
            for row, number in enumerate(numbers):
                file.seek(starts[number])
                y[row] = self._parse(file.readline().decode(errors="replace"), number, x[row])
        return x, y

    def _is_header(self, line: str) -> bool:
        """Whether the first line is not a sample."""
        return False

    @abstractmethod
    def _features(self, line: str, known: int) -> int:
        """The number of features, from one more line."""

    @abstractmethod
    def _parse(self, line: str, number: int, x: Array) -> float:
        """Write the features of a sample into x; return its label."""


class _Lines(NamedTuple):
    """The shape of the data in a text, the offset of each sample, and a stamp of the file's state."""

    shape: Shape
    starts: array[int]
    stamp: tuple[int, int]


class CsvFile(_TextFile):
    """Numbers separated by commas, the label in the last column; a first line without any number is skipped."""

    def _is_header(self, line: str) -> bool:
        return not any(map(_is_number, line.split(",")))

    def _features(self, line: str, known: int) -> int:
        columns = known + 1 if known else len(line.split(","))
        if columns < 2:
            raise UsageError(f"{self.path.name} has {columns} column; it needs features and, last, the label")
        return columns - 1

    def _parse(self, line: str, number: int, x: Array) -> float:
        cells = line.split(",")
        if len(cells) != len(x) + 1:
            raise UsageError(f"{self.path.name}: sample {number} has {len(cells)} columns; the first has {len(x) + 1}")
        try:
            x[:] = [float(cell) for cell in cells[:-1]]
            return float(cells[-1])
        except ValueError:
            raise UsageError(f"{self.path.name}: sample {number} is not all numbers: {line.strip()[:60]!r}") from None


class LibsvmFile(_TextFile):
    """`label index:value ...` lines, indices from 1, the format of GISETTE; labels -1 and +1 become 0 and 1."""

    def _features(self, line: str, known: int) -> int:
        last = line.split()[-1]
        return max(known, _index(last)) if ":" in last else known

    def _parse(self, line: str, number: int, x: Array) -> float:
        label, *cells = line.split()
        try:
            for cell in cells:
                index = _index(cell)
                if index < 1:
                    raise ValueError("indices count from 1")
                x[index - 1] = float(cell.partition(":")[2])
            return max(float(label), 0.0)
        except (ValueError, IndexError):
            raise UsageError(f"{self.path.name}: sample {number} is not LIBSVM text: {line.strip()[:60]!r}") from None


def _index(cell: str) -> int:
    """The feature index of a LIBSVM cell; 0 if the cell is invalid, which `_parse` then rejects."""
    text = cell.partition(":")[0]
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _stamp(file: BinaryIO) -> tuple[int, int]:
    """The size and modification time, which change when a file is written."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn read errors into a `UsageError` that names the file."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except (ValueError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path.name} is not a readable {path.suffix} archive: {error}") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
