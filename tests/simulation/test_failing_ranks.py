"""Ranks whose computations fail: others do their part, and the run ends on all ranks if it fails there, too."""

from __future__ import annotations

import pytest

from codedreduce.simulator import Fault
from codedreduce.simulator.scenario import ENDLESS, Scenario
from tests.simulation.invariants import Invariants

CALM = Scenario(
    tree="6x1", stragglers=0, scheme="striped", samples=144, parameters=60, stripes=6, blocks=4, chunk=5, compute=6.0,
    rounds=8, rate=1e6, latency=1e-4, say_waiting_after=100.0,
)  # fmt: skip


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(CALM, field) for field in CALM.__struct_fields__}, **changes})


@pytest.mark.parametrize("reach", [0, 3])
@pytest.mark.parametrize("rank", [0, 2, 5])
def test_others_do_what_a_rank_failed_at(rank: int, reach: int) -> None:
    fault = Fault(kind="fail", node=rank, round=3, after=0.5, seconds=4.0)
    recorder = changed(faults=(fault,), reach=reach).cluster(observer=Invariants()).run(8, latest=ENDLESS / 2)
    assert len(recorder.rounds) == 8
    assert recorder.identical
    failed = [note for _, node, note in recorder.notes if note.kind == "failed" and node == 0]
    assert failed
    assert {note.nodes for note in failed} == {(rank,)}
    assert rank in recorder.rounds[2].late
    assert recorder.rounds[-1].late == ()
    assert recorder.seconds().max() < 2.5, "one more unit at most"


@pytest.mark.parametrize(("ranks", "reach"), [((0, 1, 2, 3, 4, 5), 0), ((3,), 1)], ids=["all", "nobody else can"])
def test_what_fails_everywhere_ends_the_run_on_all_ranks(ranks: tuple[int, ...], reach: int) -> None:
    faults = tuple(Fault(kind="fail", node=rank, round=3, after=0.5) for rank in ranks)
    cluster = changed(faults=faults, reach=reach).cluster(observer=Invariants())
    recorder = cluster.run(8, latest=ENDLESS / 2)
    assert len(recorder.rounds) == 2
    assert not any(cluster.nodes.is_alive(rank) for rank in cluster.plan.computing)
    named = {rank for rank, _ in recorder.troubles}
    assert named <= set(ranks)
    assert len(named) == min(2, len(ranks))
