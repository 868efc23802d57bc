"""Where a rank's vectors lie when others read them there, though nobody waits until they have.

A rank has slots in its arena: some for parts that it computes, and one for each round whose sums it holds, of which it
writes only the chunks that it keeps. Every slot has one writer, its rank, and a stamp: the round of what lies in it,
changed before anything is written. Whoever was told of a chunk of a round reads it, and then looks whether the stamp is
still of that round; if not, what was read is worth nothing. That is all that readers and writers know of each other: a
process that is stopped anywhere, for however long, can spoil nothing but its own memory.

A part's slot is used again two rounds later. Who begins a round has the sum of the one before, and rank 0 that of
all earlier ones: only ranks that are behind, or keepers that were replaced, can still want it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from codedreduce.memory.shapes import AsTheyAre, SlotShape
from codedreduce.packed import raw_of
from codedreduce.protocol import Settings
from codedreduce.vectors import Vector

if TYPE_CHECKING:
    from codedreduce.memory.memory import SharedMemory

#: Vectors that a rank lends in a round beside those of its own units; more of them, which only much work for others
#: makes, travel as bytes.
FOR_OTHERS = 2

#: Rounds until a part's slot is used again.
APART = 2


class Lending:
    """A rank's slots, and what it knows of those of others."""

    lends: ClassVar[bool] = True

    def __init__(
        self, arena: SharedMemory, settings: Settings, rounds_held: int, parts: int, shape: SlotShape | None = None
    ) -> None:
        self._arena = arena
        self._shape = shape if shape is not None else AsTheyAre(settings)
        self._rounds_held = rounds_held
        self._parts = parts
        self._stamps = [-APART] * (parts + rounds_held)
        self._allocated: set[tuple[int, int]] = set()  # chunks of slots

    @staticmethod
    def parts_for(own_units: int) -> int:
        """How many slots there are for parts; the others are for sums of the rounds that are held."""
        return APART * (own_units + FOR_OTHERS)

    def part_room(self, round_: int) -> Vector | None:
        """Room for the next vector that is computed in a round, if there is some left."""
        for slot in range(self._parts):
            if self._stamps[slot] <= round_ - APART:
                is_there = self._take(slot, round_, 0, self._shape.length, 0)
                return self._shape.whole(self._arena.vector(slot)) if is_there else None
        return None

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Room for a chunk of a round's sum, if there is some to be had."""
        slot = self._parts + round_ % self._rounds_held
        where = self._shape.slice(index)
        is_there = self._take(slot, round_, where.start, where.stop, index)
        return self._shape.chunk(self._arena.part(slot, where.start, where.stop), index) if is_there else None

    def _take(self, slot: int, round_: int, start: int, stop: int, index: int) -> bool:
        if (slot, index) not in self._allocated:
            try:
                self._arena.allocate(slot, start, stop)
            except OSError:  # it then lies elsewhere, and travels
                return False
            self._allocated.add((slot, index))
        if self._stamps[slot] != round_:
            self._stamps[slot] = round_
            self._arena.stamp(slot, round_)
        return True

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """Whether all of these, which came as chunks of a round, have not been written into since."""
        return all(self._arena.is_stamped(raw_of(chunk), round_) for chunk in chunks)
