"""Whether the one that leads answers: a process that is stopped, or a machine that stalls, keeps its connections.

A rank whose round takes longer than is usual asks, and whoever leads answers at once, whatever its script does. How
long an answer may take follows from those that came; one that does not come in many times as long is taken for a leader
that is lost. If that was wrong it costs little: it lets in again who says that it has nobody, or follows another.
"""

from __future__ import annotations

#: A timer: the one that leads is to be asked, or should have answered.
SILENCE = "silence"

#: It is asked when a round has taken so many times as long as the last one, and so many seconds; then ever more rarely:
#: when it has taken such a part longer.
ROUNDS, LEAST_WAIT, AGAIN = 2.0, 1.0, 0.5

#: An answer may take so many seconds at least, and so many times as long as the longest that came.
LEAST_PATIENCE, TIMES = 2.0, 8.0

#: And so many times longer whenever a leader was given up.
LONGER = 2.0


class LeaderLiveness:
    """What was asked of the one that leads, and how long its answers took."""

    def __init__(self) -> None:
        self._longest = LEAST_PATIENCE / TIMES
        self._since = 0.0  # when a round was last over
        self._asked: tuple[int, float] | None = None  # which generation's leader, and when, if it has not answered

    def begin(self, now: float) -> None:
        """A round is over."""
        self._since = now

    def when_to_ask(self, round_took: float, now: float) -> float:
        """When it is to be asked next."""
        self._asked = None
        return now + max(LEAST_WAIT, ROUNDS * round_took, AGAIN * (now - self._since))

    def ask(self, generation: int, now: float) -> float:
        """It is asked; when it should have answered."""
        self._asked = (generation, now)
        return now + TIMES * self._longest

    def is_asked(self, generation: int) -> bool:
        """Whether an answer is awaited."""
        return self._asked is not None and self._asked[0] == generation

    def answers(self, generation: int, now: float) -> None:
        """The one that leads has said something that is an answer."""
        if self._asked is not None and self._asked[0] == generation:
            self._longest = max(self._longest, now - self._asked[1])
            self._asked = None

    def give_up(self, now: float) -> float:
        """It has not answered: for how long it was waited for. The next one is waited for longer."""
        assert self._asked is not None
        waited = now - self._asked[1]
        self._asked = None
        self._longest *= LONGER
        return waited
