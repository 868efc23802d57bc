"""What a keeper does: sums a stripe of everyone's parts, in the plan's order, and holds the sums of the last rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from codedreduce.digests import digest
from codedreduce.protocol.core.blocks import UnitParts
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.sum_buffers import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.schemes import Part
from codedreduce.vectors import Vector, combine, copied, empty_like, on_host, round_off


class ChunkDigest(NamedTuple):
    """What a chunk should be, who says so, and what it is a chunk of."""

    digest: bytes
    sender: int
    part: Part
    chunk: int


class Chunk(NamedTuple):
    """A chunk of a part, where it lies; sealed, if it is to be looked at when it is added."""

    data: Vector
    seal: ChunkDigest | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether it is not what it should be."""
        return self.seal is not None and digest(on_host(self.data)) != self.seal.digest


#: Where borrowed chunks are added up, by index, and whether none of them was written into meanwhile.
Lent = tuple[Callable[[int], Vector | None], Callable[[Iterable[Vector]], bool]]


class StripeSum:
    """The sum of one stripe in one round: chunk by chunk, unit after unit; what comes before its turn waits.

    Chunks that are lent take no memory here, so they wait until all are there, and are added up in one go into the room
    that there is for their sum (`lent`). It counts if none of them was written into meanwhile.
    """

    def __init__(
        self, chunks: range, units: int, blocks: int, lent: Lent | None = None, summed: Collection[int] = ()
    ) -> None:
        self.chunks = chunks
        self._lent = lent
        self._units = units
        self._blocks = blocks
        self._turn = {index: units if index in summed else 0 for index in chunks}  # the unit each chunk's sum waits for
        self._total: dict[int, Vector] = {}
        self._early: dict[int, dict[int, UnitParts[Chunk]]] = {index: {} for index in chunks}
        self.damaged: list[ChunkDigest] = []  # what was lent and is not what it should be

    def add(self, part: Part, index: int, data: Vector, seal: ChunkDigest | None = None) -> Vector | None:
        """A chunk of a part is here; the chunk's sum, if it is complete now."""
        turn = self._turn.get(index)
        if turn is None or turn == self._units or part.unit < turn:
            return None
        waiting = self._early[index]
        if part.unit not in waiting:
            waiting[part.unit] = UnitParts(self._blocks)
        waiting[part.unit].add(part, Chunk(data, seal))
        if self._lent is not None:
            return self._add_up(index, self._lent)
        while turn < self._units and turn in waiting and (chain := waiting[turn].chain()) is not None:
            self._fold(index, [one.data for one in chain])
            del waiting[turn]
            turn += 1
        self._turn[index] = turn
        return self._total.pop(index) if turn == self._units else None

    def _fold(self, index: int, chain: list[Vector]) -> None:
        """Add a unit: its parts to one another, and their sum to the units before it."""
        unit = _sum(chain)
        total = self._total.get(index)
        if total is not None:
            combine([total, unit], None, total)
        elif len(chain) > 1:
            self._total[index] = unit
        else:
            self._total[index] = copied(unit)  # it lies in the sender's memory, or in a vector that is sent again

    def _add_up(self, index: int, lent: Lent) -> Vector | None:
        """The sum of all units, if they are there."""
        waiting = self._early[index]
        if len(waiting) < self._units:
            return None
        units: list[Vector] = []
        borrowed: list[Chunk] = []
        for unit in range(self._units):
            chain = waiting[unit].chain()
            if chain is None:
                return None
            borrowed += chain
            units.append(_sum([one.data for one in chain]))
        room, are_intact = lent
        total = room(index)
        if total is None:
            total = empty_like(units[0])
        combine(units, None, total)
        is_intact = are_intact([one.data for one in borrowed])
        if is_intact and self._takes_out(index, [one for one in borrowed if one.is_damaged]):
            return None
        self._turn[index] = self._units
        waiting.clear()
        return total if is_intact else None

    def _takes_out(self, index: int, damaged: list[Chunk]) -> bool:
        """Wait for these to come again, if there are some."""
        for chunk in damaged:
            assert chunk.seal is not None
            self._early[index][chunk.seal.part.unit].remove(chunk)
            self.damaged.append(chunk.seal)
        return bool(damaged)

    def lacks(self) -> list[int]:
        """The units that have not come, of some chunk."""
        return sorted(
            {
                unit
                for index, turn in self._turn.items()
                for unit in range(turn, self._units)
                if unit not in self._early[index] or self._early[index][unit].chain() is None
            }
        )

    def held(self) -> int:
        """How many chunks wait for their turn, or are being summed."""
        return len(self._total) + sum(len(unit) for waiting in self._early.values() for unit in waiting.values())

    def check_invariants(self) -> None:
        """Of a unit one chunk is here at most, and one for every block that came by itself; of those added, one."""
        for index, waiting in self._early.items():
            singles = sum(unit.singles for unit in waiting.values())
            held = (index in self._total) + sum(map(len, waiting.values()))
            if held - singles > self._units or singles > self._units * (self._blocks - 1):
                raise AssertionError(f"{held} of chunk {index} are held, {singles} of them single blocks")


