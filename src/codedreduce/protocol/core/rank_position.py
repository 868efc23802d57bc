"""The position of a rank: its state and round, and what its leader has reported about rounds that begin and end."""

from __future__ import annotations

from codedreduce.protocol.core.messages import Go
from codedreduce.protocol.core.rank_table import ENDING, JOINING, READY, RENEWING, RESTING, RankState
from codedreduce.protocol.core.settings import Settings


class RankPosition:
    """The parts of a rank's machine read the position, and change it with its methods."""

    def __init__(self, node: int, process: int, settings: Settings, ranks: int) -> None:
        self.node = node
        self.timing = settings.timing
        self.process = process  # identifies this process among those of the rank
        self._ranks = ranks
        self.state: RankState = JOINING
        self.round = settings.after  # the current or the last round of this rank's own model
        self.first = settings.after + 1  # the first round of this rank
        self.generation = settings.generation
        self.go = Go()  # the last round that the leader has begun, as far as this rank knows
        self.over = 0  # the last round that is over, as a leader has reported
        self.end: int | None = None  # the last round of the run, if it is known
        self.has_state = True  # whether the script has the model of the run, or has been given its state
        self.is_leaving = False  # whether this rank is to leave while the run goes on
        self.began_at = 0.0
        self.round_took = 0.0

    def become(self, state: RankState) -> None:
        """Change the state, within the same round."""
        self.state = state

    def begin(self, round_: int, now: float) -> None:
        """The script begins a round."""
        self.round = round_
        self.began_at = now
        self.state = READY

    def rest(self, now: float) -> None:
        """The round is over."""
        self.state = RESTING
        self.round_took = now - self.began_at

    def rest_after(self, round_: int) -> None:
        """Adopt the state that another rank had after a round."""
        self.state = RESTING
        self.round = round_
        self.has_state = True

    def come_after(self, round_: int) -> None:
        """Join after the others have finished a round: this rank has nothing of their state."""
        self.rest_after(round_)
        self.first = round_ + 1
        self.has_state = False

    def lose_state(self) -> None:
        """Record that the script's state differs from that of the others."""
        self.has_state = False

    def would_leave(self) -> None:
        """Record that this rank is to leave when the others can go on without it."""
        self.is_leaving = True

    def leave(self) -> int:
        """The script leaves its loop; return the last round that it finished."""
        if self.state not in (RESTING, ENDING):
            self.round -= 1
        self.state = ENDING
        self.end = self.round
        return self.round

    def speak_of(self, generation: int) -> None:
        """Set the generation of the plan."""
        self.generation = generation

    @property
    def leader(self) -> int:
        """The leader of this generation: a generation belongs to one rank, whether it won the election or not."""
        return self.generation % self._ranks

    def leader_of(self, generation: int) -> int:
        """The only rank that can lead a generation."""
        return generation % self._ranks

    def own_generation(self, after: int) -> int:
        """The first generation after another that this rank could lead."""
        return after + 1 + (self.node - after - 1) % self._ranks

    @property
    def progress(self) -> int:
        """The progress of this rank: the round it is in; 1 while it takes a state, 0 if it has none."""
        if not self.has_state:
            return 0
        return 1 if self.state is RENEWING else self.through + 1

    @property
    def candidacy(self) -> int:
        """The progress that this rank offers as a candidate; 0 if it is leaving."""
        return 0 if self.is_leaving else self.progress

    def take(self, go: Go) -> None:
        """The leader has begun a round."""
        self.go = go

    def is_over(self, round_: int) -> None:
        """A leader has finished a round."""
        self.over = max(self.over, round_)

    def is_to_end(self, round_: int) -> None:
        """Set the last round of the run."""
        self.end = round_

    @property
    def through(self) -> int:
        """The last round that this rank has finished."""
        return self.round if self.state in (JOINING, RESTING, ENDING) else self.round - 1

    @property
    def is_past_end(self) -> bool:
        """True if the script has begun a round after the last one."""
        return self.end is not None and self.round > self.end

    @property
    def is_on(self) -> bool:
        """True if this rank's round is the last one that the leader has begun."""
        return self.go.round == self.round

    @property
    def is_behind(self) -> bool:
        """True if this rank's round is over."""
        return self.round < self.go.round or self.round <= max(self.over, self.end or 0)
