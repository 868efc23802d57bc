"""What is done when all units are computed and the sum does not come; and when a keeper is gone, or silent.

Keepers whose chunks are missing are asked what they lack. A unit that some lack is done again by another rank, since
whoever did it cannot deliver. A keeper that lacks nothing and does not deliver, or does not answer, or is at an
earlier round and lacks what was done again, is replaced for the round: every sender still has its vectors, and sends
that stripe to the new keeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: How much longer than expected a sum may take before keepers are asked, and then until something is done.
PATIENCE, MORE_PATIENCE = 1.5, 0.5

#: After so many looks at which there was nothing to do but wait for what is done again, it is done once more.
LOOKS_IN_VAIN = 8


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What is to be done about chunks that are missing: whom to ask, whose stripes to have kept by others, which units
    to do again.
    """

    ask: tuple[int, ...] = ()
    replace: tuple[int, ...] = ()
    redo: tuple[int, ...] = ()


@dataclass
class MissingSums:
    """Who keeps which stripe in this round, and what keepers have said they lack."""

    stripes: Sequence[range] = ()
    _keeper: dict[int, int] = field(default_factory=dict)  # of stripes that are kept by another than planned
    _asked: set[int] = field(default_factory=set)
    _lacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    redone: set[int] = field(default_factory=set)
    _left: dict[int, int] = field(default_factory=dict)  # chunks that were missing, by stripe, when last looked
    _behind: set[int] = field(default_factory=set)  # keepers that were at an earlier round when they said so
    _looks_in_vain: int = 0

    def keeper(self, stripe: int) -> int:
        """Who keeps a stripe."""
        return self._keeper.get(stripe, stripe)

    def kept_by(self, rank: int) -> list[int]:
        """The stripes that a rank keeps."""
        taken = [stripe for stripe, keeper in self._keeper.items() if keeper == rank]
        own = rank < len(self.stripes) and len(self.stripes[rank]) > 0 and rank not in self._keeper
        return [rank, *taken] if own else taken

    def is_kept_by(self, stripe: int, rank: int) -> None:
        """Another rank keeps a stripe from now on."""
        self._keeper[stripe] = rank

    @property
    def is_as_planned(self) -> bool:
        """Whether nothing had to be done in this round."""
        return not self._keeper and not self.redone

    def said(self, rank: int, lacks: tuple[int, ...], *, is_behind: bool = False) -> None:
        """A rank has said which units its stripes lack; one that is at an earlier round may not know of this one."""
        self._lacks[rank] = lacks
        (self._behind.add if is_behind else self._behind.discard)(rank)

    def _is_waiting(self, keeper: int) -> bool:
        """Whether a keeper waits for units; not for what was done again, if it may be waiting in another round."""
        lacks = self._lacks.get(keeper, ())
        return bool(lacks) and not (keeper in self._behind and self.redone.issuperset(lacks))

    def steps(self, missing: Iterable[int], own_lacks: Sequence[int], present: set[int]) -> Steps:
        """What to do about these chunks of the sum; `own_lacks` is what rank 0 itself lacks as a keeper.

        >>> sums = MissingSums(stripes=(range(0, 2), range(2, 4), range(4, 6)))
        >>> sums.steps([2, 4, 5], [], {0, 1, 2})
        Steps(ask=(1, 2), replace=(), redo=())
        >>> sums.said(1, (2,)); sums.steps([2, 4, 5], [], {0, 1, 2})
        Steps(ask=(), replace=(2,), redo=(2,))
        """
        ask: list[int] = []
        replace: list[int] = []
        redo: set[int] = set()
        for stripe, comes in self._stripes_of(missing):
            keeper = self.keeper(stripe)
            if comes and keeper:
                self._asked.discard(keeper)  # who sends, however slowly, is not late
            elif keeper == 0:
                redo.update(own_lacks)
            elif keeper not in present:
                replace.append(stripe)
            elif keeper not in self._asked:
                self._asked.add(keeper)
                self._lacks.pop(keeper, None)
                ask.append(keeper)
            elif self._is_waiting(keeper):
                redo.update(self._lacks[keeper])
                self._asked.discard(keeper)
            else:
                replace.append(stripe)
        if redo <= self.redone and not ask and not replace:
            self._looks_in_vain += 1
            if self._looks_in_vain % LOOKS_IN_VAIN == 0:  # what was done again was lost, too
                self.redone -= redo
        return Steps(ask=tuple(ask), replace=tuple(replace), redo=tuple(sorted(redo - self.redone)))

    def replaced(self) -> list[tuple[int, int]]:
        """Stripes that are kept by another than planned, and by whom."""
        return sorted(self._keeper.items())

    def keepers_of(self, chunks: Iterable[int]) -> set[int]:
        """Who keeps these chunks."""
        wanted = set(chunks)
        stripes = (stripe for stripe, one in enumerate(self.stripes) if not wanted.isdisjoint(one))
        return {self.keeper(stripe) for stripe in stripes}

    def _stripes_of(self, chunks: Iterable[int]) -> list[tuple[int, bool]]:
        """The stripes that chunks are in, and whether there are fewer of each than when last looked."""
        wanted = set(chunks)
        left = {stripe: len(wanted.intersection(one)) for stripe, one in enumerate(self.stripes)}
        found = [(stripe, count < self._left.get(stripe, count)) for stripe, count in left.items() if count]
        self._left = left
        return found
