"""Random faults over random small trees: what must always hold, checked at every step."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from codedreduce.simulator import Fault, Recorder
from codedreduce.simulator.scenario import ENDLESS, Scenario
from tests.simulation.invariants import Invariants
from tests.simulation.random_scenarios import (
    random_audits,
    random_failing_ranks,
    random_late_ranks,
    random_leaving_ranks,
    random_one_way_cuts,
    random_scenario,
    random_striped,
    random_units,
)

from .check_run import check_run, check_seed, trace_of

#: Of trees, rings and ranks; half as many of ranks alone, and a fifth of each kind of what else can happen to ranks.
RUNS = int(os.environ.get("CODEDREDUCE_RANDOM_RUNS", "1000"))
BATCH = 50


def batches(runs: int, begin: int = 0) -> list[int]:
    """The first seeds of batches. What else can happen to ranks is drawn in addition to what `random_striped` draws of
    the same seed: with seeds of its own, every kind sees other ranks.
    """
    return list(range(begin, begin + runs, BATCH))


def check_batch(first: int, draw: Callable[[int], Scenario] = random_scenario) -> None:
    for seed in range(first, first + BATCH):
        check_seed(seed, Path("traces"), draw)


@pytest.mark.parametrize("first", batches(RUNS))
def test_random_faults(first: int) -> None:
    check_batch(first)


@pytest.mark.parametrize("first", batches(RUNS // 2))
def test_random_faults_of_ranks(first: int) -> None:
    check_batch(first, random_striped)


@pytest.mark.parametrize("first", batches(RUNS // 5, begin=70_000))
def test_random_faults_of_ranks_that_fail(first: int) -> None:
    check_batch(first, random_failing_ranks)


@pytest.mark.parametrize("first", batches(RUNS // 5, begin=20_000))
def test_random_faults_of_ranks_with_several_units(first: int) -> None:
    check_batch(first, random_units)


@pytest.mark.parametrize("first", batches(RUNS // 5, begin=30_000))
def test_random_faults_of_ranks_that_leave(first: int) -> None:
    check_batch(first, random_leaving_ranks)


@pytest.mark.parametrize("first", batches(RUNS // 5, begin=40_000))
def test_random_faults_of_ranks_that_come_late(first: int) -> None:
    check_batch(first, random_late_ranks)


@pytest.mark.parametrize("first", batches(RUNS // 5, begin=50_000))
def test_random_cuts_of_ranks_one_way(first: int) -> None:
    check_batch(first, random_one_way_cuts)


@pytest.mark.parametrize("first", batches(RUNS // 5, begin=60_000))
def test_random_faults_of_ranks_that_are_audited(first: int) -> None:
    check_batch(first, random_audits)


@pytest.mark.parametrize(
    "seed",
    [
        19,  # a rank that would lead, and does not yet, has something to say to the one that leads
        2061,  # a rank does not hear who keeps a stripe instead of it
        2419,  # others have the last sum, and those that are left could not compute it
        2566,  # a rank that is new, and those without a coordinator, ask each other without end
        3409,  # who comes to lead is behind, and nobody can compute what the others have
        3696,  # a round took hours, and a rank asks for what it misses as late
        6069,  # a rank is offered the state of a round that it does not know to have begun
        7630,  # pieces of a state come more rarely than it is asked for again
        2023,  # rank 0 has nothing to do, and nobody says a thing
        3936,  # a stripe goes to and fro between two that cannot send
        4012,  # what a rank said was lost, and nobody can do its work
        4241,  # only a rank that was left out can
        10188,  # somebody who never began is all there is
        11881,  # a keeper is gone when all but rank 0 have its sum
        12893,  # not even rank 0 is known to begin
        1840,  # a rank that is cut off does not know of a new process, and could lead without it
        6582,  # the same, and the new process is let in by one that leads
        8560,  # a rank is told by nobody that the round has begun again, with other stripes
        8730,  # who came to lead is not told that others have the last sum
    ],
)
def test_what_soaking_has_found(seed: int) -> None:
    check_seed(seed, Path("traces"), random_striped)


@pytest.mark.parametrize(
    "seed",
    [
        189,  # a rank was not told that it keeps a stripe in another's place
        677,  # nor that rounds began, after which the only states are that it could take
    ],
)
def test_what_soaking_has_found_with_several_units(seed: int) -> None:
    check_seed(seed, Path("traces"), random_units)


def test_what_soaking_has_found_of_ranks_that_fail() -> None:
    """A rank that stands for leader is told that a sum is past, and has no leader to ask."""
    check_seed(10171, Path("traces"), random_failing_ranks)


@pytest.mark.parametrize("draw", [random_scenario, random_striped, random_units])
@pytest.mark.parametrize("seed", [3, 14, 159, 1822])
def test_same_seed_same_trace(seed: int, draw) -> None:
    scenario = draw(seed)
    assert trace_of(scenario) == trace_of(Scenario.from_json(scenario.to_json()))


SMALL = Scenario(
    tree="4x2",
    samples=200,
    parameters=10,
    compute=20.0,
    rounds=6,
    rate=1e6,
    latency=1e-4,
    say_waiting_after=50.0,
    chunk=4,
)


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(SMALL, field) for field in SMALL.__struct_fields__}, **changes})


def computed_in(scenario: Scenario, node: int, round_: int) -> bool:
    recorder = scenario.cluster(recorder=Recorder(timeline={round_}), observer=Invariants()).run(scenario.rounds)
    return any(interval.node == node and interval.kind == "compute" for interval in recorder.intervals)


@pytest.mark.parametrize("kind", ["crash", "pause", "cut"])
@pytest.mark.parametrize("node", [1, 5])
def test_who_stops_and_returns_is_used_again_from_the_next_round_on(kind, node: int) -> None:
    scenario = changed(faults=(Fault(kind=kind, node=node, round=2, after=0.5, seconds=1.2),))
    check_run(scenario)
    assert computed_in(scenario, node, 4)


def test_who_is_dead_computes_nothing() -> None:
    scenario = changed(faults=(Fault(kind="crash", node=5, round=2, after=0.5),))
    check_run(scenario)
    assert not computed_in(scenario, 5, 3)


SHARE = 1.0  # seconds a calm round takes in SMALL, all of them computing


@pytest.mark.parametrize("kind", ["crash", "pause", "cut"])
@pytest.mark.parametrize(
    ("nodes", "most"),
    [
        ((5, 7, 9, 15, 18), 2.3),  # leaves: one more share, and a head start
        ((1, 3), 2.3),  # parents: their replicas' subtrees do one more share
        ((1, 5, 7, 9, 15), 5.0),  # a parent, and a leaf below its replica: one more share at each level
    ],
)
def test_what_tolerated_stragglers_cost(kind, nodes: tuple[int, ...], most: float) -> None:
    calm = SMALL.cluster().run(6).seconds()
    assert calm.max() == pytest.approx(SHARE, rel=0.01)
    faults = tuple(Fault(kind=kind, node=node, round=2, after=0.3) for node in nodes)
    recorder = check_run(changed(faults=faults))
    assert recorder.identical
    assert recorder.seconds()[1:].max() < most * SHARE


def test_the_known_dead_are_given_no_head_start() -> None:
    faults = tuple(Fault(kind="crash", node=node, round=2, after=0.3) for node in (5, 7, 9, 15))
    assert check_run(changed(faults=faults)).seconds()[2:].max() < 2.05 * SHARE


def test_a_slow_parent_s_own_unit_is_done_by_a_child() -> None:
    """Late at computing, quick at passing on: one more unit, at any level."""
    recorder = changed(delays="stalls:0.15:100s", rounds=40, seed=2).cluster(observer=Invariants()).run(40)
    late_parents = [record for record in recorder.rounds if set(record.late) & set(range(1, 5))]
    assert late_parents
    assert recorder.identical
    assert any("own unit" in note.reason for _, _, note in recorder.notes)


def test_too_many_stragglers_are_waited_for_and_named() -> None:
    faults = tuple(Fault(kind="pause", node=node, round=2, seconds=120.0) for node in (1, 2))
    recorder = check_run(changed(faults=faults))
    waiting = [note for _, _, note in recorder.notes if note.kind == "waiting"]
    assert waiting[0].nodes == (1, 2)
    assert "round 2 has waited 50 s for one of [1, 2]" in waiting[0].reason
    assert 119 < recorder.seconds()[1] < 140, "it went on when they were back"
    assert recorder.identical


def test_dead_ones_are_said_to_be_gone() -> None:
    faults = tuple(Fault(kind="crash", node=node, round=2, seconds=120.0) for node in (1, 2))
    recorder = check_run(changed(faults=faults))
    assert "[1, 2] are not connected" in next(note.reason for _, _, note in recorder.notes if note.kind == "waiting")
    assert len(recorder.rounds) == 6


@pytest.mark.parametrize(("nodes", "missing"), [((1, 2), 0.5), ((5, 6, 9, 10), 0.2), ((5, 6), 0.0)])
def test_approximation_reports_what_is_missing(nodes, missing: float) -> None:
    faults = tuple(Fault(kind="pause", node=node, round=2, seconds=ENDLESS) for node in nodes)
    recorder = check_run(changed(faults=faults, on_excess="approximate"))
    assert len(recorder.rounds) == 6
    assert recorder.rounds[2].residual ** 2 == pytest.approx(missing, abs=0.01)


@pytest.mark.parametrize("compute", [2.0, 20.0, 84.0])
@pytest.mark.parametrize("parameters", [5800, 300_000])
def test_calm_progressive_does_no_redundant_work(compute: float, parameters: int) -> None:
    rounds = 8 if parameters < 10_000 else 2
    scenario = Scenario(compute=compute, parameters=parameters, rounds=rounds, samples=168, chunk=100_000)
    recorder = scenario.cluster().run(rounds)
    assert {record.work for record in recorder.rounds} == {1.0}


@pytest.mark.parametrize("delays", ["bursty", "sticky", "stalls:0.05:2s", "exponential"])
def test_progressive_never_works_more_than_eager(delays: str) -> None:
    recorder = Scenario(delays=delays, rounds=30, parameters=50).cluster().run(30)
    assert max(record.work for record in recorder.rounds) < 6.0
    assert recorder.identical


def test_stale_chunks_change_nothing() -> None:
    """A straggler's results of old rounds keep arriving, twice and out of order, while later rounds run."""
    faults = (
        Fault(kind="duplicate", node=5, round=1, seconds=ENDLESS),
        Fault(kind="reorder", node=5, round=1, seconds=ENDLESS),
        Fault(kind="duplicate", node=1, round=1, seconds=ENDLESS),
        Fault(kind="slow", node=6, round=1, seconds=ENDLESS, factor=200.0),
    )
    recorder = check_run(changed(faults=faults, rounds=12))
    assert recorder.identical
