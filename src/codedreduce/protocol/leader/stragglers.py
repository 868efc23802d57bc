"""When a rank is late, and what the leader does then.

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
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from statistics import median

from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.assignments import Assignment
from codedreduce.protocol.leader.pace import Links, Pace

#: Entries of the agenda above which the void ones are removed.
MOST_VOID = 64


class Stragglers:
    """The expected times of ranks in this round; and an agenda: which ranks to check, and when."""

    def __init__(self, settings: Settings, pace: Pace, links: Links) -> None:
        self._settings = settings
        self._policy = policy = settings.policy
        self._pace = pace
        self._links = links
        self._rounds: deque[float] = deque(maxlen=policy.rounds_timed)
        self._round = 0.0
        self._slower: list[float] = []  # block times of ranks that have finished, as multiples of the expected ones
        self._later: list[float] = []  # seconds by which these ranks began later than expected
        self.slowdown = 1.0
        self._delay = 0.0
        self._most = MOST_VOID
        self._agenda: list[
            tuple[float, int, int, Assignment]
        ] = []  # when to check which rank; void if the stamp differs

    def begin(self) -> None:
        """Begin a new round."""
        self._round = median(self._rounds) if self._rounds else 0.0
        self._slower = []
        self._later = []
        self.slowdown = 1.0
        self._delay = 0.0
        self._agenda = []

    def over(self, seconds: float) -> None:
        """A round is over, after `seconds`."""
        self._rounds.append(seconds)

    def expect(self, assignment: Assignment, now: float, lag: float = 0.0) -> None:
        """A rank has work from now on: note when it should be done, and when to check."""
        each = self._pace.block(assignment.rank) or self._pace.usual()
        if each is None:
            return  # no rank's pace is known
        assignment.each = each
        assignment.since = assignment.moved = now
        assignment.expected = now + lag + assignment.blocks * each
        self.look_at(assignment, self.at(assignment, self._policy.ask_after))

    def through(self, assignment: Assignment, block: float, now: float) -> None:
        """A rank has finished its assignment: update how much slower and later all ranks are in this round."""
        expected = assignment.expected - assignment.since
        if expected > 0:
            slower = max(1.0, block / assignment.each)
            insort(self._slower, slower)
            insort(self._later, max(0.0, now - assignment.since - slower * expected))
            self._pace.ended(max(0.0, (now - assignment.since) / expected - 1))
            self.slowdown = self._slower[len(self._slower) // 3]
            self._delay = self._later[len(self._later) // 3]

    def margin(self, assignment: Assignment) -> float:
        """The head start of a rank, in seconds."""
        settings, policy = self._settings, self._policy
        if not settings.head_start:
            return settings.least_head_start
        known = self._pace.block(assignment.rank) is not None
        fraction = settings.head_start if known else max(policy.unknown_margin, settings.head_start)
        expected = self.slowdown * (assignment.expected - assignment.since)
        of_a_round = policy.round_margin * settings.head_start * self._round
        return max(fraction * expected, of_a_round, settings.least_head_start, self._held_up())

    def at(self, assignment: Assignment, part: float) -> float:
        """When this fraction of a rank's margin has passed."""
        policy = self._policy
        expected = self.slowdown * (assignment.expected - assignment.since)
        late = part * self.margin(assignment)
        if part >= policy.stuck_not_begun:
            late = max(late, policy.vector_margin * self._links.vector)
        if part >= policy.stuck_silent:  # its work may be done twice
            late = max(late, self._pace.spread() * expected) + (0.0 if assignment.delivered else self._delay)
        return assignment.since + expected + late

    @property
    def least(self) -> float:
        """The least timeout for an answer."""
        return max(self._settings.least_head_start, self._held_up())

    def answers_by(self, assignment: Assignment, asked: float) -> float:
        """The deadline for the answer of a rank that was asked."""
        policy = self._policy
        timeout = max(policy.answer_elapsed * (asked - assignment.since), policy.answer_round * self._round)
        return asked + max(timeout, self.least)

    def _held_up(self) -> float:
        """How long a small message may wait behind vectors on a link."""
        unknown = 0.0 if self._links.is_known else self._settings.unknown_seconds
        return self._policy.vector_queue * max(self._links.vector, unknown)

    def seems_stuck(self, assignment: Assignment, now: float) -> bool:
        """Whether a rank that had made progress has done nothing for too long."""
        policy = self._policy
        late = max(policy.stuck_not_begun * self.margin(assignment), policy.vector_margin * self._links.vector)
        return now > assignment.moved + policy.blocks_without_news * assignment.pace(self.slowdown) + late

    # -- the agenda

    def look_at(self, assignment: Assignment, when: float) -> None:
        """Check a rank at that time, unless its assignment has changed."""
        heapq.heappush(self._agenda, (when, assignment.rank, assignment.stamp, assignment))
        if len(self._agenda) > self._most:  # mostly void: a rank reports its progress often
            self._agenda = [one for one in self._agenda if one[2] == one[3].stamp]
            heapq.heapify(self._agenda)
            self._most = max(MOST_VOID, 2 * len(self._agenda))

    def next_look(self) -> float:
        """The time of the next check."""
        while self._agenda and self._agenda[0][2] != self._agenda[0][3].stamp:
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else float("inf")

    def due(self, now: float) -> list[Assignment]:
        """The assignments to check now."""
        assignments = []
        while self.next_look() <= now:
            assignments.append(heapq.heappop(self._agenda)[3])
        return assignments
