"""When a parent asks a child for a share that another has not delivered.

Calm rounds must do no redundant work, and a straggler must not be waited for. So:

- A child that has delivered is idle. The first of a group to be so shows how long a share takes; with a head start of a
  fraction of that time the others are late, and any idle replica is asked for what they owe.
- If the others are known to be gone there is no head start to give.
- A share that was offered is computed; only its bytes are missing. It has as long again to arrive as the round had
  taken until then, which covers the transfers of a calm round, since as many vectors had gone the other way.
- Whoever was asked for a share in another's place has as long for it, before the next replica is asked too.
- A parent's own unit is a share like any other, which every child can do: a parent that computes slowly and passes on
  quickly costs one more unit, not a subtree's.

Nothing is lost if the decision is wrong: the first copy of a share counts, and the late worker's may be it.
"""

from __future__ import annotations

from collections.abc import Set

from codedreduce.protocol.collector import Collector, ShareState
from codedreduce.protocol.settings import Settings


class Redundancy:
    """Keeps who is idle and since when, and says who should do what next."""

    def __init__(self, collector: Collector, present: Set[int], settings: Settings) -> None:
        self._collector = collector
        self._present = present
        self._settings = settings
        self._idle_since: dict[int, float] = {}
        self._first_idle: dict[int, float] = {}
        self.wake: float | None = None

    def start(self) -> None:
        """A new task: everyone is at work."""
        self._idle_since.clear()
        self._first_idle.clear()
        self.wake = None

    def lost(self, child: int) -> None:
        """A child is gone and cannot be asked."""
        self._idle_since.pop(child, None)

    def idle(self, child: int, now: float) -> float | None:
        """A child has nothing to do; when to look again, if sooner than planned."""
        self._idle_since[child] = now
        if self._first_idle.setdefault(child, now) < now:
            return self._sooner(now)  # not its first share: whatever is missing is late already
        if len(self._present) < len(self._collector.children) and any(map(self._abandoned, self._collector.wanted())):
            return self._sooner(now)
        took = now - self._collector.since
        return self._sooner(now + self._head_start(took))

    def _head_start(self, took: float) -> float:
        return max(self._settings.head_start * took, self._settings.least_head_start)

    def due(self, now: float) -> tuple[list[tuple[int, int]], float | None]:
        """Who should now do which share, and when to look again."""
        self.wake = None
        begun: list[tuple[int, int]] = []
        since = self._collector.since
        next_look: float | None = None
        for share in self._collector.wanted():
            if share.offered_at is not None:
                arrives = share.offered_at + self._settings.hold * (share.offered_at - since)
                if now < arrives:
                    next_look = arrives if next_look is None else min(next_look, arrives)
                    continue
                share.offered_at = None
            idle = [
                (self._idle_since[child], child)
                for child in share.providers
                if child in self._idle_since and child != share.offered_by  # it offered, and nothing came
            ]
            if not idle:
                continue  # the next child to become idle asks again
            child = min(idle)[1]
            took = min(self._first_idle[one] for one in share.providers if one in self._first_idle) - since
            late_after = took + self._head_start(took)
            moment = since + (took if self._abandoned(share) else late_after)
            if share.begun_at is not None:
                moment = max(moment, share.begun_at + late_after)
            if moment <= now:
                share.begun_at = now
                del self._idle_since[child]
                begun.append((child, share.task))
                if len(idle) == 1:
                    continue
                moment = now + late_after
            next_look = moment if next_look is None else min(next_look, moment)
        if next_look is not None:
            self._sooner(next_look)
        return begun, self.wake

    def _abandoned(self, share: ShareState) -> bool:
        """Whether those at work on a share are known to be gone: then there is nothing to wait for."""
        if len(self._present) == len(self._collector.children) or share is self._collector.own:
            return False
        at_work = (child for child, task in self._collector.assigned.items() if task == share.task)
        return share.offered_at is None and not any(child in self._present for child in at_work)

    def _sooner(self, moment: float) -> float | None:
        if self.wake is not None and self.wake <= moment:
            return None
        self.wake = moment
        return moment
