"""A ring of workers: each sends to the next and receives from the previous."""

from __future__ import annotations

from dataclasses import dataclass

from codedreduce.errors import TreeError


@dataclass(frozen=True, slots=True)
class Ring:
    """Workers 1..N in a circle.

    >>> ring = Ring(4)
    >>> ring.next(4), ring.previous(1)
    (1, 4)
    """

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise TreeError(f"a ring needs at least one worker, got {self.workers}")

    def next(self, node: int) -> int:
        """The node that receives from `node`."""
        return node % self.workers + 1

    def previous(self, node: int) -> int:
        """The node that sends to `node`."""
        return (node - 2) % self.workers + 1
