"""Trees whose shares are computed twice in some rounds: what is wrong in a bit is found, put right, and laid to whoever
it was, whatever else goes wrong; and where nothing is wrong it costs what was asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from codedreduce.errors import SchemeError
from codedreduce.worlds.simulated import Fault
from codedreduce.worlds.simulated.scenario import ENDLESS, Scenario, random_audited_trees

from .check_audits import Audited, check_audited
from .check_run import check_seed

CALM = Scenario(
    tree="2x2", samples=168, parameters=20, compute=6.0, rounds=12, rate=1e6, latency=1e-4, chunk=7, audit=0.5,
    say_waiting_after=1000.0, replan_after=10.0,
)  # fmt: skip


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(CALM, field) for field in CALM.__struct_fields__}, **changes})


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_whatever_was_looked_at_is_right_and_nobody_is_blamed_wrongly(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        check_seed(seed, tmp_path, random_audited_trees, check_audited)


TREES = (("2x2", 1, 6), ("3x2", 1, 12), ("4x1", 1, 4), ("3x1", 2, 3), ("2x3", 1, 14))
WORKERS = [(tree, stragglers, node) for tree, stragglers, last in TREES for node in range(1, last + 1)]


@pytest.mark.parametrize(("tree", "stragglers", "node"), WORKERS)
def test_one_that_is_always_wrong_is_named_and_after_two_rounds_not_used(tree: str, stragglers: int, node: int) -> None:
    fault = Fault(kind="wrong", node=node, round=1, seconds=ENDLESS)
    run = check_audited(changed(tree=tree, stragglers=stragglers, faults=(fault,)))
    assert len(run.recorder.rounds) == 12
    first, second, *_ = sorted(run.drawn)
    assert sorted(run.named("mistaken")) == [(first, node), (second, node)]
    assert run.named("quarantined") == {(second, node)}
    assert all(run.right[round_] for round_ in range(second, 13)), "it is not used any more"
    assert not any(run.right[round_] for round_ in range(1, second) if round_ not in run.drawn)


@pytest.mark.parametrize(("tree", "node"), [("2x2", node) for node in range(1, 7)] + [("2x3", 7), ("2x3", 14)])
def test_what_is_damaged_on_its_way_is_put_right_and_is_nobody_s_fault(tree: str, node: int) -> None:
    """Nobody needs to decide: all who computed agree."""
    fault = Fault(kind="damage", node=node, round=1, seconds=ENDLESS)
    run = check_audited(changed(tree=tree, rounds=30, faults=(fault,), replan_after=0.0))
    assert len(run.recorder.rounds) == 30
    assert run.named("mistaken") == set()
    assert {one for _, one in run.named("damaged")} == {node}
    assert not all(run.right.values()), "where nobody looked"


def test_three_decide_by_themselves_and_two_need_the_root() -> None:
    fault = Fault(kind="wrong", node=2, round=1, seconds=ENDLESS)
    among_three = check_audited(changed(tree="3x1", stragglers=2, faults=(fault,), replan_after=0.0))
    assert len(among_three.recorder.rounds) == 12
    among_two = check_audited(changed(tree="2x1", faults=(fault,), replan_after=0.0))
    assert {node for node, _ in among_two.recorder.troubles} == {1, 2}
    assert len(among_two.recorder.rounds) == min(among_two.drawn) - 1, "a wrong sum is not used"


def test_it_costs_what_was_asked_for() -> None:
    run = check_audited(changed(audit=0.1, rounds=200, replan_after=0.0))
    work = {round_.round: round_.work for round_ in run.recorder.rounds}
    assert {round_ for round_ in work if work[round_] == 2.0} == run.drawn
    assert {work[round_] for round_ in work if round_ not in run.drawn} == {1.0}
    assert 0.05 < len(run.drawn) / 200 < 0.15
    seconds = run.recorder.seconds()
    assert max(seconds[round_ - 1] for round_ in run.drawn) < 2.2 * min(seconds)


def test_no_audits_no_difference() -> None:
    """But for the rounds that are audited, everything is at the same distance as without."""
    without = changed(audit=0.0).cluster(checking=True).run(12)
    audited = Audited(changed())
    for one, other in zip(without.rounds, audited.recorder.rounds, strict=True):
        assert other.round in audited.drawn or one.seconds == pytest.approx(other.seconds)


def test_a_straggler_holds_an_audited_round_up_by_one_more_task_at_most() -> None:
    """Worker 2 stops when it is asked for what another delivered."""
    fault = Fault(kind="pause", node=2, round=2, after=1.1, seconds=50.0)
    run = check_audited(changed(audit=1.0, rounds=3, faults=(fault,)))
    calm, late, _ = run.recorder.seconds()
    assert run.rounds("unaudited") >= {2}
    assert late < 3.25 * calm / 2, "the task, its audit, one more, and a head start of a fifth"


@pytest.mark.parametrize(
    "of",
    [
        {"scheme": "master-worker", "tree": "4x1"}, {"scheme": "ring", "tree": "4x1"}, {"order": "eager"},
        {"scheme": "gradient-coding", "tree": "4x1"}, {"scheme": "live-compensation", "tree": "4x1"}, {"stragglers": 0},
    ],
    ids=str,
)  # fmt: skip
def test_where_nobody_can_be_asked_audits_are_refused(of: dict[str, object]) -> None:
    with pytest.raises(SchemeError, match="nobody can be asked to compute what another does"):
        changed(**of).cluster()
