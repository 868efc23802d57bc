"""A node's shared memory: only its own process writes it; other processes of the host map it and read it in place.

An arena has no name in any folder. The kernel keeps it while a process has it open or mapped, so no process exit leaves
anything behind. Other processes open it as an open file of another process (/proc/PID/fd/N). The kernel permits that
only to the same user in the same PID namespace. PID is the process that sent the reference, not always the owner: a
forwarded chunk stays readable after its owner has ended. The arena starts with its key, a random number that every
reference repeats. A restarted process has a new arena, and its key differs from that of the old one.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import threading
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from codedreduce.errors import MemoryGone, UsageError, WireError
from codedreduce.vectors import Vector

#: The type of slot stamps and of the arena's key.
STAMP = np.dtype(np.int64)


class Reference(NamedTuple):
    """Where a chunk lies: bytes offset..offset+size of a node's arena, which `process` has open as `file`."""

    node: int
    process: int
    file: int
    key: int
    offset: int
    size: int


class MappedArena(NamedTuple):
    """Where an arena is mapped, and as which file it is open. A node can have several: its latest process's and older
    ones.
    """

    address: int
    size: int
    node: int
    key: int
    file: int
    memory: weakref.ref[mmap.mmap]  # dead when no chunk of the arena is referenced any more


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


_fencing = threading.Lock()


def fence() -> None:
    """A memory barrier: no read or write moves across this call, whatever order the processor prefers."""
    for _ in range(2):  # a lock keeps accesses in, not out: nothing can pass between two locked sections
        with _fencing:
            pass


