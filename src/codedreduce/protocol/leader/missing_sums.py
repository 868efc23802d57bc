"""The leader's reaction when all units are computed but the sum does not arrive, or a reducer failed or is silent.

The leader asks the reducers of missing chunks which units they lack. Another rank computes such a unit again, since the
first one cannot deliver it; then yet another, if that does not arrive either. The leader replaces a reducer for the
round in three cases:

- The reducer lacks nothing and does not deliver.
- It does not answer.
- It is at an earlier round and lacks a unit that was computed again.

Every sender still has its vectors, and sends that stripe to the new reducer. A reducer that was asked or replaced may
have sent the sum, and the network lost it: the leader requests it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.protocol.leader.stragglers import Decision, Remedy

#: Chunks in one message that requests chunks.
WANTED_AT_ONCE = 1024


@dataclass
class Redone:
    """A unit that is computed again: the ranks that tried, and when the last one was asked."""

    tried: set[int] = field(default_factory=set)
    asked: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What to do about missing chunks: request chunks (`want`), ask reducers what they lack (`ask`), reassign stripes
    (`replace`) and compute units again (`redo`), both with the reason.
    """

    want: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ask: tuple[int, ...] = ()
    replace: tuple[tuple[int, str], ...] = ()
    redo: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducerView:
    """What the leader knows of the reducer of a stripe that misses chunks, at its n-th check (`checks`) of a round."""

    reducer: int
    checks: int
    units: int  # number of units in a sum
    lacks: tuple[int, ...] | None = None  # units that its stripes lack; None: it has not reported since it was asked
    is_own: bool = False  # it is the leader
    is_present: bool = True
    has_sent: bool = False  # chunks have arrived since the last check
    was_asked: bool = False
    was_served: bool = False  # it lacks units at an earlier round, and all of them were computed again
    vector_is_known: bool = True


