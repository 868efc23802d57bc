"""A node's memory on a device: only its process writes it; the other processes of the host read it in place.

An anonymous file in host memory describes it, as for the arenas on the host: a key, a stamp for each slot, and for each
region of device memory the handle to open it. A reference names such a file, and a place in one of the regions. Regions
are made when they are first needed, so a slot in which a rank reduces one stripe takes the memory of one stripe.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from codedreduce.errors import MemoryGone, WireError
from codedreduce.memory.arena import STAMP, Reference, fence, open_file, shown_as
from codedreduce.torch.device import cuda
from codedreduce.torch.device.tensors import as_vector
from codedreduce.vectors import Vector

#: In a reference, the number of bits for the place in a region; the bits above are the region's number.
WITHIN = 44

#: The entry of a region: its handle, its size, and its slot.
REGION = np.dtype([("handle", f"V{cuda.HANDLE}"), ("size", np.int64), ("slot", np.int64)])


class Region(NamedTuple):
    """A region of device memory, as this process sees it."""

    address: int
    size: int
    slot: int
    number: int


class ArenaHeader:
    """The content of a node's file: its key, stamps, and regions."""

    def __init__(self, memory: mmap.mmap, slots: int, regions: int) -> None:
        self._memory = memory
        self.key = np.frombuffer(memory, dtype=STAMP, count=1)
        self.stamps = np.frombuffer(memory, dtype=STAMP, count=slots, offset=STAMP.itemsize)
        self.regions = np.frombuffer(memory, dtype=REGION, count=regions, offset=(1 + slots) * STAMP.itemsize)

    @staticmethod
    def size(slots: int, regions: int) -> int:
        """Return the size of the file."""
        return (1 + slots) * STAMP.itemsize + regions * REGION.itemsize


class OpenedArena(NamedTuple):
    """The opened part of a node's memory, of this node or another, with the descriptor of its file."""

    node: int
    file: int
    header: ArenaHeader
    opened: dict[int, Region]  # by their number


class DeviceArena:
    """One node's own memory on a device, and its view of the others'. Two threads of a process use it."""

    def __init__(
        self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike, device: torch.device
    ) -> None:
        self._run = run
        self.node = node
        self.dtype = np.dtype(dtype)
        self._device = device
        self._length = length
        self._shape = (slots, slots * (1 + chunks))
        self._regions: dict[tuple[int, int, int], Region] = {}  # of this node's own, by slot, begin and end
        self._arenas: dict[tuple[int, int], OpenedArena] = {}  # by node and key
        self._changing = threading.Lock()
        size = ArenaHeader.size(*self._shape)
        file = os.memfd_create(shown_as(run, node), os.MFD_CLOEXEC)
        os.fchmod(file, 0o600)
        os.ftruncate(file, size)
        header = ArenaHeader(mmap.mmap(file, size), *self._shape)
        header.key[0] = int.from_bytes(os.urandom(8), "big") >> 1
        self._own = OpenedArena(node, file, header, {})
        self._arenas[node, int(header.key[0])] = self._own

    # -- this node's own

    def slot(self, round_: int) -> Vector | None:
        """Raise an error: trees have their vectors on the host."""
        raise NotImplementedError("vectors of a tree lie on the host")

    def vector(self, slot: int) -> Vector:
        """Return a slot of this node."""
        return self.part(slot, 0, self._length)

    def part(self, slot: int, start: int, stop: int) -> Vector:
        """Return numbers of a slot of this node, for which memory was allocated."""
        return self._tensor(self._regions[slot, start, stop].address, stop - start)

    def allocate(self, slot: int, start: int, stop: int) -> None:
        """Allocate memory for these numbers of a slot, or raise an OSError."""
        if (slot, start, stop) in self._regions:
            return
        number, header = len(self._regions), self._own.header
        if number == len(header.regions):
            raise OSError(errno.ENOMEM, "the table of regions is full")
        size = (stop - start) * self.dtype.itemsize
        address = cuda.allocate(size, self._device)
        try:
            handle = cuda.handle_of(address)
        except OSError:
            cuda.free(address)
            raise
        region = Region(address, size, slot, number)
        header.regions[number] = (np.void(handle), size, slot)
        fence()
        with self._changing:
            self._regions[slot, start, stop] = self._own.opened[number] = region

    def stamp(self, slot: int, stamp: int) -> None:
        """Set the stamp of a slot of this node, before anything is written to the slot."""
        self._own.header.stamps[slot] = stamp
        fence()

    # -- everyone's

    def is_stamped(self, chunk: Vector, stamp: int) -> bool:
        """Whether the slot of a chunk still has this stamp, after a read; always True for a chunk in other memory."""
        fence()
        found = self._region_of(chunk)
        return found is None or int(found[0].header.stamps[found[1].slot]) == stamp

    def refer(self, chunk: Vector) -> Reference | None:
        """Return the reference of a chunk, if it lies in such memory."""
        found = self._region_of(chunk)
        if found is None:
            return None
        arena, region = found
        within = (region.number << WITHIN) + _address(chunk) - region.address
        return Reference(arena.node, os.getpid(), arena.file, int(arena.header.key[0]), within, chunk.nbytes)

    def view(self, reference: Reference) -> Vector:
        """Return the chunk at a reference."""
        arena = self._arenas.get((reference.node, reference.key)) or self._opened(reference)
        number, within = reference.offset >> WITHIN, reference.offset & ((1 << WITHIN) - 1)
        if not 0 <= number < len(arena.header.regions):
            raise WireError(f"a chunk beyond the memory of node {reference.node}")
        region = arena.opened.get(number) or self._open_region(arena, number)
        if reference.size < 0 or within + reference.size > region.size:
            raise WireError(f"a chunk beyond the memory of node {reference.node}")
        return self._tensor(region.address + within, reference.size // self.dtype.itemsize)

    def _tensor(self, address: int, count: int) -> Vector:
        return as_vector(cuda.tensor_at(address, count, self.dtype.str, self._device))

    def _region_of(self, chunk: Vector) -> tuple[OpenedArena, Region] | None:
        if not isinstance(chunk, torch.Tensor):  # a state, which is bytes
            return None
        address = _address(chunk)
        with self._changing:
            for arena in self._arenas.values():
                for region in arena.opened.values():
                    if region.address <= address < region.address + region.size:
                        return arena, region
        return None

    def _opened(self, reference: Reference) -> OpenedArena:
        size = ArenaHeader.size(*self._shape)
        file, memory = open_file(self._run, reference, size)
        arena = OpenedArena(reference.node, file, ArenaHeader(memory, *self._shape), {})
        with self._changing:
            self._arenas[reference.node, reference.key] = arena
        return arena

    def _open_region(self, arena: OpenedArena, number: int) -> Region:
        handle, size, slot = arena.header.regions[number].tolist()
        try:
            address = cuda.open_handle(bytes(handle), self._device)
        except OSError as error:
            raise MemoryGone(f"cannot open the device memory of node {arena.node}: {error}") from None
        region = Region(address, size, slot, number)
        with self._changing:
            arena.opened[number] = region
        return region

    def close(self) -> None:
        """Free all of it; errors of a failed device, which has freed its memory, are reported elsewhere."""
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(self._device)
        with self._changing:
            for arena in self._arenas.values():
                for region in arena.opened.values():
                    with contextlib.suppress(cuda.CudaError):
                        (cuda.free if arena is self._own else cuda.close_handle)(region.address)
                os.close(arena.file)
            self._arenas.clear()


def _address(chunk: Vector) -> int:
    address: int = chunk.data_ptr()  # type: ignore[attr-defined]
    return address
