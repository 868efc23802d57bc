"""The memory in which other ranks read sums, and a check that borrowed chunks are unchanged.

Between processes of one host a chunk need not travel. Its owner lends the memory that contains it. Some rounds later
the owner writes into that memory again, even if a borrower has not finished with it. So a result made from borrowed
memory is used only after a check that the memory was not written into meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from codedreduce.vectors import Vector


class SumBuffers(Protocol):
    """The interface to the memory of vectors."""

    @property
    def lends(self) -> bool:
        """True if received chunks lie in their senders' memory."""

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Memory for a chunk of a round's sum that other ranks can read; None if there is none.

        This rank owns it until it requests memory for a round that is later by the number of rounds for which sums are
        held.
        """

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """True if none of these chunks of a round has been written into since it arrived."""


class OwnSumBuffers:
    """All received chunks are this rank's own: between hosts, and in the simulator."""

    lends: ClassVar[bool] = False

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Return None: sums stay where they are added up."""
        return None

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """Return True: no other process can write into them."""
        return True


OWN_SUM_BUFFERS = OwnSumBuffers()
