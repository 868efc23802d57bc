"""Whether the leader answers: a stopped process, or a host that stalls, keeps its connections.

A rank asks the leader when a round takes longer than usual. The leader answers at once, whatever its script does. The
timeout for an answer follows from earlier answers. A rank that gets no answer in many times that long treats the leader
as failed. A wrong suspicion costs little: the leader admits again a rank that lost it, or follows another leader.
"""

from __future__ import annotations

from codedreduce.timing import Timing

#: A rank asks when a round has taken ROUNDS times as long as the last one, and `liveness_query` seconds. It asks again,
#: ever more rarely, each time that the round has taken longer by the fraction AGAIN.
ROUNDS, AGAIN = 2.0, 0.5

#: The timeout for an answer: at least `liveness_timeout` seconds, and TIMES the longest answer so far.
TIMES = 8.0

#: The timeout grows by this factor whenever this rank gave up a leader.
LONGER = 2.0


class LeaderLiveness:
    """The question that awaits the leader's answer, and how long its answers took."""

    def __init__(self, timing: Timing) -> None:
        self._least_wait = timing.liveness_query
        self._longest = timing.liveness_timeout / TIMES
        self._since = 0.0  # when the last round ended
        self._asked: tuple[int, float] | None = None  # generation of the leader and time, while no answer has come

    def begin(self, now: float) -> None:
        """Note the end of a round."""
        self._since = now

    def when_to_ask(self, round_took: float, now: float) -> float:
        """When to ask the leader next."""
        self._asked = None
        return now + max(self._least_wait, ROUNDS * round_took, AGAIN * (now - self._since))

    def ask(self, generation: int, now: float) -> float:
        """Note that this rank asks the leader; return when the leader should have answered."""
        self._asked = (generation, now)
        return now + TIMES * self._longest

    def is_asked(self, generation: int) -> bool:
        """Whether this rank awaits an answer."""
        return self._asked is not None and self._asked[0] == generation

    def answers(self, generation: int, now: float) -> None:
        """The leader has sent a message that counts as an answer."""
        if self._asked is not None and self._asked[0] == generation:
            self._longest = max(self._longest, now - self._asked[1])
            self._asked = None

    def give_up(self, now: float) -> float:
        """Give up a leader that has not answered; return the seconds waited. The next timeout is longer."""
        assert self._asked is not None
        waited = now - self._asked[1]
        self._asked = None
        self._longest *= LONGER
        return waited
