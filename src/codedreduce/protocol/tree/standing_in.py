"""The root in the place of workers that are missing: when, for whom, and what it computes, unit by unit.

A share of the root's is a worker's own unit and what it would receive from its children, which are sums themselves. The
root has nobody to receive them from, and goes through all units of the share in the order in which the plan adds them;
the result has the bits that any worker would deliver.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from codedreduce.protocol.core.events import AnyAction, Compute, Computed, Failed, Note, SetTimer
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.schemes import Piece, TreePlan
from codedreduce.vectors import Vector

#: The timer after which the root does what nobody is there to do.
REPLAN = "replan"

#: Those who are there are much too late after so many times the longest of the last rounds, and that timer beside.
MUCH_TOO_LATE = 4.0


def can_stand_in(plan: TreePlan) -> bool:
    """Whether the root can compute a share by itself: sums that are plain, without a code's weights."""
    return plan.needs(0, 0).code is None and plan.wait_for is None


class StandingIn:
    """A part of the root: which shares it has given up waiting for, and what it computes of them.

    `computes` is whether the root's process can. The root says when a round begins and ends, and what it hears of.
    """

    def __init__(self, plan: TreePlan, settings: Settings, below: Collecting, *, computes: bool) -> None:
        self._plan = plan
        self._settings = settings
        self._below = below
        self._is_able = computes and can_stand_in(plan)
        self._model: Vector | None = None
        self._share: ShareByUnits | None = None  # what the root computes itself
        self._given_up: frozenset[int] = frozenset()  # shares for which it waited in vain, and nobody came since
        self._look_at: float | None = None  # when it will look whether more must be given up
        self._took: deque[float] = deque(maxlen=16)  # seconds of the last rounds in which it did not stand in

    def begin(self, model: Vector, now: float, actions: list[AnyAction]) -> None:
        """A round begins: what was given up in the last one is computed at once."""
        self._share = None
        if self._is_able:
            self._model = model
            self._look_at = None
            self._look_again(now + self._settings.replan_after, actions)
            self.go_on(actions)

    def end(self, now: float) -> None:
        """The round has its sum."""
        if not self._given_up:
            self._took.append(now - self._below.ledger.since)
        self._model = None

    def heard_of(self, task: int) -> None:
        """Somebody delivers a share: the root need not, from the next round on."""
        if task in self._given_up:
            self._given_up -= {task}

    def somebody_went(self, now: float, actions: list[AnyAction]) -> None:
        """Maybe nobody is left who could deliver a share."""
        self._look_again(now + self._settings.replan_after, actions)

    def _look_again(self, moment: float, actions: list[AnyAction]) -> None:
        """Look then whether to stand in, unless that will be done before."""
        if self._is_able and (self._look_at is None or moment < self._look_at):
            self._look_at = moment
            actions.append(SetTimer(name=REPLAN, at=moment))

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """What nobody is there to do the root does; what those who are there are much too late with, too."""
        if not self._is_able:
            return
        since = self._below.ledger.since
        wanted = {share.task: share.providers for share in self._below.ledger.shares.wanted()}
        too_late = since + self._settings.replan_after + MUCH_TOO_LATE * max(self._took, default=math.inf)
        given_up = set(wanted) if now >= too_late else set(wanted) & self._cannot_come()
        if given_up - self._given_up:
            who = sorted({one for task in given_up for one in wanted[task]})
            self._say(now - since, who, actions)
            self._given_up |= given_up
            if self._share is None:
                self.go_on(actions)
        self._look_at = None
        if now < too_late < math.inf:
            self._look_again(too_late, actions)

    def _cannot_come(self) -> frozenset[int]:
        """The shares that nobody who is there can deliver."""
        missing = {node for node in self._below.roster.lacking() if self._plan.is_worker(node)}
        silent = self._plan.cut_off(missing)
        shares = self._plan.needs(0, 0).shares
        return frozenset(share.task for share in shares if silent.issuperset(share.providers))

    def _say(self, waited: float, who: list[int], actions: list[AnyAction]) -> None:
        round_, missing = self._below.round, self._below.roster.lacking()
        reason = f"round {round_} has waited {waited:.3g} s; the root does what one of {who} would"
        if missing:
            reason += f", while {missing} are missing"
        actions.append(Note(kind="stands in", reason=reason, round=round_, nodes=tuple(who)))

    def go_on(self, actions: list[AnyAction]) -> None:
        """Compute the next unit of what is still missing."""
        if self._share is None or self._is_here(self._share.task):
            wanted = [share for share in self._below.ledger.shares.wanted() if share.task in self._given_up]
            if not wanted:
                self._share = None
                return
            self._share = ShareByUnits(self._plan, wanted[0].task, wanted[0].providers[0])
        pieces = self._share.next()
        assert self._model is not None
        assert pieces is not None, "what is complete has been taken"
        actions.append(Compute(round=self._below.round, task=self._share.task, pieces=pieces, model=self._model))

    def _is_here(self, task: int) -> bool:
        share = self._below.ledger.shares.find(task)
        return share is None or share.whole

    def computed(self, event: Computed, now: float, actions: list[AnyAction]) -> bool:
        """A unit is computed; whether it is of the share that is under way. After the last one, the share is there."""
        share = self._share
        if share is None or event.round != self._below.round or event.task != share.task:
            return False
        share.computed(event.vector)
        if share.next() is None and not self._is_here(share.task):
            self._below.stood_in(share.task, share.result(), now, actions)
            self._share = None
        return True

    def on_failed(self, event: Failed, now: float, actions: list[AnyAction]) -> None:
        """The root cannot do it either: it waits for those who are missing."""
        self._share, self._given_up = None, frozenset()
        reason = f"the root failed in round {event.round} at what missing workers would do: {event.reason}"
        actions.append(Note(kind="failed", reason=reason, round=event.round, nodes=(0,)))


class ShareByUnits:
    """A share that the root computes: units in preorder, each with its depth, and the sums that are not complete."""

    def __init__(self, plan: TreePlan, task: int, provider: int) -> None:
        self.task = task
        self._steps = list(_units(plan, task, provider, 0))
        self._sums: list[Vector] = []  # of the unit at each depth, with what was added to it
        self._done = 0

    def next(self) -> tuple[Piece, ...] | None:
        """What to compute next; None when all is."""
        return self._steps[self._done][1] if self._done < len(self._steps) else None

    def computed(self, vector: Vector) -> None:
        """A unit is computed: what is complete by now is added to what it is a part of."""
        depth, _ = self._steps[self._done]
        self._fold(depth)
        self._sums.append(vector.copy())
        self._done += 1

    def result(self) -> Vector:
        """The sum of the share."""
        self._fold(1)
        return self._sums[0]

    def _fold(self, depth: int) -> None:
        while len(self._sums) > depth:
            part = self._sums.pop()
            self._sums[-1][:] += part


def _units(plan: TreePlan, task: int, provider: int, depth: int) -> Iterator[tuple[int, tuple[Piece, ...]]]:
    yield depth, plan.unit(provider, task).pieces
    for share in plan.needs(provider, task).shares:
        yield from _units(plan, share.task, share.providers[0], depth + 1)