class Arena:
    """A node's own shared memory, and its view of the arenas of other nodes."""

    def __init__(self, run: str, node: int, *, slots: int, length: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._run = run
        self.node = node
        self.dtype = np.dtype(dtype)
        self._slots = slots
        self._length = length
        self._stride = _pages(length * self.dtype.itemsize)
        self._header = _pages((1 + slots) * STAMP.itemsize)
        self._round = -1
        self._further = 0
        self._maps: dict[int, mmap.mmap] = {}  # by node: the arena of its latest process
        self._places: list[MappedArena] = []
        self._file = -1
        at_once = self._header + 2 * self._stride
        try:
            self._file = os.memfd_create(shown_as(run, node), os.MFD_CLOEXEC)
            os.fchmod(self._file, 0o600)
            os.ftruncate(self._file, self._header + self._stride * slots)
            os.posix_fallocate(self._file, 0, at_once)
        except OSError as error:
            self.close()
            raise UsageError(
                f"cannot allocate {at_once / 1e6:.0f} MB of shared memory ({error.strerror}): "
                "free some memory, or train with shared_memory=False (CODEDREDUCE_SHARED_MEMORY=0)"
            ) from None
        memory = mmap.mmap(self._file, 0)
        key = int.from_bytes(os.urandom(8), "big") >> 1
        np.frombuffer(memory, dtype=STAMP, count=1)[0] = key
        self._stamps = self._stamps_of(memory)
        self._add(node, key, self._file, memory)

    def _stamps_of(self, memory: mmap.mmap) -> npt.NDArray[np.int64]:
        return np.frombuffer(memory, dtype=STAMP, count=self._slots, offset=STAMP.itemsize)

    def _add(self, node: int, key: int, file: int, memory: mmap.mmap) -> None:
        """Register an arena; close older arenas that nothing reads any more."""
        address = np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0]
        self._maps[node] = memory
        for place in self._places:
            if place.memory() is None:
                os.close(place.file)
        left = [place for place in self._places if place.memory() is not None]
        # In one assignment, since another thread reads the list.
        self._places = [*left, MappedArena(address, len(memory), node, key, file, weakref.ref(memory))]

    def slot(self, round_: int) -> Vector | None:
        """The next vector to write in a round; None if there is no memory for another one."""
        if round_ != self._round:
            self._round, self._further = round_, 0
            return self.vector(round_ % 2)
        slot = 2 + self._further % (self._slots - 2)
        self._further += 1
        try:
            self.allocate(slot, 0, self._length)
        except OSError:  # redundant work: its vector then lies elsewhere and travels as bytes
            return None
        return self.vector(slot)

    def vector(self, slot: int) -> Vector:
        """A slot of this node's own arena."""
        start = self._header + slot * self._stride
        return np.frombuffer(self._maps[self.node], dtype=self.dtype, count=self._length, offset=start)

    def part(self, slot: int, start: int, stop: int) -> Vector:
        """Elements start..stop of a slot of this node's own arena."""
        return self.vector(slot)[start:stop]

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Allocate memory for elements start..stop of a slot, or raise an OSError.

        Writing to memory that is not allocated kills the process.
        """
        size = self.dtype.itemsize
        os.posix_fallocate(self._file, self._header + slot * self._stride + start * size, (stop - start) * size)

    def stamp(self, slot: int, stamp: int) -> None:
        """Stamp a slot of this node's own arena, before anything is written to it."""
        self._stamps[slot] = stamp
        fence()

    def is_stamped(self, chunk: Vector, stamp: int) -> bool:
        """Whether a chunk's slot still has this stamp after the chunk was read. True for a chunk outside all arenas."""
        fence()
        place = self._place_of(chunk)
        if place is None:
            return True
        memory = place.memory()
        if memory is None:
            return True  # memory of this process, at an address where an arena was mapped before
        start = chunk.__array_interface__["data"][0] - place.address
        slot, end = ((start + more - self._header) // self._stride for more in (0, max(0, chunk.nbytes - 1)))
        return slot == end and 0 <= slot < self._slots and int(self._stamps_of(memory)[slot]) == stamp

    def _place_of(self, chunk: Vector) -> MappedArena | None:
        address = chunk.__array_interface__["data"][0]
        for place in self._places:
            if place.address <= address < place.address + place.size and place.memory() is not None:
                return place
        return None

    def refer(self, chunk: Vector) -> Reference | None:
        """The reference to a chunk, if the chunk lies in an arena."""
        place = self._place_of(chunk)
        if place is None:
            return None
        start = chunk.__array_interface__["data"][0] - place.address
        return Reference(place.node, os.getpid(), place.file, place.key, start, chunk.nbytes)

    def view(self, reference: Reference) -> Vector:
        """The chunk that a reference names."""
        memory = self._known(reference)
        if memory is None:
            file, memory = open_file(self._run, reference, self._header)
            self._add(reference.node, reference.key, file, memory)
        if reference.offset < 0 or reference.size < 0 or reference.offset + reference.size > len(memory):
            raise WireError(f"a chunk beyond the end of the shared memory of rank {reference.node}")
        count = reference.size // self.dtype.itemsize
        return np.frombuffer(memory, dtype=self.dtype, count=count, offset=reference.offset)

    def _known(self, reference: Reference) -> mmap.mmap | None:
        for place in self._places:
            if place.key == reference.key and place.node == reference.node:
                return place.memory()
        return None

    def close(self) -> None:
        """Close all arenas. A process that has this node's arena mapped keeps it until it unmaps it."""
        for place in self._places:
            os.close(place.file)
        if not self._places and self._file >= 0:
            os.close(self._file)
        self._places = []


def open_file(run: str, reference: Reference, at_least: int) -> tuple[int, mmap.mmap]:
    """Open and map, read-only, the file that a reference names."""
    path = f"/proc/{reference.process}/fd/{reference.file}"
    file = -1
    try:
        called = os.readlink(path)
        if called != f"/memfd:{shown_as(run, reference.node)} (deleted)":
            raise ValueError(f"{path} is {called}")
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(file).st_mode) or os.fstat(file).st_size < at_least:
            raise ValueError(f"{path} is not an arena")
        memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)  # only its node writes it
        if int(np.frombuffer(memory, dtype=STAMP, count=1)[0]) != reference.key:
            raise ValueError("it belongs to another process")
    except (OSError, ValueError) as error:
        if file >= 0:
            os.close(file)
        raise MemoryGone(f"the shared memory of rank {reference.node} is not available: {error}") from None
    return file, memory


def shown_as(run: str, node: int) -> str:
    """The name that the kernel displays for an arena."""
    return f"{run[:200]}-{node}"


def memory_space() -> str:
    """The PID namespace: processes must share it to read each other's arenas, since references contain process ids."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "unknown"


def arenas_of(run: str) -> dict[str, int]:
    """The open arenas on this host with names that start with `run`, and the bytes of memory that each uses."""
    found: dict[str, int] = {}
    pattern = re.compile(rf"/memfd:{re.escape(run)}.* \(deleted\)")
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            for file in os.listdir(f"/proc/{process}/fd"):
                path = f"/proc/{process}/fd/{file}"
                called = os.readlink(path)
                if pattern.fullmatch(called):
                    found[called] = max(found.get(called, 0), os.stat(path).st_blocks * 512)
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found
