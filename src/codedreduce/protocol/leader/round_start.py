"""The start of a round: the assignment of blocks, the stripes, and trials of slow ranks.

The leader distributes work among the ranks that take part by their seconds per block, and stripes by the load on their
links. A rank that is slow in every round does less. A rank that was present but did nothing in some rounds gets no
work; it still reduces its stripe. Such a rank, and one that is too slow for any work, gets a trial now and then: a
block that another rank computes, too. So the leader sees it recover.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.distribution import Allotment, Loads, Speed, sending, share_out, stripe_weights
from codedreduce.protocol.leader.pace import NEVER, Links, Pace
from codedreduce.schemes import Part, StripedPlan
from codedreduce.schemes.striped import FULL_WEIGHT


class RoundStart:
    """Plans of rounds, from the known paces of ranks and links."""

    def __init__(self, plan: StripedPlan, settings: Settings, pace: Pace, links: Links, own: int = 0) -> None:
        self._plan = plan
        self._own = own
        self._chunks = settings.chunks
        self._policy = settings.policy
        self._reducers = settings.reducers(plan)
        self._noise = settings.least_head_start
        self._pace = pace
        self._links = links
        self._taking_part: list[int] = []

    def share_out(self, taking_part: list[int], present: Iterable[int]) -> Loads:
        """The work of each rank."""
        plan = self._plan
        self._taking_part = taking_part
        speeds = {rank: self._speed(rank) for rank in taking_part}
        beginning = {rank: speed for rank, speed in speeds.items() if speed.lag < NEVER} or {
            self._own: self._hoped(self._own)
        }
        loads = share_out(
            len(plan.all_units), plan.blocks, beginning, lambda rank, unit: rank in plan.readers(unit),
            self._links.vector, plan.owner, self._policy,
        )  # fmt: skip
        self._cover(loads, set(present))
        return loads

    def _speed(self, rank: int) -> Speed:
        usual, lag = self._pace.usual() or 1.0, self._pace.lag(rank)
        if lag < self._policy.late_start * usual * self._plan.blocks:
            lag = 0.0
        block = self._pace.block(rank) or usual
        if lag + self._plan.blocks * block <= self._noise:  # so short a time is noise
            return Speed(block=usual)
        return Speed(block=block, lag=lag)

    def _hoped(self, rank: int) -> Speed:
        """The speed assumed for a rank that has work, even if it has not begun its work in recent rounds."""
        speed = self._speed(rank)
        return speed if speed.lag < NEVER else replace(speed, lag=0.0)

    def _cover(self, loads: Loads, present: set[int]) -> None:
        """Assign units that no participant can do to ranks that are present, however slow."""
        given = {part.unit for load in loads.values() for part in load.parts()}
        for unit in self._plan.all_units:
            if unit not in given:
                able = [rank for rank in self._plan.readers(unit) if rank in present]
                if able:
                    loads.setdefault(able[0], Allotment()).firsts[unit] = self._plan.blocks

    def trial(self, rank: int, round_: int) -> Part | None:
        """The trial of a rank without work in a round."""
        if rank not in self._taking_part or (round_ + rank) % self._policy.trial_every:
            return None
        return Part(self._plan.own(rank).start, 0, 1)

    def weights(self, loads: Loads) -> tuple[tuple[int, int], ...]:
        """The weights of the stripes that differ from the usual weights."""
        vector = self._links.vector
        plans = {rank: sending(loads.get(rank, Allotment()), self._hoped(rank), vector) for rank in self._taking_part}
        if self._reducers < self._plan.workers:
            weights = dict.fromkeys(plans, FULL_WEIGHT)
        else:
            weights = stripe_weights(plans, vector, self._policy.stripe_saving)
        usual = self._plan.weights(self._reducers, {})
        exceptions = {rank: 0 for rank in self._plan.computing if usual[rank] and rank not in weights}
        lacking = len(exceptions)
        for rank, weight in weights.items():
            if usual[rank]:
                if weight != FULL_WEIGHT:
                    exceptions[rank] = weight
            elif lacking:  # in place of a rank that reduces nothing
                exceptions[rank] = FULL_WEIGHT
                lacking -= 1
        return tuple(sorted(exceptions.items()))

    def stripes(self, weights: Iterable[tuple[int, int]]) -> tuple[range, ...]:
        """The chunks that each rank reduces."""
        return self._plan.stripes(self._chunks, self._plan.weights(self._reducers, dict(weights)))
