"""Where sums lie that others read, and whether what others lent is still what it was.

Between processes of one machine a chunk need not travel: who has it lends the memory it lies in, and writes into that
again some rounds later, whether everyone is through with it or not. So nothing that was made of borrowed memory is
believed before it is known that the memory was not written into meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from codedreduce.vectors import Vector


class SumBuffers(Protocol):
    """What a rank needs to know of the memory that vectors lie in."""

    @property
    def lends(self) -> bool:
        """Whether chunks that come lie in their senders' memory."""

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Room for a chunk of a round's sum, from where others can read it; None if there is none to be had.

        It is this rank's until it asks for room for a round that is as much later as sums are held.
        """

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """Whether all of these, which came as chunks of a round, have not been written into since."""


class OwnSumBuffers:
    """Everything that comes is this rank's own: between machines, and where a world is simulated."""

    lends: ClassVar[bool] = False

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Sums are made where they are added up."""
        return None

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """Nobody else can write into them."""
        return True


OWN_SUM_BUFFERS = OwnSumBuffers()
