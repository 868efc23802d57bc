"""What is done when all units are computed and the sum does not come; and when a keeper is gone, or silent.

Keepers whose chunks are missing are asked what they lack. A unit that some lack is done again by another rank, since
whoever did it cannot deliver; and by yet another, if that does not arrive either. A keeper that lacks nothing and does
not deliver, or does not answer, or is at an earlier round and lacks what was done again, is replaced for the round:
every sender still has its vectors, and sends that stripe to the new keeper. Whoever was asked or replaced may have the
sum, and it got lost on its way: it is wanted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: How much longer than expected a sum may take before keepers are asked, and then until something is done.
PATIENCE, MORE_PATIENCE = 1.5, 0.5

#: Chunks in a message that asks for some.
WANTED_AT_ONCE = 1024


@dataclass
class Redone:
    """A unit that is done again: by whom that was tried, and when the last one was asked."""

    tried: set[int] = field(default_factory=set)
    asked: float = 0.0


#: Looks at which a keeper that lacks many units is waited for: it is the vectors that are slow, and nobody is late.
#: More while nothing is known of how long vectors take. The time between two looks grows with that of the round.
SLOW_LOOKS, UNKNOWN_LOOKS = 6, 10


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What is to be done about chunks that are missing: whom to ask what it lacks, or for which chunks; whose stripes
    to have kept by others, which units to do again.
    """

    want: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ask: tuple[int, ...] = ()
    replace: tuple[int, ...] = ()
    redo: tuple[int, ...] = ()


@dataclass
class MissingSums:
    """Who keeps which stripe in this round, and what keepers have said they lack."""

    stripes: Sequence[range] = ()
    units: int = 0  # that a sum is of; as many as there are stripes, if nothing is said
    _keeper: dict[int, int] = field(default_factory=dict)  # of stripes that are kept by another than planned
    _asked: set[int] = field(default_factory=set)
    _lacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    redone: dict[int, Redone] = field(default_factory=dict)  # by unit
    _having: set[int] = field(default_factory=set)  # ranks that have the whole sum
    _had: set[int] = field(default_factory=set)  # ranks that had it, and hold later ones
    _before: dict[int, set[int]] = field(default_factory=dict)  # who kept a stripe until another did
    vector_is_known: bool = True
    own: int = 0  # the coordinator's rank
    _looks: int = 0  # that were taken in this round
    _left: dict[int, int] = field(default_factory=dict)  # chunks that were missing, by stripe, when last looked
    _catch_up: set[int] = field(default_factory=set)  # keepers that were at an earlier round when they said so

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
        self._before.setdefault(stripe, set()).add(self.keeper(stripe))
        self._keeper[stripe] = rank

    def has_sum(self, rank: int) -> None:
        """A rank has said that it has the whole sum."""
        if rank not in self._had:
            self._having.add(rank)

    def has_no_sum(self, rank: int) -> None:
        """A rank that had the whole sum does not hold it any more."""
        self._having.discard(rank)
        self._had.add(rank)

    def gone(self, rank: int) -> None:
        """A rank cannot be reached; if it comes back it says what it has, or is a new process."""
        self._having.discard(rank)
        self._had.discard(rank)

    @property
    def are_somewhere(self) -> bool:
        """Whether a rank has the whole sum."""
        return bool(self._having)

    def was_kept_by_others(self, stripe: int) -> bool:
        """Whether somebody who kept it in place of another was in vain, too."""
        return stripe in self._keeper

    @property
    def is_as_planned(self) -> bool:
        """Whether nothing had to be done in this round."""
        return not self._keeper and not self.redone

    def said(self, rank: int, lacks: tuple[int, ...], *, is_behind: bool = False) -> None:
        """A rank has said which units its stripes lack; one that is at an earlier round may not know of this one."""
        self._lacks[rank] = lacks
        (self._catch_up.add if is_behind else self._catch_up.discard)(rank)

    def _is_waiting(self, keeper: int) -> bool:
        """Whether a keeper waits for units; not for what was done again, if it may be waiting in another round."""
        lacks = self._lacks.get(keeper, ())
        return bool(lacks) and not (keeper in self._catch_up and self.redone.keys() >= set(lacks))

    def steps(self, missing: Iterable[int], own_lacks: Sequence[int], present: set[int]) -> Steps:
        """What to do about these chunks of the sum; `own_lacks` is what the coordinator itself lacks as a keeper.

        >>> sums = MissingSums(stripes=(range(0, 2), range(2, 4), range(4, 6)))
        >>> sums.steps([2, 4, 5], [], {0, 1, 2})
        Steps(want=(), ask=(1, 2), replace=(), redo=())
        >>> sums.said(1, (2,)); sums.steps([2, 4, 5], [], {0, 1, 2})
        Steps(want=((1, (2,)), (2, (4, 5))), ask=(), replace=(2,), redo=(2,))
        """
        missing = list(missing)
        want = self._want_again(missing)
        ask: list[int] = []
        replace: list[int] = []
        redo: set[int] = set()
        self._looks += 1
        for stripe, comes in self._stripes_of(missing):
            keeper = self.keeper(stripe)
            if comes and keeper != self.own:
                self._asked.discard(keeper)  # who sends, however slowly, is not late
            elif self._is_slow_for_all(own_lacks if keeper == self.own else self._lacks.get(keeper, ())):
                self._asked.discard(keeper)
            elif keeper == self.own:
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
        return Steps(want=want, ask=tuple(ask), replace=tuple(replace), redo=tuple(sorted(redo)))

    def _is_slow_for_all(self, lacks: Sequence[int]) -> bool:
        """Whether a keeper lacks so many units that vectors are slow, rather than somebody's lost; for some looks."""
        looks = SLOW_LOOKS if self.vector_is_known else UNKNOWN_LOOKS
        return self._looks <= looks and len(lacks) > max(1, (self.units or len(self.stripes)) // 3)

    def _want_again(self, missing: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Whom to ask for chunks that it may have sent already: those that were asked, or replaced; or have all."""
        want = []
        for stripe, chunks in enumerate(self.stripes):
            before = self._before.get(stripe, set())
            keepers = before | self._having
            if before or self.keeper(stripe) in self._asked:
                keepers.add(self.keeper(stripe))
            keepers.discard(self.own)
            wanted = tuple(index for index in missing if index in chunks)[:WANTED_AT_ONCE]
            want += [(keeper, wanted) for keeper in sorted(keepers) if wanted]
        return tuple(want)

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
