"""When a rank is late, and what others then do of its work: pure functions of what the leader knows of it.

The leader expects the usual pace of a rank, slowed down as much as the ranks that have finished in this round. After
the expected time a rank has a *margin*, the head start. It is a fraction of that time, or a smaller fraction of a round
where rounds are mostly sending. While there is no history the margin is as long as the work itself.

- After a quarter of the margin the leader asks the rank for its progress, as soon as another rank is idle. That costs
  two small messages. A rank that answers is alive. Idle ranks can take what it has not begun; nothing is done twice.
- After half of the margin a rank that answers and has not begun is considered stuck: others do all of its work. That is
  one more vector on a helper's link, so the rank must be late by at least half of a vector's time. Where a unit is one
  block the leader cannot see that a rank has begun: there the limit is all of the margin.
- After all of the margin a rank that does not answer is considered stuck, too. If the usual spread of the quicker ranks
  is longer than the margin, it counts instead. Their late start in this round is added. A rank that reports an earlier
  round gets twice the margin.

`decide` returns what to do, and why. `relieve` says how idle ranks take over the work of a late rank. They take blocks
from the last one backwards, as many as let all finish soonest. The owner keeps what it has begun, unless it seems to be
stuck. Then the idle ranks take all of its blocks, and may repeat some.

A block that travels alone is one more vector on a link. Where vectors are short compared with blocks, helpers take
blocks one by one, last of all the one that the owner may be computing. Where vectors are long, one helper computes as
many blocks as possible into one vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.schemes import Part


class Remedy(Enum):
    """What the leader does about a late rank, or about a reducer whose sums do not arrive."""

    WAIT = auto()
    ASK = auto()  # for its progress, or for the units that it lacks
    TAKE_REST = auto()  # others do what it has not begun
    TAKE_ALL = auto()  # others do all of its work, also what it may have begun
    REPLACE = auto()  # others do all of its work, and reduce its stripes
    REDO = auto()  # others compute again the units that it lacks


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What to do, why, and when to check again if nothing changes until then."""

    remedy: Remedy
    reason: str
    until: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankView:
    """What the leader knows of a rank with work, in seconds and points in time."""

    rank: int
    since: float  # when it got its work, or last delivered
    expected: float  # how long its work should take in this round
    margin: float
    pace: float  # of a block
    moved: float  # when it last showed progress
    heard: float | None = None  # when it last reported its progress
    asked: float | None = None  # when the leader asked it, if it has not answered
    is_present: bool = True
    is_current: bool = True  # at the current round
    is_helping: bool = False  # it does the work of others block by block, and reports every block
    has_begun: bool = False
    shows_progress: bool = True  # before its first unit is done
    vector: float = 0.0  # time of a vector on a link
    spread: float = 0.0  # how much later than expected the quicker ranks usually are
    delay: float = 0.0  # how much later the ranks of this round began
    round: float = 0.0  # usual length of a round
    least_timeout: float = 0.0  # of an answer

    def late_at(self, part: float, policy: Policy) -> float:
        """When this fraction of the margin has passed."""
        late = part * self.margin
        if part >= policy.stuck_not_begun:
            late = max(late, policy.vector_margin * self.vector)
        if part >= policy.stuck_silent:  # its work may be done twice
            late = max(late, self.spread) + self.delay
        return self.since + self.expected + late

    def silent_at(self, asked: float, policy: Policy) -> float:
        """When a rank that was asked counts as stuck if it does not answer."""
        timeout = max(policy.answer_elapsed * (asked - self.since), policy.answer_round * self.round)
        return max(asked + max(timeout, self.least_timeout), self.late_at(policy.stuck_silent, policy))

    def stalled_at(self, policy: Policy) -> float:
        """When a rank that has begun counts as stuck if it makes no more progress."""
        late = max(policy.stuck_not_begun * self.margin, policy.vector_margin * self.vector)
        return self.moved + policy.blocks_without_news * self.pace + late

    def lateness(self, now: float) -> str:
        """How late the rank is, in words."""
        late = max(0.0, now - self.since - self.expected)
        return f"late by {late:.3g} s" + (f", {late / self.margin:.2g} times its margin" if self.margin else "")


def decide(view: RankView, now: float, policy: Policy = DEFAULT_POLICY) -> Decision:
    """What to do about a rank with work while others are idle.

    >>> from dataclasses import replace
    >>> view = RankView(rank=3, since=0.0, expected=1.0, margin=0.2, pace=0.25, moved=0.0)
    >>> decide(view, 1.05).remedy
    <Remedy.ASK: 2>
    >>> decide(replace(view, asked=1.05), 1.5).reason
    'rank 3 has not answered for 0.45 s; it is late by 0.5 s, 2.5 times its margin'
    """
    name = f"rank {view.rank}"
    if not view.is_present:
        return Decision(remedy=Remedy.TAKE_ALL, reason=f"{name} cannot be reached")
    if view.is_helping and now < view.late_at(policy.ask_after, policy):
        return Decision(remedy=Remedy.TAKE_REST, reason=f"{name} does the work of others")
    if view.asked is not None:
        due, words = view.silent_at(view.asked, policy), f"{name} has not answered for {now - view.asked:.3g} s"
        if now < due:
            return Decision(remedy=Remedy.WAIT, reason=words, until=due)
        return Decision(remedy=Remedy.REPLACE, reason=f"{words}; it is {view.lateness(now)}")
    if view.heard is None or now - view.heard > policy.report_valid * view.pace:
        return Decision(remedy=Remedy.ASK, reason=f"{name} is {view.lateness(now)}", until=view.silent_at(now, policy))
    if view.has_begun:
        if now > view.stalled_at(policy):
            reason = f"{name} answers, but has not done a block for {now - view.moved:.3g} s"
            return Decision(remedy=Remedy.TAKE_ALL, reason=reason)
        return Decision(remedy=Remedy.TAKE_REST, reason=f"{name} is {view.lateness(now)}")
    if not view.is_current:
        part = policy.stuck_catching_up
    else:
        part = policy.stuck_not_begun if view.shows_progress else policy.stuck_silent
    due, words = view.late_at(part, policy), f"{name} answers, but has not begun"
    if now < due:
        return Decision(remedy=Remedy.WAIT, reason=words, until=due)
    return Decision(remedy=Remedy.TAKE_ALL, reason=f"{words}; it is {view.lateness(now)}")


