"""Blocks: the smallest pieces of work, and the results for the blocks of a unit."""

from __future__ import annotations

from typing import Generic, TypeVar

from codedreduce.schemes import Part

#: A unit, and the number of a block in it.
Block = tuple[int, int]

#: The minimum duration of a block in seconds, whatever a clock shows.
SHORTEST = 1e-9

What = TypeVar("What")


class UnitParts(Generic[What]):
    """The results for a unit: the longest sum of its first blocks, and the single blocks that follow it.

    The unit is complete when none of these is missing. A longer sum of first blocks makes the results that it contains
    unnecessary.

    >>> unit = UnitParts(blocks=4)
    >>> unit.add(Part(0, 3, 4), "d"); unit.add(Part(0, 0, 2), "a+b"); unit.chain() is None
    True
    >>> unit.add(Part(0, 2, 3), "c"); unit.chain()
    ['a+b', 'c', 'd']
    """

    __slots__ = ("_blocks", "_first", "_reached", "_singles")

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._reached = 0
        self._first: list[What] = []  # the sum of the blocks before `_reached`, if it has arrived
        self._singles: dict[int, What] = {}  # by block

    def add(self, part: Part, what: What) -> None:
        """Add the result for a part; the first copy counts."""
        if part.first:
            if part.first >= self._reached:
                self._singles.setdefault(part.first, what)
        elif part.last > self._reached:
            self._reached, self._first = part.last, [what]
            for block in [block for block in self._singles if block < part.last]:
                del self._singles[block]

    def remove(self, what: What) -> None:
        """Remove a wrong result, as if it had not arrived."""
        if any(one is what for one in self._first):
            self._reached, self._first = 0, []
        for block in [block for block, one in self._singles.items() if one is what]:
            del self._singles[block]

    def has(self, part: Part) -> bool:
        """True if the whole part has arrived."""
        return part.last <= self._reached or (part.first > 0 and part.first in self._singles)

    def chain(self) -> list[What] | None:
        """The results that make up the unit, in the order in which they are added; None if some are missing."""
        if not self._first or len(self._singles) < self._blocks - self._reached:
            return None
        return [*self._first, *(self._singles[block] for block in range(self._reached, self._blocks))]

    def missing(self) -> list[int]:
        """The blocks without a result."""
        return [block for block in range(self._reached, self._blocks) if block not in self._singles]

    def __len__(self) -> int:
        return len(self._first) + len(self._singles)

    @property
    def singles(self) -> int:
        """The number of blocks that have arrived singly."""
        return len(self._singles)
