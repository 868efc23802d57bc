"""The identity of a run: runs that use one rendezvous address in turn have one name, and must not be mixed.

The root makes an identity, and sends it to all processes that register. A process with an identity that registers at a
root with another is from an earlier run, and is rejected. A restarted root continues the run that it finds. It does so
at once if it knows that it was restarted (CODEDREDUCE_RESTARTED), else if more than half of all processes are of that
run. A few processes that were stopped while their run ended, and resume now, are not that many. They have to wait, and
are rejected when the run begins.
"""

from __future__ import annotations

import os


class Identity:
    """The identity of this process's run, as far as it is known; its directory and its visitor share this object."""

    def __init__(self) -> None:
        self.value = ""
        self.is_settled = False  # no report changes it any more
        self._goes_on = False
        self._claims: dict[str, set[int]] = {}

    def make(self, *, goes_on: bool = False) -> None:
        """This process is the root: choose the identity, unless the root was restarted and continues a run."""
        self._goes_on = goes_on
        if not goes_on:
            self.value = os.urandom(8).hex()

    def settle(self, value: str = "") -> None:
        """The root has reported the identity; or this process begins a run with the processes that have registered."""
        self.value = value or self.value or os.urandom(8).hex()
        self.is_settled = True

    def is_of_it(self, value: str) -> bool:
        """Whether a process with this identity is of this run, or of none yet."""
        return not value or value == self.value

    def claim(self, value: str, node: int, nodes: int) -> bool:
        """A node reports another identity. Returns whether this process adopts it.

        >>> identity = Identity()
        >>> identity.make()
        >>> identity.claim("earlier", 3, nodes=4), identity.claim("earlier", 1, nodes=4)
        (False, False)
        >>> identity.claim("earlier", 2, nodes=4), identity.value
        (True, 'earlier')
        """
        claimants = self._claims.setdefault(value, set())
        claimants.add(node)
        if self.is_settled or not (self._goes_on or 2 * len(claimants) > nodes):
            return False
        self.value = value
        self._goes_on = False  # adopt this one, and no other
        return True
