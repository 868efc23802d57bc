"""What training needs of a world: give it a model, get the gradient sum of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from codedreduce.schemes import Piece
from codedreduce.vectors import Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """What a round gave: the gradient sum, how long it took, what is missing from it, and who was late."""

    round: int
    vector: Vector
    seconds: float
    residual: float = 0.0
    late: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewal:
    """Instead of a sum: this process fell behind, and has the state that others had after a round."""

    round: int


@dataclass(frozen=True, slots=True)
class Over:
    """Instead of a sum: the run is over, after that round."""

    round: int


Outcome = RoundResult | Renewal | Over


class World(Protocol):
    """Runs rounds. On a tree the root's process has one; on a ring and in stripes every process, with the same sum."""

    def aggregate(self, model: Vector) -> Outcome:
        """One round: the gradient sum of the whole batch under this model."""


def leads(world: World) -> bool:
    """Whether a run is led from this process: the root's, a coordinator's, or the only one. It may move."""
    return bool(getattr(world, "leads", True))


class Replica(Protocol):
    """What every rank of a striped run has and steps by itself: the model, and whatever goes with it."""

    def pack(self) -> Vector:
        """All of it, as it is between two rounds, as numbers that nobody looks at."""

    def unpack(self, state: Vector) -> None:
        """Be as another was."""


class Gradient(Protocol):
    """Writes the gradient sum of a piece, under a model, into `out`; called in the process of worker `node`.

    One that has a method `add`, called alike, adds to `out` instead. One that has an attribute `should_stop` is given a
    function there, to ask now and then whether to go on. One that has a method `prepare(node)` is called before the
    node says that it is ready.
    """

    def __call__(self, piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> bool | None:
        """Overwrite `out`. False: it was told to stop, and has not finished."""
