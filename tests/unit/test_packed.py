"""Vectors whose first numbers are narrow and whose last are not: as arrays, as tensors, in memory that others read."""

import gc
import os
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest
import torch

from codedreduce import MasterWorker, RingAllReduce, Striped
from codedreduce import packed as packed_vectors
from codedreduce.errors import UsageError
from codedreduce.memory.arena import arenas_of
from codedreduce.net.buffers import Buffers
from codedreduce.packed import Packed
from codedreduce.protocol import Settings
from codedreduce.run.agreement import Meeting, Run
from codedreduce.torch.device.tensors import convert_arrays
from codedreduce.vectors import Vector, combine, convert, copied, empty_like, is_finite, on_host, round_off

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LENGTH, EXACT = 1001, 37
NAME = f"codedreduce-{os.getpid()}-packed-test"


def numbers(seed: int, length: int = LENGTH) -> Vector:
    return (np.random.default_rng(seed).standard_normal(length) * 1000).astype(np.float32)


def as_bfloat16(vector: Vector, exact: int = 0) -> Vector:
    """By its definition: the nearest that has 16 zeros at the end, and of two as near that with another zero."""
    bits = vector.view(np.uint32).astype(np.uint64)
    found = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
    found[len(found) - exact :] = vector[len(found) - exact :]
    return found


def plainly(numbers: Vector, out: Vector) -> None:
    np.copyto(out, numbers, casting="unsafe")


@pytest.mark.parametrize("converting", [plainly, convert_arrays, convert])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_every_number_is_rounded_to_the_nearest(converting: Callable[[Vector, Vector], None]) -> None:
    """All upper halves of a float32, with the lower halves at which it matters."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    every = ((np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | lower).reshape(-1).view(np.float32)
    narrow, wide = np.empty(len(every), BFLOAT16), np.empty_like(every)
    converting(every, narrow)
    converting(narrow, wide)
    is_number = ~np.isnan(every)
    assert wide[is_number].tobytes() == as_bfloat16(every)[is_number].tobytes()
    assert np.isnan(wide[~is_number]).all(), "what is no number has become one"
    assert is_number.sum() == 6 * (1 << 16) - 2 * 127 * 6 - 2 * 5


def test_what_cannot_be_written_into_is_converted_too() -> None:
    packed = Packed.of(numbers(0), BFLOAT16, EXACT)
    packed.raw.flags.writeable = False
    assert on_host(packed[1:700]).tobytes() == as_bfloat16(numbers(0), EXACT)[1:700].tobytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("exact", [0, 1, EXACT, LENGTH])
def test_slices_have_what_is_there(exact: int) -> None:
    packed, expected = Packed.of(numbers(0), BFLOAT16, exact), as_bfloat16(numbers(0), exact)
    assert packed.nbytes == 2 * (LENGTH - exact) + 4 * exact
    for start, stop in [(0, LENGTH), (0, 1), (7, 8), (LENGTH - EXACT - 3, LENGTH - 2), (LENGTH - 1, LENGTH), (5, 5)]:
        part = packed[start:stop]
        assert len(part) == stop - start
        assert on_host(part).tobytes() == expected[start:stop].tobytes()  # type: ignore[arg-type]
        assert on_host(part[1:]).tobytes() == expected[start:stop][1:].tobytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("exact", [0, 38, LENGTH])
@pytest.mark.parametrize("kind", ["arrays", "arrays without PyTorch", "tensors"])
def test_they_are_added_up_wide_and_rounded_once(kind: str, exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks, with others that are wide, into one that is packed or not."""
    if kind == "arrays without PyTorch":
        monkeypatch.setattr(packed_vectors, "_adding", [packed_vectors._add_arrays])
    length = LENGTH if kind == "tensors" else 700_001
    given = [numbers(seed, length) for seed in range(5)]
    border = (length - exact) // 2 * 2
    exact = length - border
    expected = as_bfloat16(given[0], exact)
    for one in given[1:]:
        expected = expected + as_bfloat16(one, exact)
    packed = [Packed.of(one, BFLOAT16, exact) for one in given]
    if kind == "tensors":
        packed = [Packed(torch.from_numpy(one.raw), exact, BFLOAT16) for one in packed]  # type: ignore[arg-type]
    out = Packed(empty_like(packed[0].raw), exact, BFLOAT16)
    combine(packed, None, out)  # type: ignore[arg-type]
    assert on_host(out).tobytes() == as_bfloat16(expected, exact).tobytes()  # type: ignore[arg-type]
    mixed = [copied(packed[0]), *packed[1:]]  # type: ignore[arg-type]
    assert on_host(combine(mixed, None, empty_like(packed[1]))).tobytes() == expected.tobytes()  # type: ignore[arg-type]
    assert round_off(out, BFLOAT16, exact) is out  # type: ignore[arg-type]
    assert is_finite(out)  # type: ignore[arg-type]
    out.tail[-1:] = float("inf")
    assert not is_finite(out)  # type: ignore[arg-type]


