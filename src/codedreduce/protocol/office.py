"""What a rank has while it leads the others, and nobody else has; and how it speaks to the one that leads if not."""

from __future__ import annotations

from codedreduce.protocol.coordinating import Coordinating
from codedreduce.protocol.events import AnyAction, Transmit
from codedreduce.protocol.leading import Leading
from codedreduce.protocol.messages import AnyMessage
from codedreduce.protocol.place import Place


class Office:
    """The coordinator's part of a rank's machine: there while the rank leads, empty otherwise."""

    def __init__(self, place: Place) -> None:
        self._place = place
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

    def tell_leader(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        """Say something to the one that leads, if that is another.

        A rank that would lead and does not yet has nobody to tell: what counts is said again, or begun again, when it
        is known who leads.
        """
        if self._place.coordinator != self._place.node:
            actions.append(Transmit(to=self._place.coordinator, message=message))