def _sum(chain: list[Vector]) -> Vector:
    """Of the parts of a unit, in their order."""
    return chain[0] if len(chain) == 1 else combine(chain, None, empty_like(chain[0]))


class Reducer:
    """A rank's stripes of the current round, and the sums of the last ones."""

    def __init__(
        self,
        units: int,
        blocks: int,
        rounds_held: int,
        settings: Settings | None = None,
        rooms: SumBuffers = OWN_SUM_BUFFERS,
    ) -> None:
        self._shape = (units, blocks)
        self._rooms = rooms
        self.rounds_held = rounds_held
        self._settings = settings  # what numbers travel as: also a sum that stays here is as it is elsewhere
        self.round = 0
        self._stripes: list[StripeSum] = []
        self._damaged: list[ChunkDigest] = []
        self._sums: OrderedDict[int, dict[int, Vector]] = OrderedDict()

    def begin(self, round_: int, stripe: range) -> None:
        """A round begins, in which this rank keeps a stripe; or begins again, under another coordinator.

        What is summed already is not summed again: others may be reading it.
        """
        self.round = round_
        self._stripes = []
        self._sums.setdefault(round_, {})
        latest = max(self._sums)
        for past in [one for one in self._sums if one <= latest - self.rounds_held and one != round_]:
            del self._sums[past]  # rounds may have been missed, and their room is as good as taken
        self.take_over(stripe)

    def take_over(self, stripe: range) -> None:
        """Keep this stripe, too; unless it is kept already."""
        if stripe and all(one.chunks != stripe for one in self._stripes):
            round_, rooms = self.round, self._rooms
            lent = (
                (lambda index: rooms.sum_room(round_, index), lambda chunks: rooms.are_intact(round_, chunks))
                if rooms.lends
                else None
            )
            self._stripes.append(StripeSum(stripe, *self._shape, lent, self._sums[round_]))

    def add(self, part: Part, index: int, data: Vector, seal: ChunkDigest | None = None) -> Vector | None:
        """A chunk of a part of this round is here; the chunk's sum, if it is complete now.

        A chunk with a seal is compared with it: here, or if it is lent, when it was added.
        """
        if seal is not None and not self._rooms.lends and Chunk(data, seal).is_damaged:
            self._damaged.append(seal)
            return None
        for stripe in self._stripes:
            if index in stripe.chunks:
                total = stripe.add(part, index, data, seal)
                if total is not None:
                    total = self._sums[self.round][index] = self._as_sent(total, index)
                return total
        return None

    def _as_sent(self, total: Vector, index: int) -> Vector:
        settings = self._settings
        return total if settings is None else round_off(total, settings.wire, settings.exact_in(index))

    def take_damaged(self) -> list[ChunkDigest]:
        """Chunks that were not what they should be, since this was last asked."""
        damaged, self._damaged = self._damaged, []
        for stripe in self._stripes:
            damaged += stripe.damaged
            stripe.damaged = []
        return damaged

    def keeps(self, index: int) -> bool:
        """Whether a chunk is this rank's to sum."""
        return any(index in stripe.chunks for stripe in self._stripes)

    def sums(self, round_: int, chunks: Iterable[int]) -> Iterator[tuple[int, Vector]]:
        """Those of these chunks of a round's sum that are here."""
        kept = self._sums.get(round_, {})
        return ((index, kept[index]) for index in chunks if index in kept)

    def lacks(self) -> list[int]:
        """The units that stripes of this rank wait for."""
        return sorted({unit for stripe in self._stripes for unit in stripe.lacks()})

    def held(self) -> int:
        """How many chunks are in the making."""
        return sum(stripe.held() for stripe in self._stripes)

    def check_invariants(self) -> None:
        """Raise if more is held than is needed."""
        for stripe in self._stripes:
            stripe.check_invariants()
        if len(self._sums) > self.rounds_held + 1:
            raise AssertionError(f"the sums of {len(self._sums)} rounds are held")