def decide_on_reducer(view: ReducerView, policy: Policy = DEFAULT_POLICY) -> Decision:
    """What to do about a reducer, all units being computed.

    >>> decide_on_reducer(ReducerView(reducer=2, checks=9, units=4, was_asked=True, lacks=(3,)))
    Decision(remedy=<Remedy.REDO: 6>, reason='rank 2 lacks unit 3', until=0.0)
    """
    name, lacks = f"rank {view.reducer}", view.lacks or ()
    if view.has_sent and not view.is_own:  # a reducer that sends, however slowly, is not late
        return Decision(remedy=Remedy.WAIT, reason=f"{name} sends")
    checks = policy.slow_checks if view.vector_is_known else policy.unknown_slow_checks
    if view.checks <= checks and len(lacks) > max(1, view.units // 3):
        return Decision(remedy=Remedy.WAIT, reason=f"{name} lacks {len(lacks)} units: vectors are slow, not lost")
    units = f"{name} lacks unit{'s' if len(lacks) > 1 else ''} {', '.join(map(str, lacks))}"
    if view.is_own:
        return Decision(remedy=Remedy.REDO, reason=units)
    if not view.is_present:
        return Decision(remedy=Remedy.REPLACE, reason=f"{name} cannot be reached")
    if not view.was_asked:
        return Decision(remedy=Remedy.ASK, reason=f"the sums of {name} do not arrive")
    if lacks and not view.was_served:
        return Decision(remedy=Remedy.REDO, reason=units)
    if view.lacks is None:
        return Decision(remedy=Remedy.REPLACE, reason=f"{name} does not answer")
    if lacks:
        return Decision(remedy=Remedy.REPLACE, reason=f"{units}, which others have computed again")
    return Decision(remedy=Remedy.REPLACE, reason=f"{name} lacks nothing, and its sums do not arrive")


@dataclass
class MissingSums:
    """The reducer of each stripe in this round, and the units that reducers have reported they lack."""

    stripes: Sequence[range] = ()
    units: int = 0  # number of units in a sum; by default the number of stripes
    _reducer: dict[int, int] = field(default_factory=dict)  # of stripes with another reducer than planned
    _asked: set[int] = field(default_factory=set)
    _lacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    redone: dict[int, Redone] = field(default_factory=dict)  # by unit
    _having: set[int] = field(default_factory=set)  # ranks that have the whole sum
    _had: set[int] = field(default_factory=set)  # ranks that had it, and hold later ones
    _before: dict[int, set[int]] = field(default_factory=dict)  # earlier reducers of a stripe
    vector_is_known: bool = True
    own: int = 0  # the leader's rank
    policy: Policy = DEFAULT_POLICY
    _looks: int = 0  # number of checks in this round
    _left: dict[int, int] = field(default_factory=dict)  # missing chunks by stripe, at the last check
    _catch_up: set[int] = field(default_factory=set)  # reducers at an earlier round when they reported what they lack

    def reducer(self, stripe: int) -> int:
        """The reducer of a stripe."""
        return self._reducer.get(stripe, stripe)

    def reduced_by(self, rank: int) -> list[int]:
        """The stripes that a rank reduces."""
        taken = [stripe for stripe, reducer in self._reducer.items() if reducer == rank]
        own = rank < len(self.stripes) and len(self.stripes[rank]) > 0 and rank not in self._reducer
        return [rank, *taken] if own else taken

    def is_reduced_by(self, stripe: int, rank: int) -> None:
        """Another rank reduces a stripe from now on."""
        self._before.setdefault(stripe, set()).add(self.reducer(stripe))
        self._reducer[stripe] = rank

    def has_sum(self, rank: int) -> None:
        """A rank has reported that it has the whole sum."""
        if rank not in self._had:
            self._having.add(rank)

    def has_no_sum(self, rank: int) -> None:
        """A rank that had the whole sum does not hold it any more."""
        self._having.discard(rank)
        self._had.add(rank)

    def gone(self, rank: int) -> None:
        """A rank cannot be reached; if it comes back it reports what it has, or is a new process."""
        self._having.discard(rank)
        self._had.discard(rank)

    @property
    def are_somewhere(self) -> bool:
        """Whether a rank has the whole sum."""
        return bool(self._having)

    def was_reduced_by_others(self, stripe: int) -> bool:
        """Whether the stripe was reassigned in this round already."""
        return stripe in self._reducer

    @property
    def is_as_planned(self) -> bool:
        """Whether the leader has neither reassigned a stripe nor repeated a unit in this round."""
        return not self._reducer and not self.redone

    def said(self, rank: int, lacks: tuple[int, ...], *, is_behind: bool = False) -> None:
        """A rank has reported the units that its stripes lack; one at an earlier round may not know of this one."""
        self._lacks[rank] = lacks
        (self._catch_up.add if is_behind else self._catch_up.discard)(rank)

    def steps(self, missing: Iterable[int], own_lacks: Sequence[int], present: set[int]) -> Steps:
        """What to do about these missing chunks; `own_lacks` are the units that the leader itself lacks as a reducer.

        >>> sums = MissingSums(stripes=(range(0, 2), range(2, 4), range(4, 6)))
        >>> sums.steps([2, 4, 5], [], {0, 1, 2})
        Steps(want=(), ask=(1, 2), replace=(), redo=())
        >>> sums.said(1, (2,)); steps = sums.steps([2, 4, 5], [], {0, 1, 2})
        >>> steps.replace, steps.redo
        (((2, 'rank 2 does not answer'),), ((2, 'rank 1 lacks unit 2'),))
        """
        missing = list(missing)
        want = self._want_again(missing)
        ask: list[int] = []
        replace: list[tuple[int, str]] = []
        redo: dict[int, str] = {}
        self._looks += 1
        for stripe, has_sent in self._stripes_of(missing):
            view = self._view(self.reducer(stripe), own_lacks, has_sent=has_sent, present=present)
            decision, reducer = decide_on_reducer(view, self.policy), view.reducer
            match decision.remedy:
                case Remedy.WAIT:
                    self._asked.discard(reducer)
                case Remedy.ASK:
                    self._asked.add(reducer)
                    self._lacks.pop(reducer, None)
                    ask.append(reducer)
                case Remedy.REDO:
                    redo = dict.fromkeys(view.lacks or (), decision.reason) | redo
                    self._asked.discard(reducer)
                case Remedy.REPLACE:
                    replace.append((stripe, decision.reason))
        return Steps(want=want, ask=tuple(ask), replace=tuple(replace), redo=tuple(sorted(redo.items())))

    def _view(self, reducer: int, own_lacks: Sequence[int], *, has_sent: bool, present: set[int]) -> ReducerView:
        """What is known of a reducer."""
        is_own = reducer == self.own
        lacks = tuple(own_lacks) if is_own else self._lacks.get(reducer)
        return ReducerView(
            reducer=reducer, checks=self._looks, units=self.units or len(self.stripes), lacks=lacks, is_own=is_own,
            is_present=reducer in present, has_sent=has_sent, was_asked=reducer in self._asked,
            was_served=bool(lacks) and reducer in self._catch_up and self.redone.keys() >= set(lacks or ()),
            vector_is_known=self.vector_is_known,
        )  # fmt: skip

    def _want_again(self, missing: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Ranks that may have sent missing chunks, and the chunks to request: reducers asked or replaced, and ranks
        with the whole sum.
        """
        want = []
        for stripe, chunks in enumerate(self.stripes):
            before = self._before.get(stripe, set())
            reducers = before | self._having
            if before or self.reducer(stripe) in self._asked:
                reducers.add(self.reducer(stripe))
            reducers.discard(self.own)
            wanted = tuple(index for index in missing if index in chunks)[:WANTED_AT_ONCE]
            want += [(reducer, wanted) for reducer in sorted(reducers) if wanted]
        return tuple(want)

    def replaced(self) -> list[tuple[int, int]]:
        """Stripes with another reducer than planned, and that reducer."""
        return sorted(self._reducer.items())

    def reducers_of(self, chunks: Iterable[int]) -> set[int]:
        """The reducers of these chunks."""
        wanted = set(chunks)
        stripes = (stripe for stripe, one in enumerate(self.stripes) if not wanted.isdisjoint(one))
        return {self.reducer(stripe) for stripe in stripes}

    def _stripes_of(self, chunks: Iterable[int]) -> list[tuple[int, bool]]:
        """The stripes that chunks are in, and whether fewer of them are missing than at the last check."""
        wanted = set(chunks)
        left = {stripe: len(wanted.intersection(one)) for stripe, one in enumerate(self.stripes)}
        found = [(stripe, count < self._left.get(stripe, count)) for stripe, count in left.items() if count]
        self._left = left
        return found
