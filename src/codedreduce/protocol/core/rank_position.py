"""Where a rank stands: in which state and round, and what its coordinator has said of rounds that begin and end."""

from __future__ import annotations

from codedreduce.protocol.core.messages import Go
from codedreduce.protocol.core.rank_table import ENDING, JOINING, READY, RENEWING, RESTING, RankState
from codedreduce.protocol.core.settings import Settings


class RankPosition:
    """The parts of a rank's machine read it, and say by its verbs where the rank is next."""

    def __init__(self, node: int, settings: Settings, ranks: int) -> None:
        self.node = node
        self._ranks = ranks
        self.state: RankState = JOINING
        self.round = settings.after  # the one this rank's own model is in, or has last been in
        self.first = settings.after + 1  # the first round of this rank
        self.generation = settings.generation
        self.go = Go()  # the last round that the coordinator has let begin, as far as this rank knows
        self.over = 0  # the last round that is over, as one that leads has said
        self.end: int | None = None  # the round after which the run is over, if that is known
        self.has_state = True  # whether its script's model is that of the run, or will be by what it is given
        self.is_leaving = False  # whether this rank shall leave while the run goes on
        self.began_at = 0.0
        self.round_took = 0.0

    def become(self, state: RankState) -> None:
        """Go on in another state, in the same round."""
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
        """This rank has the state that another had after a round."""
        self.state = RESTING
        self.round = round_
        self.has_state = True

    def come_after(self, round_: int) -> None:
        """This rank comes when others are through with a round: it has nothing of what they have."""
        self.rest_after(round_)
        self.first = round_ + 1
        self.has_state = False

    def lose_state(self) -> None:
        """What this rank's script has is not what the others have."""
        self.has_state = False

    def would_leave(self) -> None:
        """This rank shall leave, when others can go on without it."""
        self.is_leaving = True

    def leave(self) -> int:
        """The script leaves its loop; after which round."""
        if self.state not in (RESTING, ENDING):
            self.round -= 1
        self.state = ENDING
        self.end = self.round
        return self.round

    def speak_of(self, generation: int) -> None:
        """Of the plan, from now on."""
        self.generation = generation

    @property
    def coordinator(self) -> int:
        """Who leads this generation: a generation is of one rank, whether it came to lead it or not."""
        return self.generation % self._ranks

    def leader_of(self, generation: int) -> int:
        """Who leads a generation, if anybody does."""
        return generation % self._ranks

    def own_generation(self, after: int) -> int:
        """The first generation after another that this rank could lead."""
        return after + 1 + (self.node - after - 1) % self._ranks

    @property
    def progress(self) -> int:
        """How far this rank is: the round it is in; less if it takes a state, 0 if it has none."""
        if not self.has_state:
            return 0
        return 1 if self.state is RENEWING else self.through + 1

    @property
    def candidacy(self) -> int:
        """How far a rank is that would lead; 0 of one that would not."""
        return 0 if self.is_leaving else self.progress

    def take(self, go: Go) -> None:
        """The coordinator has let a round begin."""
        self.go = go

    def is_over(self, round_: int) -> None:
        """One that leads is through with a round."""
        self.over = max(self.over, round_)

    def is_to_end(self, round_: int) -> None:
        """The run is over after a round."""
        self.end = round_

    @property
    def through(self) -> int:
        """The last round that this rank is through with."""
        return self.round if self.state in (JOINING, RESTING, ENDING) else self.round - 1

    @property
    def is_on(self) -> bool:
        """Whether the round that this rank is in is the one that the coordinator has let begin last."""
        return self.go.round == self.round

    @property
    def is_behind(self) -> bool:
        """Whether the round that this rank is in is over."""
        return self.round < self.go.round or self.round <= max(self.over, self.end or 0)
