"""Where a node's vectors lie, and what they are on the wire.

Between nodes of one host they lie in shared memory: they are written once and read where they lie. Every node has an
arena, a file in memory with room for a few vectors. A chunk that lies in an arena travels as a reference (whose arena,
where, how long); the receiver maps that arena and gets a view. Chunks that lie elsewhere travel as bytes.

On a tree the first vector of a round goes into one of two slots in turn: when a node has the model of a round, its
parent has let go of everything of the round before. Further vectors of a round, which only redundant work makes, go
into slots that are otherwise never touched and so take no memory. In stripes nobody waits for anybody, and slots are
stamped (`lending`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError, WireError
from codedreduce.protocol.events import Gathered
from codedreduce.protocol.rooms import OWN_ROOMS, Rooms
from codedreduce.schemes import StripedPlan, TreePlan
from codedreduce.vectors import Vector, empty
from codedreduce.worlds.lending import Lending
from codedreduce.worlds.run import Run

FOLDER = Path("/dev/shm")

#: References to a vector that only a list has, while it is looked at: the list's, the variable's, the question's own.
NOBODY_ELSE = 3

#: What a slot is stamped with.
STAMP = np.dtype(np.int64)


#: Seconds after which shared memory of a process that is not there is taken away.
ORPHANED_AFTER = 3600.0


class Reference(NamedTuple):
    """Where a chunk lies: bytes offset..offset+size of the arena of a node's process."""

    node: int
    process: int
    offset: int
    size: int


class Place(NamedTuple):
    """Where an arena is mapped, and the stamps of its slots."""

    address: int
    size: int
    node: int
    process: int
    stamps: npt.NDArray[np.int64]


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


_fencing = threading.Lock()


def _fence() -> None:
    """Keep what is read or written before this apart from what is after it, whatever order a processor prefers."""
    for _ in range(2):  # a lock keeps things in, not out: between two of them nothing can pass
        with _fencing:
            pass


