"""Who does which blocks, and who keeps how much: pure functions of what is known of the ranks.

A block that is handed from one rank to another travels as a vector of its own. So handing out pays where it saves more
time of computing than the vector costs on the links: `vector` seconds each, if nothing else is on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from codedreduce.schemes import Part
from codedreduce.schemes.striped import FULL_WEIGHT


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What is expected of a rank: seconds until it can begin, and for each block."""

    block: float
    lag: float = 0.0


@dataclass
class Load:
    """What a rank is to do: parts that begin with a unit's first block, by unit how far; and single blocks."""

    firsts: dict[int, int] = field(default_factory=dict)
    singles: list[Part] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """How many blocks that is."""
        return sum(self.firsts.values()) + len(self.singles)

    @property
    def vectors(self) -> int:
        """As how many vectors they travel."""
        return sum(1 for end in self.firsts.values() if end) + len(self.singles)

    def parts(self) -> list[Part]:
        """In the order in which they are done; blocks that follow a unit's first one are done in one go with it."""
        firsts = {unit: end for unit, end in self.firsts.items() if end}
        rest = []
        for part in sorted(self.singles):
            if part.first == firsts.get(part.unit, 0):
                firsts[part.unit] = part.last
            else:
                rest.append(part)
        return [Part(unit, 0, end) for unit, end in firsts.items()] + rest


def share_out(
    units: int, blocks: int, speeds: Mapping[int, Speed], can: Callable[[int, int], bool], vector: float
) -> dict[int, Load]:
    """What each rank that takes part is to do, so that all are through at about the same time.

    Every rank does its own unit, front to back. Units of ranks that do not take part go to whoever is through first.
    Then the last blocks of whoever is through last go to whoever is through first, as long as that pays. `can` says
    whether a rank can read a unit's samples.

    >>> alike = {rank: Speed(block=1.0) for rank in range(3)}
    >>> share_out(3, 4, alike, lambda rank, unit: True, 0.1)[1].parts()
    [Part(unit=1, first=0, last=4)]
    >>> loads = share_out(3, 4, {**alike, 2: Speed(block=4.0)}, lambda rank, unit: True, 0.1)
    >>> [load.blocks for load in loads.values()]
    [6, 5, 1]
    """
    loads = {rank: Load({rank: blocks}) for rank in speeds}
    finish = {rank: speed.lag + blocks * speed.block for rank, speed in speeds.items()}
    for unit in range(units):
        if unit not in speeds:
            takers = [rank for rank in speeds if can(rank, unit)]
            if takers:
                taker = min(takers, key=lambda rank: finish[rank] + blocks * speeds[rank].block)
                loads[taker].firsts[unit] = blocks
                finish[taker] += blocks * speeds[taker].block
    links = _Links(loads)
    while _move_a_block(loads, finish, speeds, can, vector, links):
        pass
    return loads


class _Links:
    """How long all vectors take, in times of one vector on one link: the busiest link's, or what all share."""

    def __init__(self, loads: Mapping[int, Load]) -> None:
        self._ranks = max(2, len(loads))
        self._most = max((load.vectors for load in loads.values()), default=1)
        self._all = sum(load.vectors for load in loads.values())

    def _time(self, most: int, every: int) -> float:
        return max(float(most), (every + self._ranks) * (self._ranks - 1) / self._ranks**2)

    def one_more(self, vectors: int) -> float:
        """What it adds if a rank that sends so many vectors sends one more."""
        return self._time(max(self._most, vectors + 1), self._all + 1) - self._time(self._most, self._all)

    def add(self, vectors: int) -> None:
        """A rank that sent so many vectors sends one more."""
        self._most = max(self._most, vectors + 1)
        self._all += 1


