"""Where a node's vectors lie, and what they are on the wire.

Between nodes of one host they lie in shared memory: they are written once and read where they lie. Every node has an
arena, with room for a few vectors. A chunk that lies in an arena travels as a reference (whose arena, where, how long);
the receiver maps that arena and gets a view. Chunks that lie elsewhere travel as bytes.

On a tree the first vector of a round goes into one of two slots in turn: when a node has the model of a round, its
parent has let go of everything of the round before. Further vectors of a round, which only redundant work makes, go
into slots that are otherwise never touched and so take no memory. In stripes nobody waits for anybody, and slots are
stamped (`lending`).
"""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from codedreduce.errors import WireError
from codedreduce.protocol.events import Gathered
from codedreduce.protocol.rooms import OWN_ROOMS, Rooms
from codedreduce.schemes import StripedPlan, TreePlan
from codedreduce.vectors import Vector, empty
from codedreduce.worlds.arena import Arena, Reference
from codedreduce.worlds.lending import Lending
from codedreduce.worlds.run import Run

#: References to a vector that only a list has, while it is looked at: the list's, the variable's, the question's own.
NOBODY_ELSE = 3

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
            parts = Lending.parts_for(len(run.plan.own(node)))
            self._arena = Arena(run.meeting.run, node, slots=parts + held, length=self._length, dtype=run.dtype)
            self._lending = Lending(self._arena, settings, held, parts)
        elif run.shares_memory:
            stragglers = run.plan.scheme.stragglers if isinstance(run.plan, TreePlan) else 0
            # a group's other shares, the parent's unit, and what may be repeated
            slots = 3 if node == 0 else 5 + stragglers
            self._arena = Arena(run.meeting.run, node, slots=slots, length=self._length, dtype=run.dtype)

    def room(self, round_: int) -> Vector:
        """Room for the next vector of a round."""
        found = None
        if self._lending is not None:
            found = self._lending.part_room(round_)
        elif self._arena is not None:
            found = self._arena.slot(round_)
        return found if found is not None else empty(self._length, self._dtype)

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

    def reference(self, frame: memoryview) -> Reference:
        """What such bytes refer to, before it is looked up."""
        if self._arena is None:
            raise WireError("a reference into shared memory, which this node does not share")
        try:
            return _reference_decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise WireError(f"a reference that cannot be read: {error}") from None

    def look_up(self, reference: Reference) -> Vector:
        """The chunk that lies there; its size has been checked."""
        assert self._arena is not None
        return self._arena.view(reference)

    def from_bytes(self, frame: memoryview, *, plain: bool = False) -> Vector:
        """A chunk that has travelled, as numbers or as plain bytes; its size has been checked."""
        if plain:
            return np.frombuffer(frame, dtype=np.uint8)
        if frame.nbytes % (self._wire or self._dtype).itemsize:
            raise WireError(f"a chunk of {frame.nbytes} bytes is not whole numbers")
        data = np.frombuffer(frame, dtype=self._wire or self._dtype)
        return data if self._wire is None else data.astype(self._dtype)

    def close(self) -> None:
        """Let go of shared memory."""
        if self._arena is not None:
            self._arena.close()