class Arena:
    """One node's own shared memory, and its view of the others'."""

    def __init__(self, run: str, node: int, *, slots: int, length: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._run = run
        self.node = node
        self.dtype = np.dtype(dtype)
        self._slots = slots
        self._length = length
        self._stride = _pages(length * self.dtype.itemsize)
        self._header = _pages(slots * STAMP.itemsize)
        self._round = -1
        self._further = 0
        self._maps: dict[int, tuple[int, mmap.mmap]] = {}  # by node, of its latest process
        self._places: list[Place] = []
        remove_orphans()
        path = self._path(node, os.getpid())
        self._file = -1
        at_once = self._header + 2 * self._stride
        try:
            path.unlink(missing_ok=True)  # of a process that had this number
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, self._header + self._stride * slots)
            os.posix_fallocate(self._file, 0, at_once)
        except OSError as error:
            if self._file >= 0:
                self.close()
            raise UsageError(
                f"{at_once / 1e6:.0f} MB of shared memory are not to be had in {FOLDER} ({error.strerror}); "
                "make room there, or train with shared_memory=False (CODEDREDUCE_SHARED_MEMORY=0)"
            ) from None
        self._add(node, os.getpid(), mmap.mmap(self._file, 0))

    def _path(self, node: int, process: int) -> Path:
        return FOLDER / f"{self._run}-{node}-{process}"

    def _add(self, node: int, process: int, memory: mmap.mmap) -> None:
        self._maps[node] = (process, memory)
        address = np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0]
        stamps = np.frombuffer(memory, dtype=STAMP, count=self._slots)
        others = [place for place in self._places if place.node != node]
        self._places = [*others, Place(address, len(memory), node, process, stamps)]  # at once: another thread looks

    def slot(self, round_: int) -> Vector:
        """The next vector to write into, in a round."""
        if round_ != self._round:
            self._round, self._further = round_, 0
            slot = round_ % 2
        else:
            slot = 2 + self._further % (self._slots - 2)
            self._further += 1
            self.allocate(slot, 0, self._length)
        return self.vector(slot)

    def vector(self, slot: int) -> Vector:
        """A slot of this node's own."""
        start = self._header + slot * self._stride
        return np.frombuffer(self._maps[self.node][1], dtype=self.dtype, count=self._length, offset=start)

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Have memory for these numbers of a slot, or raise an OSError: writing where there is none ends a process."""
        size = self.dtype.itemsize
        os.posix_fallocate(self._file, self._header + slot * self._stride + start * size, (stop - start) * size)

    def stamp(self, slot: int, stamp: int) -> None:
        """Say whose a slot of this node's own is from now on, before anything is written into it."""
        self._places[0].stamps[slot] = stamp
        _fence()

    def is_stamped(self, chunk: Vector, stamp: int) -> bool:
        """Whether the slot that a chunk lies in is still as stamped, after it was read; a chunk elsewhere is."""
        _fence()
        address = chunk.__array_interface__["data"][0]
        for place in self._places:
            start = address - place.address
            if 0 <= start < place.size:
                slot, end = ((start + more - self._header) // self._stride for more in (0, max(0, chunk.nbytes - 1)))
                return slot == end and 0 <= slot < self._slots and int(place.stamps[slot]) == stamp
        return True

    def refer(self, chunk: Vector) -> Reference | None:
        """The reference of a chunk, if it lies in an arena."""
        address = chunk.__array_interface__["data"][0]
        for place in self._places:
            if place.address <= address < place.address + place.size:
                return Reference(place.node, place.process, address - place.address, chunk.nbytes)
        return None

    def view(self, reference: Reference) -> Vector:
        """The chunk that lies there."""
        process, memory = self._maps.get(reference.node, (-1, None))
        if memory is None or process != reference.process:
            try:
                file = os.open(self._path(reference.node, reference.process), os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)  # it is its node's alone to write into
                finally:
                    os.close(file)
                if len(memory) < self._header:
                    raise ValueError("it is too small")
            except (OSError, ValueError) as error:
                raise WireError(f"the shared memory of node {reference.node} is not there: {error}") from None
            self._add(reference.node, reference.process, memory)
        if reference.offset < 0 or reference.size < 0 or reference.offset + reference.size > len(memory):
            raise WireError(f"a chunk beyond the shared memory of node {reference.node}")
        count = reference.size // self.dtype.itemsize
        return np.frombuffer(memory, dtype=self.dtype, count=count, offset=reference.offset)

    def close(self) -> None:
        """Take the node's own arena away; who has it mapped keeps it until they let go."""
        self._path(self.node, os.getpid()).unlink(missing_ok=True)
        os.close(self._file)


def remove_orphans() -> None:
    """Take away what processes left long ago that were ended before they could: a signal skips every clean-up."""
    for path in FOLDER.glob("codedreduce-*"):
        process = path.name.rpartition("-")[2]
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > ORPHANED_AFTER
            if old and process.isdigit() and not os.path.exists(f"/proc/{process}"):
                path.unlink(missing_ok=True)


def remove_arenas(run: str) -> None:
    """Take away what a run left behind, however it ended."""
    for path in FOLDER.glob(f"{run}-*"):
        path.unlink(missing_ok=True)


_reference_decoder = msgspec.msgpack.Decoder(Reference)


class Buffers:
    """One node's vectors: in shared memory if its neighbours can read them there, else in its own."""

    def __init__(self, run: Run, node: int) -> None:
        self._length = run.settings.length
        self._dtype = run.dtype
        self._wire = run.wire
        self._arena: Arena | None = None
        self._lending: Lending | None = None
        self._spare: Vector | None = None
        self._taken: list[Vector] = []
        if run.shares_memory and isinstance(run.plan, StripedPlan):
            settings = run.settings
            held = settings.rounds_held(settings.keepers(run.plan))
            slots = Lending.slots_for(held)
            self._arena = Arena(run.meeting.run, node, slots=slots, length=self._length, dtype=run.dtype)
            self._lending = Lending(self._arena, settings, held)
        elif run.shares_memory:
            stragglers = run.plan.scheme.stragglers if isinstance(run.plan, TreePlan) else 0
            # a group's other shares, the parent's unit, and what may be repeated
            slots = 3 if node == 0 else 5 + stragglers
            self._arena = Arena(run.meeting.run, node, slots=slots, length=self._length, dtype=run.dtype)

    def room(self, round_: int) -> Vector:
        """Room for the next vector of a round."""
        if self._lending is not None:
            found = self._lending.part_room(round_)
            return found if found is not None else empty(self._length, self._dtype)
        return self._arena.slot(round_) if self._arena is not None else empty(self._length, self._dtype)

    @property
    def rooms(self) -> Rooms:
        """Where a rank's sums lie."""
        return self._lending if self._lending is not None else OWN_ROOMS

    def take(self, gathered: Gathered) -> Vector | None:
        """A gathered sum, in memory of this node's own; None if it was written into before it was here."""
        vector = self._free()
        start = 0
        for chunk in gathered.chunks:
            vector[start : start + len(chunk)] = chunk
            start += len(chunk)
        return vector if self.rooms.are_intact(gathered.round, gathered.chunks) else None

    def _free(self) -> Vector:
        """A vector that nobody has any more, or a new one: memory that was never touched is slow to write into."""
        for vector in self._taken:
            if sys.getrefcount(vector) == NOBODY_ELSE:
                return vector
        vector = empty(self._length, self._dtype)
        self._taken = [vector, *self._taken[:1]]
        return vector

    def spare(self) -> Vector:
        """Room for a vector that is needed for a moment; the same every time."""
        if self._spare is None:
            self._spare = empty(self._length, self._dtype)
        return self._spare

    def round_as_sent(self, vector: Vector) -> None:
        """Round a vector as it would be on its way: a parent's own unit may come from its child."""
        if self._wire is not None:
            vector[:] = vector.astype(self._wire)

    def refer(self, chunk: Vector) -> bytes | None:
        """Where a chunk lies in shared memory, as bytes, if it does."""
        reference = self._arena.refer(chunk) if self._arena is not None else None
        return msgspec.msgpack.encode(reference) if reference is not None else None

    def to_bytes(self, chunk: Vector) -> memoryview:
        """A chunk as it travels; bytes as they are."""
        if self._wire is not None and chunk.dtype != np.uint8:
            chunk = chunk.astype(self._wire)
        return np.ascontiguousarray(chunk).view(np.uint8).data

    def look_up(self, frame: memoryview) -> tuple[Reference, Vector]:
        """The chunk that such bytes refer to."""
        if self._arena is None:
            raise WireError("a reference into shared memory, which this node does not share")
        try:
            reference = _reference_decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise WireError(f"a reference that cannot be read: {error}") from None
        return reference, self._arena.view(reference)

    def from_bytes(self, frame: memoryview, *, plain: bool = False) -> Vector:
        """A chunk that has travelled, as numbers or as plain bytes; its size has been checked."""
        if plain:
            return np.frombuffer(frame, dtype=np.uint8)
        if frame.nbytes % (self._wire or self._dtype).itemsize:
            raise WireError(f"a chunk of {frame.nbytes} bytes is not whole numbers")
        data = np.frombuffer(frame, dtype=self._wire or self._dtype)
        return data if self._wire is None else data.astype(self._dtype)

    def close(self) -> None:
        """Take shared memory away."""
        if self._arena is not None:
            self._arena.close()