Dealt = tuple[tuple[int, tuple[Part, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Helper:
    """An idle rank: its seconds per block, and how long its link is still busy."""

    rank: int
    block: float
    link: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The rest of a part: `done` blocks of it are done, `begun` are begun. Each takes the owner `pace` seconds, from
    `ahead` seconds on. An infinite pace: the owner does nothing.
    """

    part: Part
    pace: float
    done: int = 0
    begun: int = 0
    ahead: float = 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether the owner seems to do nothing."""
        return self.pace == float("inf")

    def through(self, end: int, vector: float) -> float:
        """When the owner finishes the blocks before `end`."""
        left = end - self.part.first - self.done
        return self.ahead + left * self.pace + vector if left > 0 else max(0.0, self.ahead)


@dataclass(frozen=True, kw_only=True)
class Relief:
    """The block before which the owner stops, and the parts of each helper."""

    end: int
    parts: Dealt


def relieve(
    rest: Rest, helpers: Sequence[Helper], vector: float, ranks: int, least_saving: float = DEFAULT_POLICY.least_saving
) -> Relief | None:
    """The work that helpers, the best ones first, take over; None if that saves too little (see `Policy`).

    >>> idle = [Helper(rank=0, block=1.0), Helper(rank=1, block=1.0)]
    >>> relieve(Rest(part=Part(3, 0, 8), pace=1.0, done=4, begun=5), idle, 0.0, 6)
    Relief(end=6, parts=((0, (Part(unit=3, first=6, last=7), Part(unit=3, first=7, last=8))),))
    >>> stuck = Rest(part=Part(3, 0, 4), pace=float("inf"))
    >>> relieve(stuck, idle, 9.0, 6)
    Relief(end=0, parts=((0, (Part(unit=3, first=0, last=4),)),))
    >>> relieve(stuck, idle[:1], 0.0, 6).parts[0][1][-1]
    Part(unit=3, first=0, last=1)
    """
    best: tuple[float, Relief] | None = None
    for relief in _ways(rest, helpers, vector):
        time = _time(rest, relief, helpers, vector, ranks)
        if best is None or time < best[0]:
            best = (time, relief)
    if best is None or best[0] > rest.through(rest.part.last, vector) - least_saving * helpers[0].block:
        return None
    return best[1]


def _ways(rest: Rest, helpers: Sequence[Helper], vector: float) -> Iterator[Relief]:
    part = rest.part
    if rest.is_stuck:
        for count in range(1, min(len(helpers), part.blocks) + 1):
            some = helpers[:count]
            if part.first == 0 and vector * part.blocks > some[0].block:
                yield Relief(end=0, parts=_in_one_go(part, some))
            elif part.first == 0:
                yield Relief(end=1, parts=_one_by_one(part, some))
            else:
                yield Relief(end=part.first, parts=_one_by_one(part, some))
        return
    for end in range(part.last - 1, part.first + rest.begun - 1, -1):
        taken = Part(part.unit, end, part.last)
        for count in range(1, min(len(helpers), taken.blocks) + 1):
            deal = _in_one_go if end == 0 else _one_by_one
            yield Relief(end=end, parts=deal(taken, helpers[:count]))


def _time(rest: Rest, relief: Relief, helpers: Sequence[Helper], vector: float, ranks: int) -> float:
    """When all would finish."""
    theirs = max(
        max(sum(part.blocks for part in parts) * helper.block + vector, helper.link + len(parts) * vector)
        for helper, (_, parts) in zip(helpers, relief.parts, strict=False)
    )
    vectors = sum(len(parts) for _, parts in relief.parts)
    own = 0.0 if rest.is_stuck else rest.through(relief.end, vector)
    return max(own, theirs) + vectors * vector / ranks


def _in_one_go(part: Part, helpers: Sequence[Helper]) -> Dealt:
    """The first helper computes the first blocks of a unit as one sum, the others compute single blocks."""
    end = -(-part.blocks // len(helpers))
    first = (helpers[0].rank, (Part(part.unit, 0, end),))
    return (first, *_one_by_one(Part(part.unit, end, part.last), helpers[1:])) if end < part.last else (first,)


def _one_by_one(part: Part, helpers: Sequence[Helper]) -> Dealt:
    """Deal out single blocks. Each helper does the later ones later, and a unit's first one last of all."""
    shares: list[list[Part]] = [[] for _ in helpers]
    for position, block in enumerate(range(part.last - 1, part.first - 1, -1)):
        shares[position % len(helpers)].append(Part(part.unit, block, block + 1))
    ordered = (sorted(share, key=lambda one: one.first or part.last) for share in shares)
    return tuple((helper.rank, tuple(share)) for helper, share in zip(helpers, ordered, strict=True) if share)
