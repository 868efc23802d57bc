"""What a rank has while it leads the others, and nobody else has."""

from __future__ import annotations

from codedreduce.protocol.coordinating import Coordinating
from codedreduce.protocol.leading import Leading


class Office:
    """The coordinator's part of a rank's machine: there while the rank leads, empty otherwise."""

    def __init__(self) -> None:
        self.lead: Coordinating | None = None
        self.leading: Leading | None = None

    def take(self, lead: Coordinating, leading: Leading) -> None:
        """This rank leads from now on."""
        self.lead, self.leading = lead, leading

    def leave(self) -> None:
        """Another leads, or nobody."""
        self.lead = self.leading = None

    @property
    def is_held(self) -> bool:
        """Whether this rank leads."""
        return self.lead is not None
