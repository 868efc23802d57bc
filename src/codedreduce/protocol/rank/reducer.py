"""The reducer: it sums all parts for a stripe, in the plan's order, and holds the sums of the last rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from codedreduce.digests import digest
from codedreduce.protocol.core.blocks import UnitParts
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.sums import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.schemes import Part
from codedreduce.vectors import Vector, combine, copied, empty_like, on_host, round_off


class ChunkDigest(NamedTuple):
    """The expected digest of a chunk, the sender that states it, and the part and index of the chunk."""

    digest: bytes
    sender: int
    part: Part
    chunk: int


class Chunk(NamedTuple):
    """A chunk of a part, in the memory where it lies; with a seal if it is checked when it is added."""

    data: Vector
    seal: ChunkDigest | None = None

    @property
    def is_damaged(self) -> bool:
        """True if the chunk does not match its digest."""
        return self.seal is not None and digest(on_host(self.data)) != self.seal.digest


#: For borrowed chunks: the memory for the sum of a chunk, and a check that no chunk was written into meanwhile.
Lent = tuple[Callable[[int], Vector | None], Callable[[Iterable[Vector]], bool]]


class StripeSum:
    """The sum of one stripe in one round: chunk by chunk, unit after unit. A chunk that arrives before its turn waits.

    Borrowed chunks take no memory here. They wait until all have arrived, and are then added up at once into the memory
    for their sum (`lent`). The sum is valid if none of them was written into meanwhile.
    """

    def __init__(
        self, chunks: range, units: int, blocks: int, lent: Lent | None = None, summed: Collection[int] = ()
    ) -> None:
        self.chunks = chunks
        self._lent = lent
        self._units = units
        self._blocks = blocks
        self._turn = {index: units if index in summed else 0 for index in chunks}  # the unit a chunk's sum waits for
        self._total: dict[int, Vector] = {}
        self._early: dict[int, dict[int, UnitParts[Chunk]]] = {index: {} for index in chunks}
        self.damaged: list[ChunkDigest] = []  # damaged borrowed chunks

    def add(self, part: Part, index: int, data: Vector, seal: ChunkDigest | None = None) -> Vector | None:
        """Add a chunk of a part; return the chunk's sum if it is complete now."""
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
        """Add a unit: first its parts to one another, then their sum to the units before it."""
        unit = _sum(chain)
        total = self._total.get(index)
        if total is not None:
            combine([total, unit], None, total)
        elif len(chain) > 1:
            self._total[index] = unit
        else:
            self._total[index] = copied(unit)  # it lies in the sender's memory, or in a vector that is sent again

    def _add_up(self, index: int, lent: Lent) -> Vector | None:
        """The sum of all units; None if some have not arrived."""
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
        """Remove damaged chunks and wait for them again; return True if there are some."""
        for chunk in damaged:
            assert chunk.seal is not None
            self._early[index][chunk.seal.part.unit].remove(chunk)
            self.damaged.append(chunk.seal)
        return bool(damaged)

    def lacks(self) -> list[int]:
        """The units that have not arrived completely, for some chunk."""
        return sorted(
            {
                unit
                for index, turn in self._turn.items()
                for unit in range(turn, self._units)
                if unit not in self._early[index] or self._early[index][unit].chain() is None
            }
        )

    def held(self) -> int:
        """The number of chunks that wait for their turn or are being summed."""
        return len(self._total) + sum(len(unit) for waiting in self._early.values() for unit in waiting.values())

    def check_invariants(self) -> None:
        """Raise if too much is held: per unit one chunk, and one for every block that arrived singly; plus one sum."""
        for index, waiting in self._early.items():
            if not waiting:
                continue
            singles = sum(unit.singles for unit in waiting.values())
            held = (index in self._total) + sum(map(len, waiting.values()))
            if held - singles > self._units or singles > self._units * (self._blocks - 1):
                raise AssertionError(f"{held} of chunk {index} are held, {singles} of them single blocks")


def _sum(chain: list[Vector]) -> Vector:
    """The sum of the parts of a unit, in their order."""
    return chain[0] if len(chain) == 1 else combine(chain, None, empty_like(chain[0]))


class Reducer:
    """A rank's stripes in the current round, and the sums of the last rounds."""

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
        self._settings = settings  # with the type on the wire: a sum that stays here is rounded in the same way
        self.round = 0
        self._stripes: list[StripeSum] = []
        self._damaged: list[ChunkDigest] = []
        self._sums: OrderedDict[int, dict[int, Vector]] = OrderedDict()

    def begin(self, round_: int, stripe: range) -> None:
        """A round begins, in which this rank reduces a stripe; or it begins again under another leader.

        Finished sums are not added up again: other ranks may be reading them.
        """
        self.round = round_
        self._stripes = []
        self._sums.setdefault(round_, {})
        latest = max(self._sums)
        for past in [one for one in self._sums if one <= latest - self.rounds_held and one != round_]:
            del self._sums[past]  # this rank may have missed rounds; the memory of their sums is to be reused
        self.take_over(stripe)

    def take_over(self, stripe: range) -> None:
        """Reduce this stripe as well, unless this rank does so already."""
        if stripe and all(one.chunks != stripe for one in self._stripes):
            round_, rooms = self.round, self._rooms
            lent = (
                (lambda index: rooms.sum_room(round_, index), lambda chunks: rooms.are_intact(round_, chunks))
                if rooms.lends
                else None
            )
            self._stripes.append(StripeSum(stripe, *self._shape, lent, self._sums[round_]))

    def add(self, part: Part, index: int, data: Vector, seal: ChunkDigest | None = None) -> Vector | None:
        """Add a chunk of a part of this round; return the chunk's sum if it is complete now.

        A chunk with a seal is compared with it: now, or if it is borrowed, after it was added.
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
        """The damaged chunks found since the last call."""
        damaged, self._damaged = self._damaged, []
        for stripe in self._stripes:
            damaged += stripe.damaged
            stripe.damaged = []
        return damaged

    def keeps(self, index: int) -> bool:
        """True if this rank reduces the chunk."""
        return any(index in stripe.chunks for stripe in self._stripes)

    def sums(self, round_: int, chunks: Iterable[int]) -> Iterator[tuple[int, Vector]]:
        """The requested chunks of a round's sum that are here."""
        kept = self._sums.get(round_, {})
        return ((index, kept[index]) for index in chunks if index in kept)

    def lacks(self) -> list[int]:
        """The units that this rank's stripes wait for."""
        return sorted({unit for stripe in self._stripes for unit in stripe.lacks()})

    def held(self) -> int:
        """The number of chunks that wait or are being summed."""
        return sum(stripe.held() for stripe in self._stripes)

    def check_invariants(self) -> None:
        """Raise if more is held than is needed."""
        for stripe in self._stripes:
            stripe.check_invariants()
        if len(self._sums) > self.rounds_held + 1:
            raise AssertionError(f"the sums of {len(self._sums)} rounds are held")
