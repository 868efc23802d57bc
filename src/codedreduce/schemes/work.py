"""The data types of a plan: ranges, pieces, shares, needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codedreduce.codes import GradientCode


@dataclass(frozen=True, slots=True)
class Range:
    """Samples start..stop-1 of the batch, all with the same weight."""

    start: int
    stop: int
    weight: float = 1.0

    def __len__(self) -> int:
        return self.stop - self.start


#: One pass over the model: the weighted gradient sum over these ranges, in this order.
Piece = tuple[Range, ...]


def samples_in(pieces: Sequence[Piece]) -> int:
    """The number of samples in all pieces."""
    return sum(len(part) for piece in pieces for part in piece)


@dataclass(frozen=True, slots=True)
class NeededTask:
    """A task of which a parent needs one copy, and the children that can deliver it."""

    task: int
    providers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a node must receive for a task before it can send.

    Without a code: one copy of every share, added in this order. With a code: the messages of enough children,
    weighted by the code's decoding vector; share i is then child i's message.
    """

    shares: tuple[NeededTask, ...] = ()
    code: GradientCode | None = None
