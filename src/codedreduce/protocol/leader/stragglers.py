"""When a rank is late, and what then.

What is expected of a rank is its usual pace, slowed down as blocks of those were that are through in this round. After
that it has a *margin*, the head start: a fraction of the time expected, or a smaller one of a round where rounds are
mostly sending; as long as the work itself while there is no history.

- A quarter of it later a rank is asked how far it is, as soon as somebody is idle: that costs two small messages.
  Whoever answers is alive, and what it has not begun can be taken from it without doing anything twice.
- Half of it later a rank that answers and has not begun is taken to be stuck: others do all of its work. That is a
  vector more on a helper's link, so a rank is not taken to be stuck before it is late by half of what a vector takes.
  Where a unit is one block nobody can be seen to have begun: there it is all of the margin.
- When all of it has passed, or as much as the quicker ranks usually are apart, and as much as they began late in this
  round, a rank that does not answer is taken to be stuck, too. One that answers that it is at an earlier round is given
  twice as long.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from statistics import median

from codedreduce.protocol.core.budget import UNKNOWN
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.assignments import Assignment
from codedreduce.protocol.leader.links import Links
from codedreduce.protocol.leader.pace import Pace

#: Parts of the margin after which a rank is asked; and after which one is stuck that has not begun, that is silent, or
#: that has not got the last sum.
ASKED, NOT_BEGUN, SILENT, BEHIND = 0.25, 0.5, 1.0, 2.0

#: What somebody else does in a rank's place travels as one more vector: how late the rank must be, as a part of that.
WORTH_A_VECTOR = 0.5

#: The margin as a part of the time that a round takes: as a part of the head start.
OF_A_ROUND = 0.5

#: How long an answer may take, as a part of the time that has passed, and of a round.
ANSWER, ANSWER_OF_A_ROUND = 0.05, 0.02

#: How long a message may wait behind vectors, as a part of the time that one takes: a link sends what it has in turn.
BEHIND_VECTORS = 0.2

#: A rank that is under way is stuck after so many times a block's time without having done one, and half the margin.
BLOCKS_WITHOUT_NEWS = 2.0

#: Entries of the agenda above which the void ones are taken out.
MOST_VOID = 64

#: Rounds whose length is remembered.
REMEMBERED = 5


class Stragglers:
    """What is expected of ranks in this round; and an agenda: whom to look at, when."""

    def __init__(self, settings: Settings, pace: Pace, links: Links) -> None:
        self._settings = settings
        self._pace = pace
        self._links = links
        self._rounds: deque[float] = deque(maxlen=REMEMBERED)
        self._round = 0.0
        self._slower: list[float] = []  # how many times longer than expected blocks took those that are through
        self._later: list[float] = []  # by how many seconds they began later than expected
        self.slowdown = 1.0
        self._delay = 0.0
        self._most = MOST_VOID
        self._agenda: list[
            tuple[float, int, int, Assignment]
        ] = []  # when to look at whom; void if its stamp is another

    def begin(self) -> None:
        """A new round."""
        self._round = median(self._rounds) if self._rounds else 0.0
        self._slower = []
        self._later = []
        self.slowdown = 1.0
        self._delay = 0.0
        self._agenda = []

    def over(self, seconds: float) -> None:
        """A round took so long."""
        self._rounds.append(seconds)

    def expect(self, assignment: Assignment, now: float, lag: float = 0.0) -> None:
        """A rank has something to do from now on: note when that should be done, and look then."""
        each = self._pace.block(assignment.rank) or self._pace.usual()
        if each is None:
            return  # nothing is known of anybody
        assignment.each = each
        assignment.since = assignment.moved = now
        assignment.expected = now + lag + assignment.blocks * each
        self.look_at(assignment, self.at(assignment, ASKED))

    def through(self, assignment: Assignment, block: float, now: float) -> None:
        """A rank is through with what it was given: see whether all are slower, or later, in this round."""
        expected = assignment.expected - assignment.since
        if expected > 0:
            slower = max(1.0, block / assignment.each)
            insort(self._slower, slower)
            insort(self._later, max(0.0, now - assignment.since - slower * expected))
            self._pace.ended(max(0.0, (now - assignment.since) / expected - 1))
            self.slowdown = self._slower[len(self._slower) // 3]
            self._delay = self._later[len(self._later) // 3]

    def margin(self, assignment: Assignment) -> float:
        """The head start of a rank: seconds."""
        settings = self._settings
        if not settings.head_start:
            return settings.least_head_start
        known = self._pace.block(assignment.rank) is not None
        fraction = settings.head_start if known else max(UNKNOWN, settings.head_start)
        expected = self.slowdown * (assignment.expected - assignment.since)
        of_a_round = OF_A_ROUND * settings.head_start * self._round
        return max(fraction * expected, of_a_round, settings.least_head_start, self._held_up())

    def at(self, assignment: Assignment, part: float) -> float:
        """When such a part of a rank's margin has passed."""
        expected = self.slowdown * (assignment.expected - assignment.since)
        late = part * self.margin(assignment)
        if part >= NOT_BEGUN:
            late = max(late, WORTH_A_VECTOR * self._links.vector)
        if part >= SILENT:  # what it has in hand may be done twice
            late = max(late, self._pace.spread() * expected) + (0.0 if assignment.delivered else self._delay)
        return assignment.since + expected + late

    @property
    def least(self) -> float:
        """How long an answer may take in any case."""
        return max(self._settings.least_head_start, self._held_up())

    def answers_by(self, assignment: Assignment, asked: float) -> float:
        """When a rank that was asked should have answered."""
        patience = max(
            ANSWER * (asked - assignment.since), ANSWER_OF_A_ROUND * self._round, self._settings.least_head_start
        )
        return asked + max(patience, self._held_up())

    def _held_up(self) -> float:
        """How long a small message may be held up behind vectors that are on their way."""
        unknown = 0.0 if self._links.is_known else self._settings.unknown_seconds
        return BEHIND_VECTORS * max(self._links.vector, unknown)

    def seems_stuck(self, assignment: Assignment, now: float) -> bool:
        """Whether a rank that was under way has done nothing for too long."""
        late = max(NOT_BEGUN * self.margin(assignment), WORTH_A_VECTOR * self._links.vector)
        return now > assignment.moved + BLOCKS_WITHOUT_NEWS * assignment.pace(self.slowdown) + late

    # -- the agenda

    def look_at(self, assignment: Assignment, when: float) -> None:
        """Look at a rank then, unless its hand has changed."""
        heapq.heappush(self._agenda, (when, assignment.rank, assignment.stamp, assignment))
        if len(self._agenda) > self._most:  # mostly void: somebody says again and again how far it is
            self._agenda = [one for one in self._agenda if one[2] == one[3].stamp]
            heapq.heapify(self._agenda)
            self._most = max(MOST_VOID, 2 * len(self._agenda))

    def next_look(self) -> float:
        """When to look at somebody."""
        while self._agenda and self._agenda[0][2] != self._agenda[0][3].stamp:
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else float("inf")

    def whom(self, now: float) -> list[Assignment]:
        """Whom to look at now."""
        assignments = []
        while self.next_look() <= now:
            assignments.append(heapq.heappop(self._agenda)[3])
        return assignments
