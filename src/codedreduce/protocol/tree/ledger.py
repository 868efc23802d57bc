"""The ledger of shares: what a node's task needs from its children, the assignments, and which children are late.

Its methods record what happens (`start`, `arrived`, `offered`, `delivered`, `assign`, `lost`, ...) and return what
follows: which children can stop, when to check again, which child to ask for which share (`due`). No other class
writes to it.
"""

from __future__ import annotations

from codedreduce.protocol.core.messages import Trouble
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.redundancy import Experience
from codedreduce.protocol.tree.shares import Arrival, FirstShares, Shares, TreeShare
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector

#: How long an offered share may take to arrive, as a fraction of the time that had passed when it was offered.
HOLD = 1.0


class _Effort:
    """The attempts to get a missing share."""

    __slots__ = ("asked_at", "offered_at", "offered_by")

    def __init__(self) -> None:
        self.offered_by = -1
        self.offered_at: float | None = None  # when it was offered, or its latest chunk arrived
        self.asked_at: float | None = None  # when a replica was last asked for it


class Ledger:
    """Every child is at work on a share, or has delivered and is idle, or is gone."""

    def __init__(self, plan: TreePlan, node: int, settings: Settings) -> None:
        self._plan = plan
        self._node = node
        self._settings = settings
        self.children = plan.tree.children(node)
        live = plan.wait_for is not None and node == 0
        self.shares = FirstShares(plan, node, settings, plan.wait_for or 0) if live else Shares(plan, node, settings)
        self.since = 0.0
        self._first: dict[int, dict[int, int]] = {}  # by task: the first share of each child
        self._first_task = next(plan.tasks(node))
        self._here: set[int] = set()
        self._efforts: dict[int, _Effort] = {}
        self._assigned: dict[int, int] = {}  # by child: the share it works on
        self._instead: dict[int, int] = {}  # by child: the share it was asked for as a replica
        self._bets: dict[int, float] = {}  # by child: until when its bet counts as open
        self._idle_since: dict[int, float] = {}
        self._first_at: dict[int, float] = {}  # by child: seconds from the task's begin to its first share
        self._worked: dict[int, float] = {}  # by child: seconds of work on that share
        self._failed: dict[int, dict[int, tuple[Trouble, ...]]] = {}  # by share: the nodes that failed at it, and why
        self._wake: float | None = None
        self._redundant = plan.has_redundancy
        self._experience = Experience(len(self.children), settings)

    # -- a task begins and ends

    def start(self, task: int, now: float) -> None:
        """Reset, and collect for this task."""
        if task not in self._first:
            orders = ((child, self._plan.order(child, task)) for child in self.children)
            self._first[task] = {child: order[0] for child, order in orders if order}
        self.shares.start(task)
        self.since = now
        self._efforts = {}
        self._assigned = dict(self._first[task])
        self._instead.clear()
        self._bets.clear()
        self._idle_since.clear()
        self._first_at.clear()
        self._worked.clear()
        self._failed.clear()
        self._wake = None

    def clear(self) -> None:
        """Collect nothing: the current task needs nothing from the children."""
        self.shares.clear()
        self._assigned = {}
        self._failed.clear()

    def end(self) -> list[tuple[int, int]]:
        """All shares are here. Return the assignments that are still open."""
        still = self.assignments()
        self._lose_bets(still)
        self._assigned.clear()
        return still

    # -- what happens

    def arrived(self, child: int, task: int, index: int, data: Vector, covered: float, now: float) -> Arrival:
        """A chunk has arrived: keep it if it is the first copy."""
        share = self.shares.find(task)
        if share is None or share.whole:
            return Arrival.NOT_NEEDED
        if child not in share.providers:
            return Arrival.REPEATED
        arrival = share.take(index, data, covered)
        effort = self._efforts.get(task)
        if effort is not None and effort.offered_at is not None and arrival is not Arrival.REPEATED:
            effort.offered_at = now  # while chunks arrive, the share is on its way
        if arrival is Arrival.COMPLETED:
            if self._instead.get(child) == task:
                self._experience.bet_won(task, counted=child in self._bets)
            else:
                self._experience.on_time(task)
            if self._instead:
                self._lose_bets([(one, task) for one in self.at_work_on(task) if one != child])
        return arrival

    def arrived_late(self, child: int, index: int, data: Vector, covered: float) -> None:
        """Take a chunk of the previous round: only live compensation uses it."""
        if isinstance(self.shares, FirstShares):
            self.shares.take_late(child, index, data, covered)

    def offered(self, child: int, task: int, now: float) -> tuple[int, ...] | None:
        """A child offers a share. Return its missing chunks, or None if the share is not needed."""
        share = self.shares.find(task)
        if share is None or share.whole or child not in share.providers:
            return None
        effort = self._effort(task)
        effort.offered_by, effort.offered_at = child, now
        return share.lacks()

    def assign(self, child: int, task: int, now: float) -> None:
        """A child was asked for a share as a replica."""
        self._assigned[child] = task
        self._instead[child] = task
        self._effort(task).asked_at = now
        self._idle_since.pop(child, None)

    def delivered(self, child: int, task: int, worked: float, now: float) -> float | None:
        """A child did a share in `worked` seconds. Return when to check for late shares, if sooner than planned."""
        if self._assigned.get(child) != task:
            return None
        del self._assigned[child]
        if self._redundant and child not in self._worked and child not in self._instead:
            self._first_at[child] = now - self.since
            self._worked[child] = worked
            if self.shares.task == self._first_task:  # all children begin it with the model
                self._experience.delivered(child, now - self.since, worked, min(self._worked.values()))
        return self._idle(child, now)

    def dismissed(self, child: int, now: float) -> float | None:
        """A child's share is no longer needed. Return when to check for late shares, if sooner than planned."""
        del self._assigned[child]
        return self._idle(child, now)

    def failed(self, child: int, task: int, troubles: tuple[Trouble, ...], now: float) -> float | None:
        """A child cannot do a share, or the node its own unit. Return when to ask a replica, if sooner than planned.

        The child may be able to do another share, and is asked for one if no other child is idle.
        """
        share = self.shares.find(task)
        if share is None or share.whole or (child != self._node and child not in share.providers):
            return None
        self._failed.setdefault(task, {})[child] = troubles
        if self._assigned.get(child) == task:
            del self._assigned[child]
            self._worked.setdefault(child, now - self.since)  # perhaps the only hint of how long a share takes
            if child in self._here:
                self._idle_since[child] = now
        return self._sooner(now)

    def beyond_help(self) -> tuple[Trouble, ...]:
        """The failures at shares that no other child can do; none as long as the task can be done.

        A share at which two nodes failed would fail everywhere.
        """
        lost = []
        for share in self.shares.wanted():
            failed = self._failed.get(share.task, {})
            if len(failed) > 1 or (failed and len(share.providers) == 1):
                lost.append(failed)
                if share is self.shares.own or len(lost) > self.shares.spare:
                    return tuple(trouble for troubles in (*lost,) for one in troubles.values() for trouble in one)
        return ()

    def stood_in(self, task: int, vector: Vector) -> None:
        """The root has computed a share itself, in place of missing workers."""
        share = self.shares.find(task)
        if share is not None:
            for index in share.lacks():
                share.take(index, vector[self._settings.chunk_slice(index)], 1.0)

    def own_done(self) -> list[int]:
        """The node has computed its own unit. Return the children that were asked for it in the meantime."""
        own = self.shares.own
        if own is None:
            return []
        own.close()
        self._experience.on_time(own.task)
        at_work = self.at_work_on(own.task)
        self._lose_bets([(child, own.task) for child in at_work])
        return at_work

    def returned(self, child: int) -> None:
        """A child has joined, perhaps again."""
        self._here.add(child)

    def put_to_work(self, child: int) -> None:
        """A child joins during a task: it begins with its first share, whatever it was asked for before."""
        self._assigned[child] = self._first[self.shares.task][child]
        self._instead.pop(child, None)
        self._idle_since.pop(child, None)
        for effort in self._efforts.values():
            if effort.offered_by == child:
                effort.offered_by, effort.offered_at = -1, None

    def lost(self, child: int) -> None:
        """A child is gone and cannot be asked."""
        self._here.discard(child)
        self._idle_since.pop(child, None)

    # -- assignments

    def assignments(self) -> list[tuple[int, int]]:
        """The children at work, each with its share."""
        return list(self._assigned.items())

    def at_work_on(self, task: int) -> list[int]:
        """The children that work on a share."""
        return [child for child, work in self._assigned.items() if work == task]

    def asked_instead(self, child: int, task: int) -> bool:
        """Whether a child was asked for this share as a replica."""
        return self._instead.get(child) == task

    @property
    def only_bytes_are_missing(self) -> bool:
        """Whether all shares are here or offered."""
        return all(share.missing == 0 or self._is_offered(share) for share in self.shares)

    def _is_offered(self, share: TreeShare) -> bool:
        effort = self._efforts.get(share.task)
        return effort is not None and effort.offered_at is not None

    def _effort(self, task: int) -> _Effort:
        return self._efforts.setdefault(task, _Effort())

    def _lose_bets(self, at_work: list[tuple[int, int]]) -> None:
        for child, task in at_work:
            if self._instead.get(child) == task:
                self._experience.on_time(task)

    # -- lateness (redundancy.py describes the policy)

    def _idle(self, child: int, now: float) -> float | None:
        if not self._redundant or child not in self._here:
            return None
        self._idle_since[child] = now
        missing_one = bool(self._failed) or len(self._here) < len(self.children)
        if child in self._instead or (missing_one and any(map(self._abandoned, self.shares.wanted()))):
            return self._sooner(now)  # missing shares are late already, or no child works on one
        return self._sooner(now + self._experience.head_start(self._worked.get(child, 0.0)))

    def due(self, now: float) -> tuple[list[tuple[int, int]], float | None]:
        """The children to ask now, each with its share, and when to check again."""
        self._wake = None
        asked: list[tuple[int, int]] = []
        if self._redundant and not self.shares.satisfied:
            for share in self.shares.wanted():
                moment, child = self._moment(share, now)
                if moment is not None and moment <= now and child is not None:
                    moment = self._bet(share, child, now, asked)
                if moment is not None:
                    self._sooner(max(moment, now))
        return asked, self._wake

    def _bet(self, share: TreeShare, child: int, now: float, asked: list[tuple[int, int]]) -> float | None:
        """Ask a child for a late share, unless too many such bets are open. Return when to check again."""
        if not (self._experience.is_needy(share.task) or self._abandoned(share)):
            open_bets = [until for one, until in self._bets.items() if one in self._assigned and until > now]
            if not self._experience.may_bet(len(open_bets)):
                return min(open_bets)
            self._experience.bet_made()
            self._bets[child] = now + self._allowed(share, now)
        asked.append((child, share.task))
        self.assign(child, share.task, now)
        return self._moment(share, now)[0]

    def _moment(self, share: TreeShare, now: float) -> tuple[float | None, int | None]:
        """When to ask for a missing share, and which replica; None if there is none to ask."""
        effort = self._efforts.get(share.task) or _Effort()
        if effort.offered_at is not None:
            arrives = effort.offered_at + HOLD * (effort.offered_at - self.since)
            if now < arrives:
                return arrives, None
            effort.offered_at = None
        failed = self._failed.get(share.task, {})
        idle = [
            (self._has_failed(child), self._idle_since[child], child)
            for child in share.providers
            if child in self._idle_since
            and child != effort.offered_by  # it offered the share, but no chunk arrived
            and child not in failed
        ]
        if not idle:
            return None, None  # the next child that becomes idle triggers another check
        child = min(idle)[2]
        if effort.asked_at is None and self._abandoned(share):
            return now, child
        allowed = self._allowed(share, now)
        lag = 0.0 if share is self.shares.own else self._experience.lag(share.task)
        if lag is None:  # no history: only the times of the others are known
            quickest = min((self._first_at[one] for one in share.providers if one in self._first_at), default=0.0)
            moment = self.since + quickest + self._experience.head_start(quickest)
        else:
            moment = self.since + lag + allowed
        return (moment if effort.asked_at is None else max(moment, effort.asked_at + allowed)), child

    def _allowed(self, share: TreeShare, now: float) -> float:
        """Seconds that a child may take for a share, once it has what it needs."""
        took = min((self._worked[one] for one in share.providers if one in self._worked), default=now - self.since)
        return took + self._experience.head_start(took)

    def _abandoned(self, share: TreeShare) -> bool:
        """Whether all nodes at work on a share are known to be gone or to have failed: waiting is useless."""
        failed = self._failed.get(share.task, {})
        if share is self.shares.own:
            if self._node not in failed:
                return False
        elif len(self._here) == len(self.children) and not failed:
            return False
        return not self._is_offered(share) and not any(child in self._here for child in self.at_work_on(share.task))

    def _has_failed(self, child: int) -> bool:
        """Whether a child has failed at anything in this round."""
        return any(child in failed for failed in self._failed.values())

    def _sooner(self, moment: float) -> float | None:
        if self._wake is not None and self._wake <= moment:
            return None
        self._wake = moment
        return moment

    def check(self) -> None:
        """Raise if the ledger contradicts itself."""
        for share in self.shares:
            if share.missing != len(share.lacks()):
                raise AssertionError(f"share {share.task} has a wrong count of missing chunks")
        if not set(self._assigned) <= set(self.children):
            raise AssertionError("the ledger waits for nodes that are not its children")