def test_a_vector_is_cut_where_bytes_are() -> None:
    settings = Settings(length=LENGTH, chunk=100, wire=BFLOAT16, exact=EXACT)
    slices = [settings.byte_slice(index) for index in range(settings.chunks)]
    assert [one.start for one in slices] == [0, *(one.stop for one in slices[:-1])]
    packed = Packed.of(numbers(0), BFLOAT16, EXACT)
    assert slices[-1].stop == settings.bytes == packed.nbytes
    for index, where in enumerate(slices):
        chunk = packed[settings.chunk_slice(index)]
        assert (chunk.raw == packed.raw[where]).all()
        assert (settings.chunk_bytes(index), settings.exact_in(index)) == (chunk.nbytes, chunk.exact)
        assert chunk.nbytes <= settings.largest_chunk
    assert settings.chunk_bytes(settings.chunks) == -1
    with pytest.raises(UsageError, match="exact must be from 0 to 3, the length of a vector, got 4"):
        Settings(length=3, exact=4)


@pytest.fixture
def run() -> Run:
    return Run.of(
        Meeting(run=NAME), Striped(2, stripes=2, blocks=1).plan(samples=4), LENGTH, wire="bfloat16", exact=EXACT
    )


@pytest.fixture
def two(run: Run) -> Iterator[tuple[Buffers, Buffers]]:
    pair = Buffers(run, 0), Buffers(run, 1)
    yield pair
    for one in pair:
        one.close()
    del pair, one
    gc.collect()
    assert not arenas_of(NAME)


def test_by_reference_and_as_bytes_they_are_the_same(run: Run, two: tuple[Buffers, Buffers]) -> None:
    one, other = two
    settings = run.settings
    assert settings.exact == EXACT, "wide numbers can lie behind an even number of narrow ones"
    vector = one.room(1)
    vector[:] = numbers(0)
    sent = one.as_sent(vector, 1)
    expected = as_bfloat16(numbers(0), settings.exact)
    for index in range(settings.chunks):
        where = settings.chunk_slice(index)
        reference = one.refer(sent[where])
        assert reference is not None, "it is not lent"
        found = other.look_up(other.reference(memoryview(reference)), index)
        frame = one.to_bytes(sent[where], settings.exact_in(index))
        assert frame.nbytes == settings.chunk_bytes(index)
        assert frame == one.to_bytes(expected[where], settings.exact_in(index))
        travelled = other.from_bytes(frame, settings.exact_in(index))
        assert on_host(found).tobytes() == travelled.tobytes() == expected[where].tobytes()
    assert one.rooms.are_intact(1, [sent])
    for round_ in (2, 3, 4, 5, 6, 7):
        again = one.as_sent(one.room(round_), round_)
    assert not one.rooms.are_intact(1, [sent]), "it was written into since"
    del sent, again, found, vector


def test_on_a_tree_and_a_ring() -> None:
    tree = Run.of(Meeting(run=NAME), MasterWorker(2).plan(samples=4), LENGTH, wire="bfloat16", exact=EXACT)
    assert not tree.shares_memory
    assert (LENGTH - tree.settings.exact) % 2 == 0
    assert EXACT <= tree.settings.exact <= EXACT + 1
    with pytest.raises(UsageError, match="ring"):
        Run.of(Meeting(run=NAME), RingAllReduce(2).plan(samples=4), LENGTH, wire="bfloat16", exact=EXACT)
