"""A budget of bets: how much redundant work may be asked for, out of what was saved."""

from __future__ import annotations

#: The head start while nothing is known, as a fraction of the time a share took.
UNKNOWN = 1.0

#: Bets on children that did not need one last time: as a part of all children, so many may be open at a time; as a part
#: of the shares delivered, so many may be lost. What was not used is saved, up to `SAVED` for each child.
A_FIFTH = 0.2
SAVED = 1.0


class Budget:
    """What may be bet: out of what was saved, and on those that needed it last time.

    Subjects of bets are shares of a tree, or ranks that are behind with their work.
    """

    def __init__(self, members: int) -> None:
        self._members = members
        self._needy: set[int] = set()  # subjects that somebody else had to help out with last time
        self._most_credit = SAVED * members
        self._credit = self._most_credit / 2

    def save(self) -> None:
        """Something was delivered."""
        self._credit = min(self._most_credit, self._credit + A_FIFTH)

    def is_needy(self, subject: int) -> bool:
        """Whether somebody else had to deliver this last time."""
        return subject in self._needy

    def on_time(self, subject: int) -> None:
        """It came from whom it was expected."""
        self._needy.discard(subject)

    def may_bet(self, open_bets: int) -> bool:
        """Whether one more bet may be made: out of what was saved, or few at a time."""
        return self._credit >= 1 or open_bets < max(1, A_FIFTH * self._members)

    def bet_made(self) -> None:
        """Somebody was asked in another's place."""
        self._credit = max(0.0, self._credit - 1)

    def bet_won(self, subject: int, *, counted: bool) -> None:
        """Whoever was asked in another's place delivered first: that cost nothing, if it was counted."""
        self._needy.add(subject)
        if counted:
            self._credit = min(self._most_credit, self._credit + 1)

    def bet_lost(self, subject: int) -> None:
        """The late one delivered first after all."""
        self._needy.discard(subject)
