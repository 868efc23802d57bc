"""Trees whose root and workers die and come back, or come late: no round is lost, and the bits are the same."""

from __future__ import annotations

import pytest

from codedreduce.protocol.core.events import Aggregated
from codedreduce.simulator import Fault, Recorder
from codedreduce.simulator.scenario import Scenario
from tests.simulation.invariants import Invariants

from .check_run import check_run

SMALL = Scenario(
    tree="4x2", samples=200, parameters=10, compute=20.0, rounds=8, rate=1e6, latency=1e-4, say_waiting_after=50.0,
    chunk=4, checkpoint_every=3,
)  # fmt: skip


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(SMALL, field) for field in SMALL.__struct_fields__}, **changes})


def sums_of(scenario: Scenario) -> list[tuple[int, bytes]]:
    """Every round that the root ended, in order, with the bits of its sum."""
    found: list[tuple[int, bytes]] = []

    def keep(action: Aggregated) -> None:
        found.append((action.round, action.vector.tobytes()))

    scenario.cluster(observer=Invariants()).run(scenario.rounds, on_sum=keep)
    return found


def computed_in(scenario: Scenario, round_: int) -> set[int]:
    recorder = scenario.cluster(recorder=Recorder(timeline={round_}), observer=Invariants()).run(scenario.rounds)
    return {interval.node for interval in recorder.intervals if interval.kind == "compute"}


def test_a_root_that_died_goes_on_from_its_checkpoint() -> None:
    calm = sums_of(SMALL)
    again = sums_of(changed(faults=(Fault(kind="crash", node=0, round=6, after=0.3, seconds=5.0),)))
    assert [round_ for round_, _ in again] == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8], "rounds 4 and 5 were after the checkpoint"
    assert set(again) == set(calm), "what is repeated is the same to the bit"


def test_it_is_of_a_generation_that_its_workers_have_not_seen() -> None:
    faults = tuple(Fault(kind="crash", node=0, round=round_, after=0.3, seconds=5.0) for round_ in (2, 5, 8))
    scenario = changed(faults=faults)
    cluster = scenario.cluster(observer=Invariants())
    recorder = cluster.run(scenario.rounds)
    assert [cluster.nodes.machine(node).generation for node in cluster.plan.nodes] == [3] * 21
    assert len([note for _, _, note in recorder.notes if note.kind == "succeeds"]) == 3


def test_all_goes_on_soon_after_the_root_is_back() -> None:
    recorder = check_run(changed(faults=(Fault(kind="crash", node=0, round=7, after=0.3, seconds=5.0),)))
    assert recorder.seconds()[6] < 0.3 + 5.0 + 2.5, "away, then a round; the checkpoint was just before it"


@pytest.mark.parametrize("kind", ["crash", "pause"])
def test_a_root_that_is_killed_in_the_first_round(kind) -> None:
    recorder = check_run(changed(faults=(Fault(kind=kind, node=0, round=1, after=0.3, seconds=5.0),)))
    assert len(recorder.rounds) == 8


@pytest.mark.parametrize("node", [1, 5])
@pytest.mark.parametrize("seconds", [2.0, 5.5, 9.0], ids=["before it", "with it", "after it"])
def test_a_worker_comes_back_before_with_or_after_the_root(node: int, seconds: float) -> None:
    faults = (
        Fault(kind="crash", node=0, round=3, after=0.3, seconds=5.0),
        Fault(kind="crash", node=node, round=3, after=0.2, seconds=seconds),
    )
    scenario = changed(faults=faults, rounds=16)
    recorder = check_run(scenario)
    assert recorder.identical
    assert node in computed_in(scenario, 14)


def test_everyone_but_leaves_is_started_again() -> None:
    """What the old root's rounds were only leaves know, and they must not wait for rounds that are long over."""
    everyone = (0, 1, 2, 3, 4)
    faults = tuple(Fault(kind="crash", node=node, round=6, after=0.3, seconds=2.0) for node in everyone)
    recorder = check_run(changed(faults=faults))
    assert len(recorder.rounds) == 8
    assert recorder.identical


@pytest.mark.parametrize("node", [1, 5])
def test_a_restarted_worker_is_used_within_two_rounds(node: int) -> None:
    """And its children, and its parent, which use it."""
    scenario = changed(faults=(Fault(kind="crash", node=node, round=2, after=0.3, seconds=1.0),))
    check_run(scenario)
    assert computed_in(scenario, 5) == set(range(1, 21))


@pytest.mark.parametrize("nodes", [(1,), (5,), (1, 3), (5, 9, 13, 17)])
def test_a_run_begins_without_those_that_do_not_come(nodes: tuple[int, ...]) -> None:
    """The root is started again and they are gone: it begins with the others, and says so."""
    faults = (
        Fault(kind="crash", node=0, round=2, after=0.3, seconds=3.0),
        *(Fault(kind="crash", node=node, round=2, after=0.2) for node in nodes),
    )
    recorder = check_run(changed(faults=faults))
    assert len(recorder.rounds) == 8
    (begins,) = [note for _, _, note in recorder.notes if note.kind == "begins"]
    assert begins.nodes == nodes


def test_who_comes_late_is_used() -> None:
    faults = (
        Fault(kind="crash", node=0, round=2, after=0.3, seconds=3.0),
        Fault(kind="crash", node=3, round=2, after=0.2, seconds=8.0),
    )
    scenario = changed(faults=faults, rounds=14)
    check_run(scenario)
    assert computed_in(scenario, 13) == set(range(1, 21))


def test_too_few_are_waited_for_and_named() -> None:
    faults = (
        Fault(kind="crash", node=0, round=2, after=0.3, seconds=3.0),
        *(Fault(kind="crash", node=node, round=2, after=0.2, seconds=200.0) for node in (5, 6, 9, 10, 1, 2)),
    )
    recorder = check_run(changed(faults=faults))
    waiting = [note for _, _, note in recorder.notes if note.kind == "waiting"]
    assert waiting[0].nodes[:2] == (1, 2)
    assert "[1, 2] are missing" in waiting[0].reason
    assert len(recorder.rounds) == 8


@pytest.mark.parametrize("node", [1, 5])
def test_who_leaves_finishes_its_round_and_is_not_waited_for_after_it(node: int) -> None:
    scenario = changed(faults=(Fault(kind="leave", node=node, round=3, after=0.5),))
    recorder = check_run(scenario)
    assert node in computed_in(scenario, 3)
    assert node not in computed_in(scenario, 4)
    assert recorder.rounds[2].late == (), "it delivered what it was asked for"
    assert recorder.seconds()[2] < 1.05, "and nobody else had to"
    assert recorder.seconds()[3:].max() < 2.05, "one more share, and no head start: it is known to be gone"
    assert [note.nodes for _, _, note in recorder.notes if note.kind == "leaving"] == [(node,)]


@pytest.mark.parametrize("node", [1, 5])
def test_who_left_comes_back(node: int) -> None:
    scenario = changed(faults=(Fault(kind="leave", node=node, round=2, after=0.5, seconds=3.0),), rounds=12)
    check_run(scenario)
    assert computed_in(scenario, 10) == set(range(1, 21)), "and its children are with it"


def test_all_but_the_tolerated_may_leave_while_the_root_is_restarted() -> None:
    faults = (
        Fault(kind="crash", node=0, round=3, after=0.3, seconds=2.0),
        *(Fault(kind="leave", node=node, round=3, after=0.2) for node in (1, 3, 10, 18)),
    )
    recorder = check_run(changed(faults=faults))
    assert len(recorder.rounds) == 8
    assert recorder.identical
