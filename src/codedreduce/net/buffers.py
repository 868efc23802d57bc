"""Where a node's vectors lie, and what they are on the wire.

Between nodes of one host, vectors lie in shared memory: one node writes them, others read them in place. Every node has
an arena for a few vectors. A chunk in an arena travels as a reference (which arena, where, how long); the receiver maps
that arena and gets a view. Other chunks travel as bytes.

On a tree, the first vector of a round goes into one of two slots in turn: when a node has the model of a round, its
parent has released everything of the round before. Only redundant work makes further vectors of a round. They go into
slots that are otherwise never touched and so take no memory. In stripes no rank waits for readers, and slots are
stamped (`lending`).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from codedreduce.errors import WireError
from codedreduce.memory.arena import Reference
from codedreduce.memory.lending import Lending
from codedreduce.memory.memory import Memory, SharedMemory, SlotShape
from codedreduce.packed import Packed, raw_of
from codedreduce.protocol.core.events import Gathered
from codedreduce.protocol.rank.sums import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.run.agreement import Run
from codedreduce.schemes import StripedPlan, TreePlan
from codedreduce.vectors import Vector, convert, copied, on_host, round_off

_reference_decoder = msgspec.msgpack.Decoder(Reference)


class Buffers:
    """One node's vectors: in shared memory if its neighbours can read them there, else in its own memory.

    `memory`: the host's, or that of a device.
    """

    def __init__(self, run: Run, node: int, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()
        self._settings = run.settings
        self._length = run.settings.length
        self._dtype = run.settings.dtype
        self._wire = run.settings.wire
        self._shape = SlotShape(run.settings)
        self._arena: SharedMemory | None = None
        self._lending: Lending | None = None
        self._spare: Vector | None = None
        self._computed: Vector | None = None  # holds a complete vector before it is packed
        if run.shares_memory and isinstance(run.plan, StripedPlan):
            settings = run.settings
            held = settings.rounds_held(settings.reducers(run.plan))
            parts = Lending.parts_for(len(run.plan.own(node)))
            self._arena = self._shared(run, node, parts + held)
            self._lending = Lending(self._arena, held, parts, self._shape)
        elif run.shares_memory:
            stragglers = run.plan.scheme.stragglers if isinstance(run.plan, TreePlan) else 0
            # a group's other partial sums, the parent's unit, and repeated work
            slots = 3 if node == 0 else 5 + stragglers
            self._arena = self._shared(run, node, slots)

    def _shared(self, run: Run, node: int, slots: int) -> SharedMemory:
        return self._memory.shared(
            run.meeting.run, node, slots=slots, chunks=run.settings.chunks, length=self._shape.length,
            dtype=self._shape.dtype,
        )  # fmt: skip

    @property
    def _packs(self) -> bool:
        """Whether vectors are computed elsewhere and then packed into shared memory."""
        return self._lending is not None and self._wire is not None

    def room(self, round_: int) -> Vector:
        """Memory for the next vector of a round; if it is to be packed, the same memory each time."""
        if self._packs:
            if self._computed is None:
                self._computed = self._memory.working(self._length, self._dtype)
            return self._computed
        found = None
        if self._lending is not None:
            found = self._lending.part_room(round_)
        elif self._arena is not None:
            found = self._arena.slot(round_)
        return found if found is not None else self._memory.empty(self._length, self._dtype)

    @property
    def rooms(self) -> SumBuffers:
        """Where a rank's sums lie."""
        return self._lending if self._lending is not None else OWN_SUM_BUFFERS

    def take(self, gathered: Gathered) -> Vector | None:
        """A gathered sum, in this node's own memory; None if a chunk was overwritten before it was copied."""
        vector = self._memory.gathered(gathered.chunks, self._length, self._dtype)
        return vector if self.rooms.are_intact(gathered.round, gathered.chunks) else None

    def spare(self) -> Vector:
        """Memory for a temporary vector; the same each time."""
        if self._spare is None:
            make = self._memory.working if self._packs else self._memory.empty
            self._spare = make(self._length, self._dtype)
        return self._spare

    def as_sent(self, vector: Vector, round_: int) -> Vector:
        """A complete vector as it would arrive after travelling: a parent's own unit may come from its child."""
        if self._wire is None:
            return vector
        if not self._packs:
            return round_off(vector, self._wire, self._settings.exact)
        assert self._lending is not None
        found = self._lending.part_room(round_)
        if found is None:  # no memory left: it travels as bytes
            return round_off(copied(vector), self._wire, self._settings.exact)
        convert(vector, found)
        return found

    def refer(self, chunk: Vector) -> bytes | None:
        """The encoded reference to a chunk in shared memory; None if the chunk lies elsewhere."""
        reference = self._arena.refer(raw_of(chunk)) if self._arena is not None else None
        return msgspec.msgpack.encode(reference) if reference is not None else None

    def to_bytes(self, chunk: Vector, exact: int = 0) -> memoryview:
        """A chunk's bytes on the wire: the last `exact` numbers stay unpacked, and bytes stay as they are."""
        if self._wire is not None and chunk.dtype != np.uint8:
            if not isinstance(chunk, Packed):
                chunk = Packed.of(chunk, self._wire, exact)  # type: ignore[assignment]
            chunk = raw_of(chunk)
        return np.ascontiguousarray(on_host(chunk)).view(np.uint8).data

    def reference(self, frame: memoryview) -> Reference:
        """Decode a reference, without looking it up."""
        if self._arena is None:
            raise WireError("a reference into shared memory, which this rank does not share")
        try:
            return _reference_decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise WireError(f"a reference that cannot be read: {error}") from None

    def look_up(self, reference: Reference, index: int = 0) -> Vector:
        """The chunk that a reference names; its size has been checked."""
        assert self._arena is not None
        return self._shape.chunk(self._arena.view(reference), index)

    def from_bytes(self, frame: memoryview, exact: int = 0, *, plain: bool = False) -> Vector:
        """A chunk from its bytes on the wire, as numbers or as plain bytes; its size has been checked."""
        if plain:
            return np.frombuffer(frame, dtype=np.uint8)
        narrow = self._wire or self._dtype
        if (frame.nbytes - exact * self._dtype.itemsize) % narrow.itemsize:
            raise WireError(f"a chunk of {frame.nbytes} bytes, which is not a whole number of elements")
        if self._wire is None:
            return self._memory.from_host(np.frombuffer(frame, dtype=self._dtype))
        packed: Any = Packed(np.frombuffer(frame, dtype=np.uint8), exact, narrow, self._dtype)
        return self._memory.from_host(on_host(packed))

    def close(self) -> None:
        """Close the shared memory."""
        if self._arena is not None:
            self._arena.close()
