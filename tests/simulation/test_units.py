"""The bits follow from the number of units, not from that of the ranks: whoever is there, late, lost or back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from codedreduce import Striped
from codedreduce.errors import PlanError, SchemeError
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.leader.distribution import Speed, share_out
from codedreduce.simulator import Fault
from codedreduce.simulator.scenario import ENDLESS

from .test_striped import all_have, changed, same_bits

UNITS = 6


def sums_of(ranks: int, **changes: object) -> dict[int, bytes]:
    """The sum of each round: compared with the plan's on every rank, and the same on all that have it."""
    stripes = min(ranks, 3)
    run = same_bits(changed(tree=f"{ranks}x1", units=UNITS if ranks != UNITS else None, stripes=stripes, **changes))
    return {round_: bits for (rank, round_), bits in run.sums.items() if rank == 0}


def test_a_smaller_run_has_the_bits_of_a_larger_one() -> None:
    right = sums_of(6)
    assert len(right) == 8
    for ranks in (1, 2, 3, 4, 5):
        assert sums_of(ranks) == right
    cut_otherwise = changed(tree="4x1", stripes=3)
    assert {bits for (_, round_), bits in same_bits(cut_otherwise).sums.items() if round_ == 1} != {right[1]}, (
        "4 units are another sum, or this test shows nothing"
    )


@pytest.mark.parametrize("reach", [0, 2])
def test_so_it_has_with_some_lost_and_some_slow(reach: int) -> None:
    faults = (
        Fault(kind="crash", node=3, round=2, after=0.4, seconds=ENDLESS),
        Fault(kind="pause", node=1, round=4, after=0.1, seconds=9.0),
        Fault(kind="crash", node=1, round=6, after=0.2, seconds=0.5),
    )
    assert sums_of(4, faults=faults, reach=reach) == sums_of(6) == sums_of(4, delays="bursty")


def test_six_of_which_two_are_lost_and_one_comes_back() -> None:
    faults = (
        Fault(kind="crash", node=4, round=2, after=0.3, seconds=ENDLESS),
        Fault(kind="crash", node=5, round=2, after=0.5, seconds=3.0),
    )
    assert sums_of(6, faults=faults) == sums_of(4)


def test_ranks_with_more_units_than_others_do_no_more_blocks() -> None:
    """Where a vector takes little; where it takes long, units stay where they are."""
    plan = Striped(4, units=6, blocks=4).plan(samples=96)
    speeds = {rank: Speed(block=1.0) for rank in plan.computing}
    loads = share_out(6, 4, speeds, lambda rank, unit: True, 0.01, plan.owner)
    assert [load.blocks for load in loads.values()] == [6, 6, 6, 6]
    loads = share_out(6, 4, speeds, lambda rank, unit: True, 50.0, plan.owner)
    assert {rank: tuple(load.firsts) for rank, load in loads.items()} == {0: (0, 1), 1: (2,), 2: (3, 4), 3: (5,)}


def test_a_calm_round_with_two_units_a_rank_hands_out_nothing() -> None:
    run = same_bits(changed(tree="3x1", units=6, stripes=3))
    all_have(run)
    assert not run.of(said.Do)
    assert not run.of(said.Cut)
    assert len(run.of(said.Done)) == 2 * 2 * run.scenario.rounds, "two of each rank but the one that leads"


def test_whose_units_are_whose() -> None:
    for ranks in range(1, 9):
        for units in range(ranks, 25):
            plan = Striped(ranks, units=units).plan(samples=200)
            own = [plan.own(rank) for rank in plan.computing]
            assert [unit for one in own for unit in one] == list(plan.all_units)
            assert all(plan.owner(unit) == rank for rank, one in enumerate(own) for unit in one)
            assert max(map(len, own)) - min(map(len, own)) <= 1
            assert all(one.stop == other.start for one, other in pairwise(own))


def test_the_reference_does_not_know_the_ranks() -> None:
    gradients = np.random.default_rng(1).standard_normal((300, 40)).astype(np.float32)
    seen = {Striped(ranks, units=12).plan(samples=300).reference(gradients).tobytes() for ranks in range(1, 13)}
    assert seen == {Striped(12).plan(samples=300).reference(gradients).tobytes()}


def test_what_cannot_be() -> None:
    with pytest.raises(SchemeError, match="units must be at least 4, one for each rank; got 3"):
        Striped(4, units=3)
    with pytest.raises(PlanError, match="5 samples cannot be cut into 6 units"):
        Striped(4, units=6).plan(samples=5)
    with pytest.raises(PlanError, match=r"there is no unit 6 in this plan: they are 0\.\.5"):
        Striped(4, units=6).plan(samples=60).unit(6)
    assert str(Striped(4, units=6)) == "striped of 6 units over 4 ranks" != str(replace(Striped(4), units=4))
