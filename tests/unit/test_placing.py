"""Which rank goes to which place: those who stand in for each other are apart wherever that can be."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.ray.spots import assign, clashes, evenly, groups_of

pytest.importorskip("ray")


def together(groups: list[tuple[int, ...]], domains: list[str], places: tuple[int, ...]) -> int:
    """How many of a group one domain has, at most."""
    return max(max(Counter(domains[places[rank]] for rank in group).values()) for group in groups)


@st.composite
def situations(draw: st.DrawFn, most: int) -> tuple[list[tuple[int, ...]], list[str]]:
    """Ranks in groups, and as many places in some domains."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most // 3))
    ends = list(accumulate(sizes))
    groups, count = [tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)], ends[-1]
    return groups, draw(st.lists(st.sampled_from("abcd"), min_size=count, max_size=count))


@given(situations(most=30))
def test_every_rank_has_a_place_of_its_own(situation: tuple[list[tuple[int, ...]], list[str]]) -> None:
    groups, domains = situation
    assert sorted(assign(groups, domains)) == list(range(len(domains)))


@given(situations(most=6))
def test_groups_are_apart_wherever_some_choice_has_them_apart(
    situation: tuple[list[tuple[int, ...]], list[str]],
) -> None:
    groups, domains = situation
    best = min(together(groups, domains, places) for places in permutations(range(len(domains))))
    if best == 1:
        assert together(groups, domains, assign(groups, domains)) == 1


@given(st.integers(2, 4), st.integers(1, 2))
def test_a_tree_outlives_each_of_two_nodes(fanout: int, depth: int) -> None:
    plan = CodedReduce(Tree.regular(fanout=fanout, depth=depth), stragglers=fanout // 2).plan(samples=1000)
    count = plan.workers + 1
    domains = ["a" if place < count / 2 else "b" for place in range(count)]
    places = assign(groups_of(plan, count), domains)
    if fanout == 2:
        assert clashes(plan, [domains[place] for place in places]) == []


def test_what_cannot_be_avoided_is_said() -> None:
    plan = Striped(3).plan(samples=60)
    assert clashes(plan, ["a", "a", "b"]) == []
    assert clashes(plan, ["a"] * 3) == ["a has ranks 0, 1, 2: if it is lost, no rank is left to do their part"]


@given(st.integers(0, 20), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 8)))
def test_places_are_even(count: int, room: dict[str, int]) -> None:
    found = Counter(one for one in evenly(count, room) if one is not None)
    assert sum(found.values()) == min(count, sum(room.values()))
    assert all(found[one] <= room[one] for one in room)
    assert all(found[one] + 1 >= found[other] or found[one] == room[one] for one in room for other in room)
