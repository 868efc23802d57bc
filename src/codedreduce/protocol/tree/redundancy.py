"""When a parent asks a child for a share that another has not delivered.

Calm rounds must do no redundant work, a straggler must not be waited for, and what looks like stragglers may be cores
that are wanted by others. So:

- A child that has delivered is idle. The first of a group to be so shows how long a share takes, counted from when it
  had its model. Another is late when it has had as long, from when it had its model, and a *head start* more; then an
  idle replica is asked for what it owes.
- The head start is a fraction of the time a share took; more, if children usually deliver that far apart; and as long
  as a whole share while there is no history.
- If the late one is known to be gone there is no head start to give.
- A share that was offered is computed; only its bytes are missing. It has as long again to arrive as the round had
  taken until then, which covers the transfers of a calm round, since as many vectors had gone the other way.
- Whoever was asked for a share in another's place has as long for it, before the next replica is asked too.
- A parent's own unit is a share like any other, which every child can do: a parent that computes slowly and passes on
  quickly costs one more unit, not a subtree's.
- Asking is a bet, won if the replica delivers first. Who needed it last time is bet on again. Other bets are made
  out of what was saved: every share that is delivered adds a fifth of one, a bet that is lost takes one away. With
  nothing saved a fifth of the children may be bet on at a time. So a storm of stragglers is met at once, and where
  bets do not pay, as on cores that others keep busy, few are made.

Nothing is lost if the decision is wrong: the first copy of a share counts, and the late worker's may be it.
"""

from __future__ import annotations

from collections import deque

from codedreduce.protocol.core.budget import UNKNOWN, Budget
from codedreduce.protocol.core.settings import Settings

#: Deliveries that are remembered, of all children together, to see how far apart they are.
REMEMBERED = 64

#: Which part of the deliveries is taken to be calm: the spread is that of the quicker ones.
QUICKER = 0.4


class Experience(Budget):
    """What a parent has learnt of its children: when they have their models, how far apart they deliver, what pays."""

    def __init__(self, children: int, settings: Settings) -> None:
        super().__init__(children)
        self._settings = settings
        self._children = children
        self._lag: dict[int, float] = {}  # by how much a child's round is longer than its work
        self._after: deque[float] = deque(maxlen=REMEMBERED)  # how much later than it could have each one delivered
        self._news = 0
        self._spread = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is a history to learn from: as much as a round without stragglers gives."""
        return len(self._after) >= min(REMEMBERED, self._children)

    def lag(self, child: int) -> float | None:
        """Seconds that a child's round is longer than its work: until it has its model, and until its share is here."""
        return self._lag.get(child)

    def delivered(self, child: int, after: float, worked: float, quickest: float) -> None:
        """A child delivered its first share, so long after the round's begin, having worked on it for so long."""
        self.save()
        lag = max(0.0, after - worked)
        known = self._lag.get(child)
        self._lag[child] = lag if known is None else 0.75 * known + 0.25 * lag
        self._after.append(max(0.0, after - self._lag[child] - quickest))
        self._news += 1
        if self._news >= self._children:  # about a round's
            self._news = 0
            self._spread = sorted(self._after)[int(QUICKER * (len(self._after) - 1))]

    def head_start(self, took: float) -> float:
        """Seconds that a child may be later than one that took so long."""
        if not self._settings.head_start:
            return self._settings.least_head_start  # none is wanted
        fraction = self._settings.head_start if self.is_known else max(UNKNOWN, self._settings.head_start)
        return max(fraction * took, self._spread, self._settings.least_head_start)
