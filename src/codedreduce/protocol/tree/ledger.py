"""The ledger of shares: what a node's task needs from its children, who is at work on what, and who is late.

It is told what happens (`start`, `arrived`, `offered`, `delivered`, `assign`, `lost`, ...) and answers what follows:
who can stop, when to look again, who should be asked for what (`due`). Nobody else writes in it.
"""

from __future__ import annotations

from codedreduce.protocol.core.messages import Trouble
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.redundancy import Experience
from codedreduce.protocol.tree.shares import Arrival, FirstShares, Shares, TreeShare
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector


class _Effort:
    """What is being done about a share that is missing."""

    __slots__ = ("asked_at", "offered_at", "offered_by")

    def __init__(self) -> None:
        self.offered_by = -1
        self.offered_at: float | None = None  # when it was offered, or a chunk of it came
        self.asked_at: float | None = None  # when somebody was asked for it in another's place


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
        self._first: dict[int, dict[int, int]] = {}  # by task: what each child does first
        self._first_task = next(plan.tasks(node))
        self._here: set[int] = set()
        self._efforts: dict[int, _Effort] = {}
        self._assigned: dict[int, int] = {}  # who is at work on what
        self._instead: dict[int, int] = {}  # who was asked for which share in another's place
        self._bets: dict[int, float] = {}  # by child: until when its bet counts as open
        self._idle_since: dict[int, float] = {}
        self._first_at: dict[int, float] = {}  # when a child had done its first share of this task, after its begin
        self._worked: dict[int, float] = {}  # and how long it had worked on it
        self._failed: dict[int, dict[int, tuple[Trouble, ...]]] = {}  # by share: who failed at it, and how
        self._wake: float | None = None
        self._redundant = plan.has_redundancy
        self._experience = Experience(len(self.children), settings)

    # -- a task begins and ends

    def start(self, task: int, now: float) -> None:
        """Forget what was, and collect for this task."""
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
        """Collect nothing: what is being done needs nothing from the children."""
        self.shares.clear()
        self._assigned = {}
        self._failed.clear()

    def end(self) -> list[tuple[int, int]]:
        """All is here: who is still at work, and on what."""
        still = self.assignments()
        self._lose_bets(still)
        self._assigned.clear()
        return still

    # -- what happens

    def arrived(self, child: int, task: int, index: int, data: Vector, covered: float, now: float) -> Arrival:
        """A chunk has come: keep it if it is the first copy."""
        share = self.shares.find(task)
        if share is None or share.whole:
            return Arrival.NOT_NEEDED
        if child not in share.providers:
            return Arrival.REPEATED
        arrival = share.take(index, data, covered)
        effort = self._efforts.get(task)
        if effort is not None and effort.offered_at is not None and arrival is not Arrival.REPEATED:
            effort.offered_at = now  # as long as chunks come, it is on its way
        if arrival is Arrival.COMPLETED:
            if self._instead.get(child) == task:
                self._experience.bet_won(task, counted=child in self._bets)
            else:
                self._experience.on_time(task)
            if self._instead:
                self._lose_bets([(one, task) for one in self.at_work_on(task) if one != child])
        return arrival

    def arrived_late(self, child: int, index: int, data: Vector, covered: float) -> None:
        """A chunk of the round before: only live compensation has a use for it."""
        if isinstance(self.shares, FirstShares):
            self.shares.take_late(child, index, data, covered)

    def offered(self, child: int, task: int, now: float) -> tuple[int, ...] | None:
        """A child has a share; which chunks of it are missing, or None if it is not needed."""
        share = self.shares.find(task)
        if share is None or share.whole or child not in share.providers:
            return None
        effort = self._effort(task)
        effort.offered_by, effort.offered_at = child, now
        return share.lacks()

    def assign(self, child: int, task: int, now: float) -> None:
        """A child was asked for a share in another's place."""
        self._assigned[child] = task
        self._instead[child] = task
        self._effort(task).asked_at = now
        self._idle_since.pop(child, None)

    def delivered(self, child: int, task: int, worked: float, now: float) -> float | None:
        """A child has done a share, after so much work on it; when to look who is late, if sooner than planned."""
        if self._assigned.get(child) != task:
            return None
        del self._assigned[child]
        if self._redundant and child not in self._worked and child not in self._instead:
            self._first_at[child] = now - self.since
            self._worked[child] = worked
            if self.shares.task == self._first_task:  # begun with a model, like everyone's
                self._experience.delivered(child, now - self.since, worked, min(self._worked.values()))
        return self._idle(child, now)

    def dismissed(self, child: int, now: float) -> float | None:
        """Somebody else delivered what a child works on; when to look who is late, if sooner than planned."""
        del self._assigned[child]
        return self._idle(child, now)

    def failed(self, who: int, task: int, troubles: tuple[Trouble, ...], now: float) -> float | None:
        """A child, or the node itself at its own unit, cannot do a share; when to look who can, if sooner than planned.

        It may be able to do another one, and is asked for that if nobody else is idle.
        """
        share = self.shares.find(task)
        if share is None or share.whole or (who != self._node and who not in share.providers):
            return None
        self._failed.setdefault(task, {})[who] = troubles
        if self._assigned.get(who) == task:
            del self._assigned[who]
            self._worked.setdefault(who, now - self.since)  # nothing else may be known of how long a share takes
            if who in self._here:
                self._idle_since[who] = now
        return self._sooner(now)

    def beyond_help(self) -> tuple[Trouble, ...]:
        """Who failed at what nobody else is left to do, or also failed at; none as long as the task can be done.

        What failed at two of those that can do it would fail everywhere.
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
        """The root has computed a share itself, in the place of those who are missing."""
        share = self.shares.find(task)
        if share is not None:
            for index in share.lacks():
                share.take(index, vector[self._settings.chunk_slice(index)], 1.0)

    def own_done(self) -> list[int]:
        """The node has computed its own unit itself; who was asked for it in the meantime."""
        own = self.shares.own
        if own is None:
            return []
        own.close()
        self._experience.on_time(own.task)
        at_work = self.at_work_on(own.task)
        self._lose_bets([(child, own.task) for child in at_work])
        return at_work

    def returned(self, child: int) -> None:
        """A child is in, maybe anew."""
        self._here.add(child)

    def put_to_work(self, child: int) -> None:
        """A child is new in a task that is on: it begins with its first share, whatever was asked of it before."""
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

    # -- who is at what

    def assignments(self) -> list[tuple[int, int]]:
        """Who is at work on what."""
        return list(self._assigned.items())

    def at_work_on(self, task: int) -> list[int]:
        """The children that work on a share."""
        return [child for child, work in self._assigned.items() if work == task]

    def asked_instead(self, child: int, task: int) -> bool:
        """Whether a child was asked for this share in another's place."""
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
                self._experience.bet_lost(task)

    # -- who is late (the policy is told in redundancy.py)

    def _idle(self, child: int, now: float) -> float | None:
        if not self._redundant or child not in self._here:
            return None
        self._idle_since[child] = now
        missing_one = bool(self._failed) or len(self._here) < len(self.children)
        if child in self._instead or (missing_one and any(map(self._abandoned, self.shares.wanted()))):
            return self._sooner(now)  # whatever is missing is late already, or nobody is at it
        return self._sooner(now + self._experience.head_start(self._worked.get(child, 0.0)))

    def due(self, now: float) -> tuple[list[tuple[int, int]], float | None]:
        """Who should now do which share, and when to look again."""
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
        """Ask a child for a late share, unless too many such bets are open; when to look again."""
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
        """When a share that is missing should be asked of a replica, and of whom; None if there is none to ask."""
        effort = self._efforts.get(share.task) or _Effort()
        if effort.offered_at is not None:
            arrives = effort.offered_at + self._settings.hold * (effort.offered_at - self.since)
            if now < arrives:
                return arrives, None
            effort.offered_at = None
        failed = self._failed.get(share.task, {})
        idle = [
            (self._has_failed(child), self._idle_since[child], child)
            for child in share.providers
            if child in self._idle_since
            and child != effort.offered_by  # it offered, and nothing came
            and child not in failed
        ]
        if not idle:
            return None, None  # the next child to become idle asks again
        child = min(idle)[2]
        if effort.asked_at is None and self._abandoned(share):
            return now, child
        allowed = self._allowed(share, now)
        lag = 0.0 if share is self.shares.own else self._experience.lag(share.task)
        if lag is None:  # nothing is known of it but when the others were done
            quickest = min((self._first_at[one] for one in share.providers if one in self._first_at), default=0.0)
            moment = self.since + quickest + self._experience.head_start(quickest)
        else:
            moment = self.since + lag + allowed
        return (moment if effort.asked_at is None else max(moment, effort.asked_at + allowed)), child

    def _allowed(self, share: TreeShare, now: float) -> float:
        """Seconds that whoever does a share may take for it, once it has what it needs."""
        took = min((self._worked[one] for one in share.providers if one in self._worked), default=now - self.since)
        return took + self._experience.head_start(took)

    def _abandoned(self, share: TreeShare) -> bool:
        """Whether those at work on a share are known to be gone, or failed: then there is nothing to wait for."""
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
                raise AssertionError(f"share {share.task} is miscounted")
        if not set(self._assigned) <= set(self.children):
            raise AssertionError("somebody else's children are waited for")
