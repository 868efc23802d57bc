"""Which run this is: runs that meet at one address one after the other have one name, and must not be mixed.

The root makes an identity, and tells it to all that come. Who has one, and comes to a root with another, is of an
earlier run, and refused. A root that was started again goes on with the run it finds: at once if it knows that it was
started again (CODEDREDUCE_RESTARTED), else if more than half of all processes are of it. A few that were stopped while
their run ended, and go on now, are not that many: they are kept waiting, and sent away when the run begins.
"""

from __future__ import annotations

import os


class Identity:
    """That of the run which this process is in, as far as it knows; one for its book and its visits together."""

    def __init__(self) -> None:
        self.value = ""
        self.is_settled = False  # nothing that somebody says changes it any more
        self._goes_on = False
        self._claims: dict[str, set[int]] = {}

    def make(self, *, goes_on: bool = False) -> None:
        """This process is the root: it says which run it is, unless it was started again, and goes on with one."""
        self._goes_on = goes_on
        if not goes_on:
            self.value = os.urandom(8).hex()

    def settle(self, value: str = "") -> None:
        """The root has said which run it is; or here it begins with those that have come."""
        self.value = value or self.value or os.urandom(8).hex()
        self.is_settled = True

    def is_of_it(self, value: str) -> bool:
        """Whether somebody is of this run, or of none yet."""
        return not value or value == self.value

    def claim(self, value: str, node: int, nodes: int) -> bool:
        """A node says that this is another run; whether it is right.

        >>> identity = Identity()
        >>> identity.make()
        >>> identity.claim("earlier", 3, nodes=4), identity.claim("earlier", 1, nodes=4)
        (False, False)
        >>> identity.claim("earlier", 2, nodes=4), identity.value
        (True, 'earlier')
        """
        who = self._claims.setdefault(value, set())
        who.add(node)
        if self.is_settled or not (self._goes_on or 2 * len(who) > nodes):
            return False
        self.value = value
        self._goes_on = False  # with this one, and no other
        return True