def _move_a_block(
    loads: dict[int, Load], finish: dict[int, float], speeds: Mapping[int, Speed],
    can: Callable[[int, int], bool], vector: float, links: _Links,
) -> bool:  # fmt: skip
    """Hand a block of whoever is through last to whoever is through first; whether that pays."""
    giver = max((rank for rank in loads if any(loads[rank].firsts.values())), key=finish.__getitem__, default=None)
    if giver is None:
        return False
    unit = max(loads[giver].firsts, key=loads[giver].firsts.__getitem__)
    takers = [rank for rank in loads if rank != giver and can(rank, unit)]
    if not takers:
        return False
    taker = min(takers, key=lambda rank: finish[rank] + speeds[rank].block)
    cost = vector * links.one_more(loads[taker].vectors)
    if finish[taker] + speeds[taker].block + cost >= finish[giver]:
        return False
    links.add(loads[taker].vectors)
    end = loads[giver].firsts[unit]
    loads[giver].firsts[unit] = end - 1
    loads[taker].singles.append(Part(unit, end - 1, end))
    finish[giver] -= speeds[giver].block
    finish[taker] += speeds[taker].block
    return True


@dataclass(frozen=True, kw_only=True)
class Relief:
    """How the rest of a late part is taken over: where its owner stops, and what each helper does."""

    end: int
    parts: tuple[tuple[int, tuple[Part, ...]], ...]


def relieve(
    part: Part, done: int, pace: float, helpers: Sequence[int], block: float, vector: float, ranks: int
) -> Relief:
    """What helpers take over of a part, of which `done` blocks are done and each further one takes the owner `pace`.

    From the last block backwards, as many as let both be through soonest; all of them if the owner does nothing.

    >>> relieve(Part(3, 0, 4), 2, 1.0, [0, 1], 1.0, 0.0, 6)
    Relief(end=3, parts=((0, (Part(unit=3, first=3, last=4),)),))
    >>> relieve(Part(3, 0, 4), 0, float("inf"), [0, 1], 1.0, 9.0, 6).parts
    ((0, (Part(unit=3, first=0, last=4),)),)
    """
    first = part.first + done
    best: tuple[float, Relief] | None = None
    for end in range(part.last - 1, first - 1, -1):
        whole = end == part.first == 0
        own = (end - first) * pace if end > first else 0.0
        for count in range(1, min(len(helpers), part.last - end) + 1):
            parts = _dealt(Part(part.unit, end, part.last), helpers[:count], whole)
            vectors = sum(len(some) for _, some in parts)
            theirs = max(sum(one.blocks for one in some) * block + len(some) * vector for _, some in parts)
            time = max(own, theirs) + vectors * vector / ranks
            if best is None or time < best[0]:
                best = (time, Relief(end=end, parts=parts))
    assert best is not None, "a part that is done needs no relief"
    return best[1]


def _dealt(part: Part, helpers: Sequence[int], whole: bool) -> tuple[tuple[int, tuple[Part, ...]], ...]:
    """Blocks dealt out; whoever has the first block of the unit does several in one go."""
    shares: list[list[Part]] = [[] for _ in helpers]
    start = part.first
    if whole:
        start = -(-part.blocks // len(helpers))
        shares[0].append(Part(part.unit, 0, start))
    others = shares[1:] if whole else shares
    for place, block in enumerate(range(part.last - 1, start - 1, -1)):
        others[place % len(others)].append(Part(part.unit, block, block + 1))
    return tuple((helper, tuple(share)) for helper, share in zip(helpers, shares, strict=True) if share)


def stripe_weights(vectors: Mapping[int, int], most: int) -> dict[int, int]:
    """How much each rank keeps, so that all links carry as much: who sends more vectors keeps less.

    A rank that sends v vectors and keeps the part f of the sum sends v (1 - f) + f (N - 1) vectors in all.

    >>> stripe_weights({0: 1, 1: 1, 2: 1}, 3)
    {0: 16, 1: 16, 2: 16}
    >>> stripe_weights({0: 2, 1: 1, 2: 1, 3: 1, 4: 1}, 5)[0]
    0
    """
    ranks = len(vectors)
    if len(set(vectors.values())) <= 1 or most < ranks:
        return dict.fromkeys(vectors, FULL_WEIGHT)

    def kept(level: float) -> dict[int, float]:
        return {
            rank: min(1.0, max(0.0, (level - count) / max(0.5, ranks - 1 - count))) for rank, count in vectors.items()
        }

    low, high = 0.0, float(ranks + max(vectors.values()))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(kept(middle).values()) < 1 else (low, middle)
    parts = kept(high)
    largest = max(parts.values()) or 1.0
    return {rank: round(FULL_WEIGHT * part / largest) for rank, part in parts.items()}
