"""Slots for a rank's vectors that other ranks read in place, although the rank never waits until they have read them.

A rank has slots in its arena: some for partial sums that it computes, and one for each round of which it holds sums.
In the latter it writes only the chunks that it reduces. Every slot has one writer, its rank, and a stamp: the round of
its contents. The rank changes the stamp before it writes anything. A reader that has a reference to a chunk of a round
reads the chunk, then checks that the stamp still names that round. If not, the reader discards what it read.
Readers and writers share no other state: a process that stops anywhere, for any time, corrupts only its own memory.

A rank reuses the slot of a partial sum two rounds later. A rank that begins a round has the sum of the round before;
rank 0 has those of all earlier rounds. Only ranks that catch up, or replaced reducers, can still need the slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from codedreduce.memory.memory import SlotShape
from codedreduce.packed import raw_of
from codedreduce.vectors import Vector

if TYPE_CHECKING:
    from codedreduce.memory.memory import SharedMemory

#: Vectors that a rank lends in a round besides those of its own units. Further ones travel as bytes; only a large
#: amount of work for other ranks needs them.
FOR_OTHERS = 2

#: Rounds until a rank reuses the slot of a partial sum.
APART = 2


class Lending:
    """A rank's slots, and what it knows of the slots of other ranks."""

    lends: ClassVar[bool] = True

    def __init__(self, arena: SharedMemory, rounds_held: int, parts: int, shape: SlotShape) -> None:
        self._arena = arena
        self._shape = shape
        self._rounds_held = rounds_held
        self._parts = parts
        self._stamps = [-APART] * (parts + rounds_held)
        self._allocated: set[tuple[int, int]] = set()  # (slot, chunk)

    @staticmethod
    def parts_for(own_units: int) -> int:
        """The number of slots for partial sums; the other slots are for the sums of the rounds that are held."""
        return APART * (own_units + FOR_OTHERS)

    def part_room(self, round_: int) -> Vector | None:
        """Memory for the next vector that is computed in a round; None if there is none left."""
        for slot in range(self._parts):
            if self._stamps[slot] <= round_ - APART:
                is_there = self._take(slot, round_, 0, self._shape.length, 0)
                return self._shape.whole(self._arena.vector(slot)) if is_there else None
        return None

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Memory for a chunk of a round's sum; None if it cannot be allocated."""
        slot = self._parts + round_ % self._rounds_held
        where = self._shape.slice(index)
        is_there = self._take(slot, round_, where.start, where.stop, index)
        return self._shape.chunk(self._arena.part(slot, where.start, where.stop), index) if is_there else None

    def _take(self, slot: int, round_: int, start: int, stop: int, index: int) -> bool:
        if (slot, index) not in self._allocated:
            try:
                self._arena.allocate(slot, start, stop)
            except OSError:  # the chunk then lies elsewhere and travels as bytes
                return False
            self._allocated.add((slot, index))
        if self._stamps[slot] != round_:
            self._stamps[slot] = round_
            self._arena.stamp(slot, round_)
        return True

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """Whether none of these chunks, received as chunks of a round, has been overwritten since."""
        return all(self._arena.is_stamped(raw_of(chunk), round_) for chunk in chunks)
