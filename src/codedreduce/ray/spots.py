"""Assign ranks to places, so that one failure does not hit all ranks that can replace each other.

A place is a part of a node that Ray has reserved. A domain fails as one: a node, or all nodes with the same value of a
label (a rack, a zone). Ray selects the places; this module selects the rank for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codedreduce.launch.reasons import named
from codedreduce.schemes import Plan, StripedPlan


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place: its node, address and domain."""

    node: str
    address: str
    domain: str


def groups_of(plan: Plan, count: int) -> tuple[tuple[int, ...], ...]:
    """The groups of the first `count` ranks that can replace each other; the root of a tree is a group by itself.

    >>> from codedreduce import CodedReduce, Striped, Tree
    >>> groups_of(CodedReduce(Tree.regular(fanout=2, depth=2), stragglers=1).plan(samples=60), 7)
    ((0,), (1, 2), (3, 4), (5, 6))
    >>> groups_of(Striped(3).plan(samples=60), 3)
    ((0, 1, 2),)
    """
    by_itself = [] if isinstance(plan, StripedPlan) else [(0,)]
    groups = [tuple(one for one in plan.group(node) if one < count) for node in plan.computing if node < count]
    return tuple(dict.fromkeys([*by_itself, *groups]))


def assign(groups: Sequence[Sequence[int]], domains: Sequence[str]) -> tuple[int, ...]:
    """The place of each rank, given the domain of each place; no domain has more of a group than necessary.

    Groups are placed one by one, the largest first: each member goes to the domain with the most free places. If an
    assignment exists without two members of a group in one domain, this is such an assignment (Gale and Ryser, for 0-1
    matrices with given sums).

    >>> assign([(0,), (1, 2), (3, 4)], ["a", "a", "b", "b", "c"])
    (4, 0, 2, 1, 3)
    """
    free: dict[str, list[int]] = {}
    for place, domain in enumerate(domains):
        free.setdefault(domain, []).append(place)
    found: dict[int, int] = {}
    for group in sorted(groups, key=len, reverse=True):
        has: Counter[str] = Counter()
        for rank in group:
            best = min((one for one in free if free[one]), key=lambda one: (has[one], -len(free[one])))
            has[best] += 1
            found[rank] = free[best].pop(0)
    return tuple(found[rank] for rank in sorted(found))


def clashes(plan: Plan, domains: Sequence[str]) -> list[str]:
    """A message for each domain without which the run cannot continue. `domains`: the domain of each rank.

    >>> from codedreduce import CodedReduce, Tree
    >>> plan = CodedReduce(Tree.regular(fanout=2, depth=1), stragglers=1).plan(samples=60)
    >>> clashes(plan, ["a", "b", "b"])
    ['b has ranks 1, 2: if it is lost, no rank is left to do their part']
    >>> clashes(plan, ["a", "a", "b"])
    []
    """
    told = []
    for domain in dict.fromkeys(domains):
        ranks = [rank for rank, one in enumerate(domains) if one == domain]
        if not plan.tolerates({rank for rank in ranks if rank in plan.computing}):
            told.append(f"{domain} has {named(set(ranks))}: if it is lost, no rank is left to do their part")
    return told


def evenly(count: int, room: dict[str, int]) -> list[str | None]:
    """Domains for `count` places, as evenly as they have room; None where no room is left now.

    >>> evenly(5, {"r1": 4, "r2": 1})
    ['r1', 'r2', 'r1', 'r1', 'r1']
    >>> evenly(2, {"r1": 1})
    ['r1', None]
    """
    taken: Counter[str] = Counter()
    found: list[str | None] = []
    for _ in range(count):
        open_ = [one for one in room if taken[one] < room[one]]
        chosen = min(open_, key=lambda one: taken[one], default=None)
        if chosen is not None:
            taken[chosen] += 1
        found.append(chosen)
    return found


def fits(needs: dict[str, float], free: dict[str, float]) -> int:
    """How many times these needs fit into the free resources of a node.

    >>> fits({"CPU": 1, "GPU": 0.5}, {"CPU": 8, "GPU": 2}), fits({"GPU": 1}, {"CPU": 8})
    (4, 0)
    """
    return min((int(free.get(name, 0.0) / much + 1e-9) for name, much in needs.items() if much), default=10**6)


def in_words(resources: Iterable[tuple[str, float]]) -> str:
    """Resources as text.

    >>> in_words({"CPU": 1.0, "GPU": 0.5}.items())
    'CPU=1, GPU=0.5'
    """
    return ", ".join(f"{name}={much:g}" for name, much in resources) or "nothing"
