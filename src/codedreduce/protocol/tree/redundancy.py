"""When a parent asks a child for a share that another has not delivered.

A fault-free round must do no redundant work, and a round must not wait for a straggler. Apparent stragglers may also
be caused by cores that other processes use. So:

- A child that has delivered is idle. The first idle child of a group shows how long a share takes, counted from when
  it had its model. Another child is late when it has had its model for as long, and for a *head start* more. Then the
  parent asks an idle replica for the late share.
- The head start is a fraction of the time a share took. It is longer if children usually deliver that far apart, and
  as long as a whole share while there is no history.
- A late child that is known to be gone gets no head start.
- A share that was offered is computed; only its bytes are missing. It may take as long to arrive as the round had
  taken until the offer. This covers the transfers of a fault-free round: as many vectors had gone the other way.
- A replica that was asked has as long for the share, before the parent asks the next replica too.
- A parent's own unit is a share like any other, which every child can do. So a parent that computes slowly and
  forwards quickly costs one more unit, not a subtree's.
- Asking is a bet, won if the replica delivers first. A share that needed a replica last time is always bet on again.
  Other bets are paid from savings: every delivered share adds a fifth of a bet, and a lost bet takes one away.
  Without savings, bets on a fifth of the children may be open at a time. So a parent reacts to many stragglers at
  once. It makes few bets where they do not pay, as on cores that other processes keep busy.

Nothing is lost if the decision is wrong: the first copy of a share counts, and it may be the late child's.
"""

from __future__ import annotations

from collections import deque

from codedreduce.protocol.core.budget import Budget
from codedreduce.protocol.core.settings import Settings

#: Deliveries that are kept, of all children together, to measure their spread.
REMEMBERED = 64

#: The part of the deliveries that counts as fault-free: the spread is that of the quicker ones.
QUICKER = 0.4


class Experience(Budget):
    """A parent's history of its children: when they have their models, how far apart they deliver, which bets pay."""

    def __init__(self, children: int, settings: Settings) -> None:
        super().__init__(children, settings.policy)
        self._settings = settings
        self._children = children
        self._lag: dict[int, float] = {}  # by child: seconds that its round is longer than its work
        self._after: deque[float] = deque(maxlen=REMEMBERED)  # by delivery: seconds after the earliest possible time
        self._news = 0
        self._spread = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is enough history: as many deliveries as a round without stragglers gives."""
        return len(self._after) >= min(REMEMBERED, self._children)

    def lag(self, child: int) -> float | None:
        """Seconds that a child's round is longer than its work: the transfers of its model and of its share."""
        return self._lag.get(child)

    def delivered(self, child: int, after: float, worked: float, quickest: float) -> None:
        """A child delivered its first share `after` seconds into the round, with `worked` seconds of work."""
        self.save()
        lag = max(0.0, after - worked)
        known = self._lag.get(child)
        self._lag[child] = lag if known is None else 0.75 * known + 0.25 * lag
        self._after.append(max(0.0, after - self._lag[child] - quickest))
        self._news += 1
        if self._news >= self._children:  # about once per round
            self._news = 0
            self._spread = sorted(self._after)[int(QUICKER * (len(self._after) - 1))]

    def head_start(self, took: float) -> float:
        """Seconds that a child may be later than one that took `took` seconds."""
        if not self._settings.head_start:
            return self._settings.least_head_start  # switched off
        least = 0.0 if self.is_known else self._settings.policy.unknown_margin
        fraction = max(least, self._settings.head_start)
        return max(fraction * took, self._spread, self._settings.least_head_start)
