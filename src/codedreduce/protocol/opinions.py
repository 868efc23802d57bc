"""One share that is audited: what was received of it, what others have who computed it, and what follows from that."""

from __future__ import annotations

from collections import Counter

from codedreduce.protocol.shares import Share
from codedreduce.vectors import Vector


class Looked:
    """A share that is looked at: what was received, from whom, and what those say who computed it."""

    def __init__(self, share: Share, received: bytes) -> None:
        self.task = share.task
        self.providers = tuple(share.providers)
        self.by = share.by
        self.received = received
        self.said: dict[int, bytes] = {}
        self.out: set[int] = set()  # who was asked in vain
        self.right: bytes | None = None
        self.has_lapsed = False
        self.is_judged = False  # the root was asked
        self.until = 0.0  # when a dispute must be over that nobody is asked about
        self.whole: list[Vector | None] = [None] * len(share.chunks)  # what comes in the place of what is wrong
        self.tries: Counter[int] = Counter()

    def decide(self) -> bool:
        """Whether it is known by now what is right, and was not before."""
        if self.right is not None or self.has_lapsed:
            return False
        agreed = [digest for digest in {self.received, *self.said.values()} if self._is_agreed(digest)]
        if len(agreed) == 1:
            self.right = agreed[0]
        return self.right is not None

    def _is_agreed(self, digest: bytes) -> bool:
        """Whether two different nodes have computed all of it, and have that."""
        who = self.saying(digest)
        return len(who) > 1 or (digest == self.received and bool(who) and all(who - {one} for one in self.by))

    def saying(self, digest: bytes) -> set[int]:
        """Who says that."""
        return {node for node, said in self.said.items() if said == digest}

    @property
    def is_disputed(self) -> bool:
        """Whether there are different opinions, and it is not known which is right."""
        return self.right is None and not self.has_lapsed and len({self.received, *self.said.values()}) > 1

    @property
    def lacks_vector(self) -> bool:
        """Whether what is right is known, and is not here."""
        return self.right is not None and self.right != self.received

    @property
    def is_over(self) -> bool:
        """Whether it can be used."""
        return self.has_lapsed or self.right == self.received

    def who_was_wrong(self) -> set[int]:
        """Those who said something else, and those from whom something else came; but for a part of it."""
        wrong = {node for node, said in self.said.items() if said != self.right}
        if self.received != self.right and len(self.by) == 1:
            wrong |= set(self.by) - {0}
        return wrong
