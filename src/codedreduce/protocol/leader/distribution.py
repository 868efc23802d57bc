"""The start of a round: the assignment of blocks to ranks, the sizes of stripes, and trials of slow ranks.

A block moved from one rank to another travels as a vector of its own. A whole unit that is moved travels as one vector,
as before. So there are a few drafts: nothing moved, blocks moved, whole units moved, both moved. The leader uses the
draft in which the last link is free soonest.

Stripes are cut so that all links are free at the same time: a rank that sends more, or later, reduces less.

`RoundStart` distributes work among the ranks that take part by their known seconds per block, and stripes by the load
on their links. A rank that is slow in every round does less. A rank that was present but did nothing in some rounds
gets no work; it still reduces its stripe. Such a rank, and one that is too slow for any work, gets a trial now and
then: a block that another rank computes, too. So the leader sees it recover.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.pace import NEVER, Links, Pace
from codedreduce.schemes import Part, StripedPlan
from codedreduce.schemes.striped import FULL_WEIGHT

Can = Callable[[int, int], bool]

Owner = Callable[[int], int]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The expected speed of a rank: seconds until it can begin (`lag`), and per block."""

    block: float
    lag: float = 0.0


@dataclass
class Allotment:
    """The planned work of a rank: by unit, the end of a part that begins with its first block; and single blocks."""

    firsts: dict[int, int] = field(default_factory=dict)
    singles: list[Part] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return sum(self.firsts.values()) + len(self.singles)

    def parts(self) -> list[Part]:
        """The parts in the order of computation. Blocks that follow a unit's first part are joined to it."""
        firsts = {unit: end for unit, end in self.firsts.items() if end}
        rest = []
        for part in sorted(self.singles):
            if part.first == firsts.get(part.unit, 0):
                firsts[part.unit] = part.last
            else:
                rest.append(part)
        return [Part(unit, 0, end) for unit, end in firsts.items()] + rest


Loads = dict[int, Allotment]


def share_out(
    units: int, blocks: int, speeds: Mapping[int, Speed], can: Can, vector: float, owner: Owner = int,
    policy: Policy = DEFAULT_POLICY,
) -> Loads:  # fmt: skip
    """The work of each rank that takes part, such that all links are free soonest.

    Every rank computes its own units, front to back, unless that is too slow. Units of ranks that do not take part go
    to the rank that finishes first. `can` returns whether a rank can read a unit's samples. `owner` returns the rank
    that owns a unit: the rank of the same number by default.

    >>> alike = {rank: Speed(block=1.0) for rank in range(3)}
    >>> share_out(3, 4, alike, lambda rank, unit: True, 0.1)[1].parts()
    [Part(unit=1, first=0, last=4)]
    >>> loads = share_out(3, 4, {**alike, 2: Speed(block=4.0)}, lambda rank, unit: True, 0.1)
    >>> [load.blocks for load in loads.values()]
    [6, 5, 1]

    Where a vector takes longer than a unit, only whole units are moved, if any:

    >>> loads = share_out(3, 4, {**alike, 2: Speed(block=4.0)}, lambda rank, unit: True, 5.0)
    >>> [load.parts() for load in loads.values()][2]
    []
    """
    best: tuple[float, Loads] | None = None
    for by_units in (False, True):
        for price in (float("inf"), vector):
            draft = _Draft(units, blocks, speeds, can, owner)
            if by_units and not draft.move_units(price if price < float("inf") else 0.0):
                continue
            draft.move_blocks(price)
            end = through_at(draft.loads, speeds, vector, policy.vector_delay)
            if best is None or end < (1 - policy.draft_saving) * best[0]:
                best = (end, draft.loads)
        if best is not None and not draft.is_uneven:
            break  # all ranks finish at about the same time
    assert best is not None
    return best[1]


