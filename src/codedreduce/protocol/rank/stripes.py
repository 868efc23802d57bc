"""The reducers of the chunks of the sum, in the current round and in the last ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from codedreduce.protocol.core.messages import Go, Keep
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import StripedPlan


class Stripes:
    """The stripes of a round, as its leader defined them, and their reducers."""

    def __init__(self, plan: StripedPlan, settings: Settings) -> None:
        self._plan = plan
        self._chunks = settings.chunks
        self._keepers = settings.keepers(plan)
        self.rounds_held = settings.rounds_held(self._keepers)
        self._stripes: tuple[range, ...] = ()
        self._keeper_of: list[int] = []  # chunk by chunk, in the current round
        self._rounds: OrderedDict[int, list[int]] = OrderedDict()

    def begin(self, go: Go) -> None:
        """A round begins."""
        self._stripes = self._plan.stripes(self._chunks, self._plan.weights(self._keepers, dict(go.keepers)))
        self._keeper_of = [rank for rank, stripe in enumerate(self._stripes) for _ in stripe]
        self._rounds[go.round] = self._keeper_of
        while len(self._rounds) > self.rounds_held:
            self._rounds.popitem(last=False)

    def of(self, rank: int) -> range:
        """The stripe that a rank reduces by plan."""
        return self._stripes[rank]

    def keeper(self, index: int) -> int:
        """The reducer of a chunk in the current round."""
        return self._keeper_of[index]

    def is_kept_by(self, rank: int) -> bool:
        """True if a rank reduces any chunk in the current round."""
        return rank in self._keeper_of

    def keepers(self, round_: int) -> list[int] | None:
        """The reducers of the chunks of a past round, if they are still known."""
        return self._rounds.get(round_)

    def change(self, message: Keep) -> range:
        """Give a stripe another reducer; return its chunks, none if there is no such stripe or rank."""
        if message.stripe >= len(self._stripes) or message.keeper not in self._plan.computing:
            return range(0)
        for index in self._stripes[message.stripe]:
            self._keeper_of[index] = message.keeper
        return self._stripes[message.stripe]

    def in_order(self, rank: int) -> Iterator[int]:
        """The chunks in a rank's order of sending: the first of each stripe, then the second; its own stripe last."""
        ranks = self._plan.workers
        stripes = [self._stripes[(rank + step) % ranks] for step in range(1, ranks + 1)]
        longest = max(len(stripe) for stripe in stripes)
        return (stripe[position] for position in range(longest) for stripe in stripes if position < len(stripe))
