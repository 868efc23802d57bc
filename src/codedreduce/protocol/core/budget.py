"""A budget of bets: how much redundant work a leader or a parent may request, out of what was saved."""

from __future__ import annotations

from codedreduce.protocol.core.policy import Policy


class Budget:
    """The bets that may be made: from saved credit, and on subjects that needed one last time.

    Subjects of bets are shares of a tree, or units of ranks that are late. Unused credit is saved.
    """

    def __init__(self, members: int, policy: Policy) -> None:
        self._most_open = max(1, policy.open_bets * members)
        self._earned = policy.bet_credit
        self._needy: set[int] = set()  # subjects that another node had to deliver last time
        self._most_credit = policy.most_credit * members
        self._credit = self._most_credit / 2

    def save(self) -> None:
        """Add credit: something was delivered."""
        self._credit = min(self._most_credit, self._credit + self._earned)

    def is_needy(self, subject: int) -> bool:
        """True if another node had to deliver this subject last time."""
        return subject in self._needy

    def on_time(self, subject: int) -> None:
        """Record that the expected node delivered the subject, perhaps after a bet against it."""
        self._needy.discard(subject)

    def may_bet(self, open_bets: int) -> bool:
        """True if one more bet may be made: there is saved credit, or few bets are open."""
        return self._credit >= 1 or open_bets < self._most_open

    def bet_made(self) -> None:
        """Record that a node was asked to do the work of another."""
        self._credit = max(0.0, self._credit - 1)

    def bet_won(self, subject: int, *, counted: bool) -> None:
        """Record that the node with the bet delivered first: the bet cost nothing, if it was counted."""
        self._needy.add(subject)
        if counted:
            self._credit = min(self._most_credit, self._credit + 1)