class _Draft:
    """A draft of the work of all ranks."""

    def __init__(self, units: int, blocks: int, speeds: Mapping[int, Speed], can: Can, owner: Owner) -> None:
        self._blocks = blocks
        self._speeds = speeds
        self._can = can
        self._owner = owner
        self.loads: Loads = {rank: Allotment() for rank in speeds}
        for unit in range(units):
            if owner(unit) in speeds:
                self.loads[owner(unit)].firsts[unit] = blocks
        self._finish = {rank: speed.lag + self.loads[rank].blocks * speed.block for rank, speed in speeds.items()}
        self.is_uneven = max(self._finish.values()) - min(self._finish.values()) > max(
            speed.block for speed in speeds.values()
        )
        self._first = {count: [(self._after(rank, count), rank) for rank in speeds] for count in (1, blocks)}
        for heap in self._first.values():  # the rank that finishes first, with `count` blocks more
            heapq.heapify(heap)
        for unit in range(units):
            if owner(unit) not in speeds:
                self.is_uneven = True
                if (taker := self._taker(unit, blocks)) is not None:
                    self._give(taker, unit, blocks)

    def _after(self, rank: int, count: int) -> float:
        return self._finish[rank] + count * self._speeds[rank].block

    def _taker(self, unit: int, count: int, other_than: int = -1) -> int | None:
        """The rank that can do a unit and finishes first with `count` blocks more."""
        heap, passed, found = self._first[count], [], None
        while heap and found is None:
            when, rank = heapq.heappop(heap)
            if when != self._after(rank, count):
                heapq.heappush(heap, (self._after(rank, count), rank))  # it has more by now
                continue
            passed.append((when, rank))
            if rank != other_than and self._can(rank, unit):
                found = rank
        for one in passed:
            heapq.heappush(heap, one)
        return found

    def _has_less(self, rank: int, blocks: int) -> None:
        self._finish[rank] -= blocks * self._speeds[rank].block
        for count, heap in self._first.items():
            heapq.heappush(heap, (self._after(rank, count), rank))

    def _give(self, rank: int, unit: int, end: int) -> None:
        self.loads[rank].firsts[unit] = end
        self._finish[rank] += end * self._speeds[rank].block

    def move_units(self, price: float) -> bool:
        """Move whole units from the ranks that finish last to those that finish first; return whether any moved."""
        moved = False
        for giver in sorted(self.loads, key=self._finish.__getitem__, reverse=True):
            own = [unit for unit in self.loads[giver].firsts if self._owner(unit) == giver]
            for position, unit in enumerate(reversed(own)):
                taker = self._taker(unit, self._blocks, giver)
                if taker is None:
                    break
                if self._after(taker, self._blocks) + price >= self._finish[giver]:
                    if position:
                        break
                    return moved
                del self.loads[giver].firsts[unit]
                self._has_less(giver, self._blocks)
                self._give(taker, unit, self._blocks)
                moved = True
        return moved

    def move_blocks(self, price: float) -> None:
        """Move single blocks from the rank that finishes last to the one that finishes first, if that saves `price`."""
        last = [(-self._finish[rank], rank) for rank in self.loads]
        heapq.heapify(last)
        while last and price < float("inf"):
            when, giver = heapq.heappop(last)
            if when != -self._finish[giver]:
                heapq.heappush(last, (-self._finish[giver], giver))
                continue
            firsts = self.loads[giver].firsts
            if not any(firsts.values()):
                continue
            unit = max(firsts, key=firsts.__getitem__)
            taker = self._taker(unit, 1, giver)
            if taker is None:
                continue
            if self._after(taker, 1) + price >= self._finish[giver]:
                return
            firsts[unit] -= 1
            self.loads[taker].singles.append(Part(unit, firsts[unit], firsts[unit] + 1))
            self._has_less(giver, 1)
            self._finish[taker] += self._speeds[taker].block
            heapq.heappush(last, (-self._finish[giver], giver))


