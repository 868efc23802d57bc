"""More are missing than tolerated: the root does their part itself, with the same bits, until they are back."""

from __future__ import annotations

import pytest

from codedreduce.simulator import Fault, Recorder
from codedreduce.simulator.scenario import Scenario

from .check_run import check_run

SMALL = Scenario(
    tree="4x2", samples=200, parameters=10, compute=20.0, rounds=8, rate=1e6, latency=1e-4, say_waiting_after=50.0,
    chunk=4, replan_after=10.0,
)  # fmt: skip

CASES = {
    "inner workers": (1, 2),
    "leaves below both replicas": (5, 6, 9, 10),
    "everybody": tuple(range(1, 21)),
}


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(SMALL, field) for field in SMALL.__struct_fields__}, **changes})


def stood_in(recorder: Recorder) -> list[int]:
    return [note.round for _, _, note in recorder.notes if note.kind == "stands in"]


@pytest.mark.parametrize("tree", ["4x2", "2x3", "4x1"])
@pytest.mark.parametrize("order", ["progressive", "eager"])
def test_a_root_alone_does_everything(tree: str, order: str) -> None:
    workers = changed(tree=tree).workers
    faults = tuple(Fault(kind="crash", node=node, round=2, after=0.1) for node in range(1, workers + 1))
    recorder = check_run(changed(tree=tree, order=order, faults=faults))
    assert len(recorder.rounds) == 8
    assert recorder.identical
    assert stood_in(recorder) == [2], "it waits once, and knows in the rounds after that"
    assert recorder.seconds()[2:].max() < 21.0, "the whole batch, and no waiting"


@pytest.mark.parametrize("nodes", CASES.values(), ids=CASES)
def test_those_who_are_back_are_used(nodes: tuple[int, ...]) -> None:
    faults = tuple(Fault(kind="crash", node=node, round=2, after=0.1, seconds=60.0) for node in nodes)
    recorder = check_run(changed(faults=faults, rounds=20))
    assert recorder.identical
    assert stood_in(recorder)
    assert recorder.seconds()[-1] < 1.1, "a calm round takes 1 s"
    assert recorder.rounds[-1].late == ()


def test_an_uncoded_run_survives_as_well() -> None:
    of = {"scheme": "master-worker", "tree": "4x1", "order": "eager", "stragglers": 0, "compute": 4.0}
    recorder = check_run(changed(faults=(Fault(kind="crash", node=3, round=2, after=0.1),), **of))
    assert len(recorder.rounds) == 8
    assert recorder.identical


def test_who_is_there_and_much_too_late_is_not_waited_for() -> None:
    """Both replicas are stopped, and nobody can tell that from a long computation but by what rounds took before."""
    faults = tuple(Fault(kind="pause", node=node, round=4, seconds=300.0) for node in (1, 2))
    recorder = check_run(changed(faults=faults, rounds=40))
    assert recorder.identical
    assert recorder.seconds()[3] < 10.0 + 4 * 1.1 + 10.1, "their part is half of the batch"
    assert recorder.seconds()[-1] < 1.1


def test_long_rounds_are_not_taken_for_missing_workers() -> None:
    recorder = check_run(changed(compute=2000.0))
    assert stood_in(recorder) == []
    assert {record.work for record in recorder.rounds} == {1.0}


def test_a_code_s_weights_are_waited_for() -> None:
    faults = tuple(Fault(kind="crash", node=node, round=2, after=0.1, seconds=100.0) for node in (1, 2))
    recorder = check_run(changed(order="eager", code="cyclic", faults=faults))
    assert stood_in(recorder) == []
    assert recorder.seconds()[1] > 99
