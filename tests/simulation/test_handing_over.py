"""Ranks that are told to leave, in virtual time: others take what they do first, and nobody waits for anybody."""

from __future__ import annotations

from functools import cache

import pytest

from codedreduce.simulator import Fault
from codedreduce.simulator.scenario import ENDLESS, Scenario
from tests.simulation.invariants import Invariants

CALM = Scenario(
    tree="6x1", stragglers=0, scheme="striped", samples=240, parameters=4000, chunk=100, compute=1.2, rounds=12
)


def run_with(*faults: Fault, ranks: int = 6, reach: int = 0):
    fields = {field: getattr(CALM, field) for field in CALM.__struct_fields__}
    scenario = Scenario(**{**fields, "tree": f"{ranks}x1", "units": 6, "faults": faults, "reach": reach})
    cluster = scenario.cluster(observer=Invariants())
    recorder = cluster.run(scenario.rounds, latest=1000.0)
    assert len(recorder.rounds) == scenario.rounds
    assert recorder.identical
    return cluster, recorder


def leaving(rank: int, after: float = 0.0) -> Fault:
    return Fault(kind="leave", node=rank, round=5, after=after, seconds=ENDLESS)


@cache
def usual() -> float:
    """The seconds of the longest round of five ranks, of which none leaves."""
    return max(record.seconds for record in run_with(ranks=5)[1].rounds)


@pytest.mark.parametrize("rank", [0, 2, 5])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.11, 0.19, 0.2, 0.206])
def test_no_round_is_longer_than_one_without_it(rank: int, after: float) -> None:
    """Whenever in a round it comes: computing, sending, keeping. And nothing is done twice."""
    cluster, recorder = run_with(leaving(rank, after))
    assert not cluster.nodes.is_alive(rank)
    assert max(record.seconds for record in recorder.rounds) <= 1.01 * usual()
    assert all(record.work == pytest.approx(1.0) for record in recorder.rounds)


def test_who_led_does_not_lead_when_it_goes() -> None:
    cluster, recorder = run_with(leaving(0, 0.05))
    kinds = [note.kind for _, _, note in recorder.notes if note.kind in ("leads", "leaving", "left")]
    assert kinds == ["leads", "leaving", "left"]
    assert [rank for rank in range(1, 6) if cluster.nodes.machine(rank).leads] != []


def test_all_but_one_leave_at_once() -> None:
    cluster, _ = run_with(*(leaving(rank, 0.05) for rank in range(6) if rank != 3))
    assert [rank for rank in range(6) if cluster.nodes.is_alive(rank)] == [3]
    assert cluster.nodes.machine(3).leads


def test_when_all_are_told_to_leave_all_do() -> None:
    """There is nobody to hand over to: nobody waits for that."""
    faults = tuple(leaving(rank, 0.05) for rank in range(6))
    fields = {field: getattr(CALM, field) for field in CALM.__struct_fields__}
    cluster = Scenario(**{**fields, "faults": faults}).cluster(observer=Invariants())
    cluster.run(CALM.rounds, latest=20.0)
    assert not any(map(cluster.nodes.is_alive, range(6)))


def test_who_alone_can_read_its_samples_stays_while_it_may() -> None:
    cluster, _ = run_with(leaving(2), reach=1)
    assert cluster.nodes.is_alive(2)