@dataclass(frozen=True, kw_only=True)
class Sending:
    """When the last part of an allotment is computed, and when its vectors have left their rank."""

    ready: float
    sent: float


def sending(load: Allotment, speed: Speed, vector: float) -> Sending:
    """When a rank has computed its allotment, and when it has sent it.

    >>> sending(Allotment({0: 4, 1: 1}), Speed(block=1.0), 2.0)
    Sending(ready=5.0, sent=8.0)
    """
    ready, sent = 0.0, 0.0
    for part in load.parts():
        ready = max(ready, speed.lag) + part.blocks * speed.block
        sent = max(sent, ready) + vector
    return Sending(ready=ready, sent=sent)


def through_at(
    loads: Mapping[int, Allotment],
    speeds: Mapping[int, Speed],
    vector: float,
    delay: float = DEFAULT_POLICY.vector_delay,
) -> float:
    """When all links are free, out and in, if stripes are cut as they should be.

    Vectors that a rank sends beyond its first one delay each other, by this fraction (`delay`) of a vector.

    >>> calm = {rank: Allotment({rank: 4}) for rank in range(4)}
    >>> through_at(calm, {rank: Speed(block=1.0) for rank in range(4)}, 1.0)
    5.75
    """
    plans = {rank: sending(load, speeds[rank], vector) for rank, load in loads.items()}
    bottoms = _bottoms(plans)
    last, first = max(bottoms.values()), min(plan.sent for plan in plans.values() if plan.sent) - vector
    if not vector or len(plans) < 2:
        return last
    out = _fill(sorted(bottoms.values()), vector * (len(plans) - 1))
    most_kept = max(0.0, out - min(bottoms.values())) / (vector * (len(plans) - 1))
    vectors = sum(len(load.parts()) for load in loads.values())
    into = first + (most_kept * (vectors - 1) + 1 - most_kept) * vector
    return max(last, out, into) + delay * max(0, vectors / len(plans) - 1) * vector


def _bottoms(plans: Mapping[int, Sending]) -> dict[int, float]:
    """From when on ranks can send sums: when they have sent their partial sums, and the last one of all is on its way.

    A rank that has less to send than most reduces no more than they do: long stripes are summed late.
    """
    last = max(plan.ready for plan in plans.values())
    usual = sorted(plan.sent for plan in plans.values())[len(plans) // 2]
    return {rank: max(plan.sent, last, usual) for rank, plan in plans.items()}


def stripe_weights(
    plans: Mapping[int, Sending], vector: float, least: float = DEFAULT_POLICY.stripe_saving
) -> dict[int, int]:
    """The stripe weight of each rank, such that all links are free at the same time.

    They are equal if they would differ by less than this fraction (`least`) of the usual stripe.

    >>> alike = {rank: Sending(ready=1.0, sent=2.0) for rank in range(4)}
    >>> stripe_weights(alike, 1.0)
    {0: 16, 1: 16, 2: 16, 3: 16}
    >>> stripe_weights({**alike, 4: Sending(ready=2.0, sent=3.0)}, 1.0)[4]
    0
    """
    bottoms = _bottoms(plans)
    times = sorted(bottoms.values())
    usual = vector * (len(plans) - 1) / len(plans)
    if times[-1] - times[0] <= least * usual or not vector:
        return dict.fromkeys(plans, FULL_WEIGHT)
    through = _fill(times, vector * (len(plans) - 1))
    largest = through - times[0]
    return {rank: round(FULL_WEIGHT * max(0.0, through - time) / largest) for rank, time in bottoms.items()}


def _fill(times: list[float], amount: float) -> float:
    """The level to which this amount fills vessels with bottoms at these heights."""
    filled = 0.0
    for count, (time, following) in enumerate(zip(times, [*times[1:], float("inf")], strict=True), 1):
        if filled + count * (following - time) >= amount:
            return time + (amount - filled) / count
        filled += count * (following - time)
    raise AssertionError("unreachable: the last vessel has no end")


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
