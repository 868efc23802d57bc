"""The root in place of missing workers: when it stands in, for which shares, and what it computes, unit by unit.

A share of the root is a worker's own unit plus the sums that this worker would receive from its children. The root
cannot receive those sums. So it computes all units of the share, in the order in which the plan adds them. The result
is bit-identical to the one that any worker would deliver.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from codedreduce.protocol.core.events import Actions, Compute, Computed, Failed, Note, SetTimer
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.schemes import Piece, TreePlan
from codedreduce.vectors import Vector

#: Connected workers are much too late after this many times the longest recent round, plus the seconds of that timer.
MUCH_TOO_LATE = 4.0


def can_stand_in(plan: TreePlan) -> bool:
    """Whether the root can compute a share by itself: only plain sums, without a code's weights."""
    return plan.needs(0, 0).code is None and plan.wait_for is None


class StandingIn:
    """A part of the root: the shares that it no longer waits for, and what it computes of them.

    `computes` is whether the root's process can compute. The root reports the begin and the end of a round, and shares
    that arrive.
    """

    def __init__(
        self, actions: Actions, plan: TreePlan, settings: Settings, below: Collecting, *, computes: bool
    ) -> None:
        self._actions = actions
        self._plan = plan
        self._settings = settings
        self._below = below
        self._is_able = computes and can_stand_in(plan)
        self._model: Vector | None = None
        self._share: ShareByUnits | None = None  # the share that the root computes
        self._given_up: frozenset[int] = frozenset()  # shares that did not arrive in time, nor since
        self._look_at: float | None = None  # when it next checks whether to give up more shares
        self._took: deque[float] = deque(maxlen=16)  # seconds of the last rounds in which it did not stand in

    def begin(self, model: Vector, now: float) -> None:
        """A round begins: the root computes the shares that it has given up at once."""
        self._share = None
        if self._is_able:
            self._model = model
            self._look_at = None
            self._look_again(now + self._settings.excess.replan_after)
            self.go_on()

    def end(self, now: float) -> None:
        """The round has its sum."""
        if not self._given_up:
            self._took.append(now - self._below.ledger.since)
        self._model = None

    def heard_of(self, task: int) -> None:
        """A worker delivers a share: the root need not compute it from the next round on."""
        if task in self._given_up:
            self._given_up -= {task}

    def somebody_went(self, now: float) -> None:
        """A worker has left: perhaps no worker can deliver some share."""
        self._look_again(now + self._settings.excess.replan_after)

    def _look_again(self, moment: float) -> None:
        """Check at this moment whether to stand in, unless an earlier check is set."""
        if self._is_able and (self._look_at is None or moment < self._look_at):
            self._look_at = moment
            self._actions.append(SetTimer(name=Timer.REPLAN, at=moment))

    def look(self, now: float) -> None:
        """Compute the shares that no connected worker can deliver, and those that are much too late."""
        if not self._is_able:
            return
        since = self._below.ledger.since
        wanted = {share.task: share.providers for share in self._below.ledger.shares.wanted()}
        too_late = since + self._settings.excess.replan_after + MUCH_TOO_LATE * max(self._took, default=math.inf)
        given_up = set(wanted) if now >= too_late else set(wanted) & self._cannot_come()
        if given_up - self._given_up:
            workers = sorted({one for task in given_up for one in wanted[task]})
            self._say(now - since, workers)
            self._given_up |= given_up
            if self._share is None:
                self.go_on()
        self._look_at = None
        if now < too_late < math.inf:
            self._look_again(too_late)

    def _cannot_come(self) -> frozenset[int]:
        """The shares that no connected worker can deliver."""
        missing = {node for node in self._below.roster.lacking() if self._plan.is_worker(node)}
        silent = self._plan.cut_off(missing)
        shares = self._plan.needs(0, 0).shares
        return frozenset(share.task for share in shares if silent.issuperset(share.providers))

    def _say(self, waited: float, workers: list[int]) -> None:
        round_, missing = self._below.round, self._below.roster.lacking()
        reason = f"round {round_} has waited {waited:.3g} s; the root computes in place of one of {workers}"
        if missing:
            reason += f", while {missing} are missing"
        self._actions.append(Note(kind="stands in", reason=reason, round=round_, nodes=tuple(workers)))

    def go_on(self) -> None:
        """Compute the next unit of the shares that are still missing."""
        if self._share is None or self._is_here(self._share.task):
            wanted = [share for share in self._below.ledger.shares.wanted() if share.task in self._given_up]
            if not wanted:
                self._share = None
                return
            self._share = ShareByUnits(self._plan, wanted[0].task, wanted[0].providers[0])
        pieces = self._share.next()
        assert self._model is not None
        assert pieces is not None, "a complete share has been delivered"
        self._actions.append(Compute(round=self._below.round, task=self._share.task, pieces=pieces, model=self._model))

    def _is_here(self, task: int) -> bool:
        share = self._below.ledger.shares.find(task)
        return share is None or share.whole

    def computed(self, event: Computed, now: float) -> bool:
        """Add a unit to the current share, and deliver the share after the last one. Return whether it was used."""
        share = self._share
        if share is None or event.round != self._below.round or event.task != share.task:
            return False
        share.computed(event.vector)
        if share.next() is None and not self._is_here(share.task):
            self._below.stood_in(share.task, share.result(), now)
            self._share = None
        return True

    def on_failed(self, event: Failed, now: float) -> None:
        """The root failed too: it waits for the missing workers."""
        self._share, self._given_up = None, frozenset()
        reason = f"the root failed in round {event.round} to compute in place of missing workers: {event.reason}"
        self._actions.append(Note(kind="failed", reason=reason, round=event.round, nodes=(0,)))


class ShareByUnits:
    """A share that the root computes: units in preorder, each with its depth, and the incomplete sums."""

    def __init__(self, plan: TreePlan, task: int, provider: int) -> None:
        self.task = task
        self._steps = list(_units(plan, task, provider, 0))
        self._sums: list[Vector] = []  # by depth: the unit's vector, with what was added to it
        self._done = 0

    def next(self) -> tuple[Piece, ...] | None:
        """The pieces to compute next; None when all units are done."""
        return self._steps[self._done][1] if self._done < len(self._steps) else None

    def computed(self, vector: Vector) -> None:
        """Take a computed unit. Sums that are complete by now are added to their parents' sums."""
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
