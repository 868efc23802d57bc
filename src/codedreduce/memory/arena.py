"""A node's shared memory: written by its process alone, read by the others of this machine where it lies.

It has no name in any folder. The kernel keeps it as long as a process has it open or mapped, and so nothing is left of
it however processes end. Others open it as a file of a process that has it open (/proc/PID/fd/N), which only the same
user may, in the same PID namespace. That process is whoever tells them of it, not always its owner: what is passed on
can be read though its owner has died. It begins with a number drawn at random, its key, which every reference repeats:
a process that was started again has another arena, and is never taken for the one before it.
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

#: What a slot is stamped with, and an arena told apart by.
STAMP = np.dtype(np.int64)


class Reference(NamedTuple):
    """Where a chunk lies: bytes offset..offset+size of a node's arena, which a process has open as a file."""

    node: int
    process: int
    file: int
    key: int
    offset: int
    size: int


class MappedArena(NamedTuple):
    """Where an arena is mapped, and open as which file; that of a node's latest process, or of an earlier one."""

    address: int
    size: int
    node: int
    key: int
    file: int
    memory: weakref.ref[mmap.mmap]  # gone when nobody has a chunk of it any more


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


_fencing = threading.Lock()


def fence() -> None:
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
        self._header = _pages((1 + slots) * STAMP.itemsize)
        self._round = -1
        self._further = 0
        self._maps: dict[int, mmap.mmap] = {}  # by node, of its latest process
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
                f"{at_once / 1e6:.0f} MB of shared memory are not to be had ({error.strerror}); "
                "make room, or train with shared_memory=False (CODEDREDUCE_SHARED_MEMORY=0)"
            ) from None
        memory = mmap.mmap(self._file, 0)
        key = int.from_bytes(os.urandom(8), "big") >> 1
        np.frombuffer(memory, dtype=STAMP, count=1)[0] = key
        self._stamps = self._stamps_of(memory)
        self._add(node, key, self._file, memory)

    def _stamps_of(self, memory: mmap.mmap) -> npt.NDArray[np.int64]:
        return np.frombuffer(memory, dtype=STAMP, count=self._slots, offset=STAMP.itemsize)

    def _add(self, node: int, key: int, file: int, memory: mmap.mmap) -> None:
        """Know of an arena; of those that its node had before, let go when nobody reads them any more."""
        address = np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0]
        self._maps[node] = memory
        for place in self._places:
            if place.memory() is None:
                os.close(place.file)
        left = [place for place in self._places if place.memory() is not None]
        # At once: another thread looks.
        self._places = [*left, MappedArena(address, len(memory), node, key, file, weakref.ref(memory))]

    def slot(self, round_: int) -> Vector | None:
        """The next vector to write into, in a round; None if there is no memory for one more."""
        if round_ != self._round:
            self._round, self._further = round_, 0
            return self.vector(round_ % 2)
        slot = 2 + self._further % (self._slots - 2)
        self._further += 1
        try:
            self.allocate(slot, 0, self._length)
        except OSError:  # it is for work that others may do, too: it then lies elsewhere, and travels
            return None
        return self.vector(slot)

    def vector(self, slot: int) -> Vector:
        """A slot of this node's own."""
        start = self._header + slot * self._stride
        return np.frombuffer(self._maps[self.node], dtype=self.dtype, count=self._length, offset=start)

    def part(self, slot: int, start: int, stop: int) -> Vector:
        """Some numbers of a slot of this node's own."""
        return self.vector(slot)[start:stop]

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Have memory for these numbers of a slot, or raise an OSError: writing where there is none ends a process."""
        size = self.dtype.itemsize
        os.posix_fallocate(self._file, self._header + slot * self._stride + start * size, (stop - start) * size)

    def stamp(self, slot: int, stamp: int) -> None:
        """Say whose a slot of this node's own is from now on, before anything is written into it."""
        self._stamps[slot] = stamp
        fence()

    def is_stamped(self, chunk: Vector, stamp: int) -> bool:
        """Whether the slot that a chunk lies in is still as stamped, after it was read; a chunk elsewhere is."""
        fence()
        place = self._place_of(chunk)
        if place is None:
            return True
        memory = place.memory()
        if memory is None:
            return True  # it lies in memory of this process's own, where an arena was mapped once
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
        """The reference of a chunk, if it lies in an arena."""
        place = self._place_of(chunk)
        if place is None:
            return None
        start = chunk.__array_interface__["data"][0] - place.address
        return Reference(place.node, os.getpid(), place.file, place.key, start, chunk.nbytes)

    def view(self, reference: Reference) -> Vector:
        """The chunk that lies there."""
        memory = self._known(reference)
        if memory is None:
            file, memory = open_file(self._run, reference, self._header)
            self._add(reference.node, reference.key, file, memory)
        if reference.offset < 0 or reference.size < 0 or reference.offset + reference.size > len(memory):
            raise WireError(f"a chunk beyond the shared memory of node {reference.node}")
        count = reference.size // self.dtype.itemsize
        return np.frombuffer(memory, dtype=self.dtype, count=count, offset=reference.offset)

    def _known(self, reference: Reference) -> mmap.mmap | None:
        for place in self._places:
            if place.key == reference.key and place.node == reference.node:
                return place.memory()
        return None

    def close(self) -> None:
        """Let go of all arenas; who has this node's own mapped keeps it until they let go."""
        for place in self._places:
            os.close(place.file)
        if not self._places and self._file >= 0:
            os.close(self._file)
        self._places = []


def open_file(run: str, reference: Reference, at_least: int) -> tuple[int, mmap.mmap]:
    """The file that a reference names, as another process has it open; only to be read."""
    path = f"/proc/{reference.process}/fd/{reference.file}"
    file = -1
    try:
        called = os.readlink(path)
        if called != f"/memfd:{shown_as(run, reference.node)} (deleted)":
            raise ValueError(f"{path} is {called}")
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(file).st_mode) or os.fstat(file).st_size < at_least:
            raise ValueError(f"{path} is something else")
        memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)  # it is its node's alone to write into
        if int(np.frombuffer(memory, dtype=STAMP, count=1)[0]) != reference.key:
            raise ValueError("it is that of another process")
    except (OSError, ValueError) as error:
        if file >= 0:
            os.close(file)
        raise MemoryGone(f"the shared memory of node {reference.node} is not there: {error}") from None
    return file, memory


def shown_as(run: str, node: int) -> str:
    """What the kernel shows an arena as, to people who look."""
    return f"{run[:200]}-{node}"


def memory_space() -> str:
    """Where processes must be to read each other's arenas: they name them by process ids."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "unknown"


def arenas_of(run: str) -> dict[str, int]:
    """The arenas that processes of this machine have open whose name begins so, and the bytes of memory they take."""
    found: dict[str, int] = {}
    pattern = re.compile(rf"/memfd:{re.escape(run)}.* \(deleted\)")
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            for file in os.listdir(f"/proc/{process}/fd"):
                path = f"/proc/{process}/fd/{file}"
                called = os.readlink(path)
                if pattern.fullmatch(called):
                    found[called] = max(found.get(called, 0), os.stat(path).st_blocks * 512)
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found
