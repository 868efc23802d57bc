"""Silent data corruption: one bit of a vector is flipped, and its numbers still look plausible.

Nodes compute wrongly without detecting it, or a vector changes on its way.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec
import numpy as np

from codedreduce.digests import digest
from codedreduce.errors import UsageError
from codedreduce.schemes.plan import Piece
from codedreduce.simulator.gradients import Gradients
from codedreduce.vectors import Vector

#: Bits of a float32 that are flipped: the sign, and those that a sum does not round away.
BITS = (31, 22, 21, 20)

#: Bits that can be flipped in any number without making it infinite: the fraction, and lower bits of the exponent.
HARMLESS = range(26)


def flipped_anywhere(vector: Vector, draw: random.Random) -> Vector:
    """A copy with one random bit flipped, so that two copies are hardly ever equal."""
    copy = vector.copy()
    copy.view(np.uint32)[draw.randrange(len(copy))] ^= np.uint32(1 << draw.choice(HARMLESS))
    return copy


def flipped(vector: Vector, where: int) -> Vector:
    """A copy with one bit flipped: a different bit for every `where`, until all are used.

    >>> flipped(np.array([1, -4], np.float32), 0).tolist(), flipped(np.array([1, -4], np.float32), 3).tolist()
    ([1.0, 4.0], [1.5, -4.0])
    """
    copy = vector.copy()
    bit, place = divmod(where, len(vector))
    largest_first = np.argsort(-np.abs(copy), kind="stable")
    copy.view(np.uint32)[largest_first[place]] ^= np.uint32(1 << BITS[bit % len(BITS)])
    return copy


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """A node that computes the given part of all pieces wrongly, in rounds `first` to `last`.

    `sticky`: the same pieces in the same way whenever they are computed; else other pieces each time.
    `where_audited`: only audited pieces.
    """

    node: int
    part: float = 1.0
    sticky: bool = True
    where_audited: bool = False
    first: int = 1
    last: int = 1 << 53
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise UsageError(f"the wrong part of a node's results must be above 0 and at most 1, got {self.part}")


#: Digests of pieces of a computation, each with the piece's position.
Digests = tuple[tuple[int, bytes], ...]


class Slip(NamedTuple):
    """A piece that was computed wrongly, with its node and round."""

    node: int
    round: int
    piece: Piece


class Wrongs:
    """The results of nodes, right or wrong; `slips` lists the wrong ones."""

    def __init__(self, gradients: Gradients, wrongs: tuple[Wrong, ...] = ()) -> None:
        self._gradients = gradients
        self._wrongs = {wrong.node: wrong for wrong in wrongs}
        self._count = 0
        self.slips: list[Slip] = []

    def of_pieces(
        self, node: int, round_: int, pieces: tuple[Piece, ...], model: Vector, audited: tuple[int, ...] = ()
    ) -> tuple[Vector, Digests]:  # fmt: skip
        """The sum over pieces, as the node computes it, and the digests of the audited ones, by position."""
        total, digests = None, []
        for place, piece in enumerate(pieces):
            vector = self._of_piece(node, round_, piece, model, is_audited=place in audited)
            if place in audited:
                digests.append((place, digest(vector)))
            total = vector if total is None else np.add(total, vector, out=total)
        assert total is not None
        return total, tuple(digests)

    def _of_piece(self, node: int, round_: int, piece: Piece, model: Vector, *, is_audited: bool) -> Vector:
        vector = self._gradients.of_piece(piece, model)
        wrong = self._wrongs.get(node)
        if wrong is None or (wrong.where_audited and not is_audited):
            return vector
        if wrong.first <= round_ <= wrong.last:
            self._count += 1
            draw = random.Random(repr((wrong.seed, node, piece, None if wrong.sticky else self._count)))
            if draw.random() < wrong.part:
                self.slips.append(Slip(node, round_, piece))
                return flipped_anywhere(vector, draw)
        return vector
