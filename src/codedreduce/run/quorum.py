"""When a run may begin: all have joined, or enough have, and the others have had as long again to join."""

from __future__ import annotations

from collections.abc import Callable, Collection

from codedreduce.schemes import Plan
from codedreduce.timing import Timing

#: Whether a run can begin without these ranks.
Suffices = Callable[[Collection[int]], bool]


def sufficient(plan: Plan, least: int | None) -> Suffices:
    """At least `least` must have joined, and the plan must tolerate the missing ones; with None all must have joined.

    >>> from codedreduce import Striped
    >>> enough = sufficient(Striped(6).plan(samples=60), least=4)
    >>> enough({3, 5}), enough({3, 4, 5}), sufficient(Striped(6).plan(samples=60), None)({3})
    (True, False, False)
    """
    if least is None:
        return lambda missing: not missing
    return lambda missing: plan.workers - len(missing) >= least and plan.tolerates(set(missing))


def anyone(missing: Collection[int]) -> bool:
    """True: a rank can join a run that has begun whichever ranks are missing."""
    return True


class Gathering:
    """A wait for others that started at `began`: whether enough have joined, and since when.

    >>> gathering = Gathering(lambda missing: len(missing) <= 1, began=10.0, timing=Timing(latecomer_wait=1.0))
    >>> gathering.may_begin({1, 2}, 12.0), gathering.may_begin({2}, 13.0), gathering.may_begin({2}, 15.9)
    (False, False, False)
    >>> gathering.may_begin({2}, 16.0), gathering.may_begin({}, 13.0)
    (True, True)
    """

    def __init__(self, suffices: Suffices, began: float, timing: Timing) -> None:
        self._suffices = suffices
        self._least = timing.latecomer_wait
        self._began = began
        self._enough_at: float | None = None

    def join_what_is_on(self, now: float) -> None:
        """The run has begun without this rank: wait only a moment for the addresses of the others."""
        if self._suffices is not anyone:
            self._suffices, self._began, self._enough_at = anyone, now, None

    def may_begin(self, missing: Collection[int], now: float) -> bool:
        """Whether to begin now without the missing ranks."""
        if not missing:
            return True
        if not self._suffices(missing):
            self._enough_at = None
            return False
        if self._enough_at is None:
            self._enough_at = now
        return now >= self._enough_at + max(self._least, self._enough_at - self._began)
