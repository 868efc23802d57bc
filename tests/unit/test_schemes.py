import time
import tracemalloc

import numpy as np
import pytest

from codedreduce import CodedReduce, GradientCoding, LiveCompensation, MasterWorker, RingAllReduce, Tree
from codedreduce.errors import PlanError, SchemeError, TooManyStragglers


def tree(fanout: int, depth: int) -> Tree:
    return Tree.regular(fanout=fanout, depth=depth)


def test_the_paper_s_cluster() -> None:
    progressive = CodedReduce(tree(4, 3), 1).plan(samples=6300)
    eager = CodedReduce(tree(4, 3), 1, order="eager").plan(samples=6300)
    assert progressive.calm_load(50) == 75
    assert eager.load(50) == 450
    assert sum(eager.load(node) for node in range(1, 85)) == 6 * 6300, "six times the work of an uncoded round"


def test_rotated_order() -> None:
    plan = CodedReduce(tree(4, 2), 1).plan(samples=2000)
    assert [plan.order(node, 0) for node in (1, 2, 3, 4)] == [(1, 2), (2, 1), (3, 4), (4, 3)]
    assert [unit.task for unit in plan.units(6)] == [6, 5, 10, 9]
    needs = plan.needs(2, 1)  # worker 2 stands in for worker 1: its children deliver what 1's children own
    assert [(share.task, share.providers) for share in needs.shares] == [
        (5, (9, 10)),
        (6, (9, 10)),
        (7, (11, 12)),
        (8, (11, 12)),
    ]


def test_a_leaf_can_stand_in_for_a_parent() -> None:
    lopsided = Tree.balanced(workers=5, fanout=4, stragglers=1)
    assert lopsided.sizes == (1, 3, 2)
    plan = CodedReduce(lopsided, 1).plan(samples=50)
    assert plan.needs(1, 1).shares
    assert not plan.needs(2, 1).shares
    assert len(plan.unit(2, 1).pieces) == 3, "worker 2 computes what 1 and its two children own, each by itself"
    gradients = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)
    assert plan.reference(gradients, {1}).tobytes() == plan.reference(gradients).tobytes()


def test_tolerance_is_checked_level_by_level() -> None:
    plan = CodedReduce(tree(4, 2), 1).plan(samples=2000)
    assert plan.tolerates({1, 3, 5, 7, 9, 11})
    assert plan.tolerates({5, 6}), "worker 1 is cut off, worker 2 stands in"
    assert not plan.tolerates({5, 6, 9, 10})
    assert not plan.tolerates({1, 2})
    with pytest.raises(TooManyStragglers, match=r"missing \{1, 2\}, but only 1 straggler"):
        plan.reference(np.ones((2000, 1)), {1, 2})
    with pytest.raises(PlanError, match=r"1\.\.20; got \[0, 21\]"):
        plan.tolerates({0, 3, 21})


def test_live_compensation_scales_what_it_has() -> None:
    plan = LiveCompensation(5, wait_for=3, blocks=2).plan(samples=50)
    assert len(next(plan.units(1)).pieces) == 2
    assert plan.reference(np.ones((50, 1)), {2, 5}) == pytest.approx(50)
    assert not plan.tolerates({1, 2, 3})


def test_ring_segments_add_in_ring_order() -> None:
    plan = RingAllReduce(3).plan(samples=3)
    gradients = np.array([[1e8, 1.0, -1e8]] * 3, dtype=np.float32) * np.array([[1], [-1], [1e-8]], dtype=np.float32)
    parts = list(gradients)
    expected = [
        (parts[0][0] + parts[1][0]) + parts[2][0],
        (parts[1][1] + parts[2][1]) + parts[0][1],
        (parts[2][2] + parts[0][2]) + parts[1][2],
    ]
    assert plan.reference(gradients).tolist() == expected


def test_one_node_of_a_million() -> None:
    plan = CodedReduce(tree(10, 6), 1).plan(samples=10**8)
    tracemalloc.start()
    begin = time.process_time()
    units, calm_load = list(plan.units(1_111_110)), plan.calm_load(1_111_110)
    elapsed = time.process_time() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert calm_load == 91
    assert len(units) == 2**6
    assert units[0].pieces[0][0].stop == 10**8
    assert peak < 1_000_000
    assert elapsed < 5, "milliseconds; seconds would mean that all workers were visited"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: MasterWorker(0), SchemeError, "got 0"),
        (lambda: RingAllReduce(-1), SchemeError, "got -1"),
        (lambda: GradientCoding(4, 4), SchemeError, "4 children tolerates 0 to 3 stragglers, got stragglers=4"),
        (lambda: GradientCoding(4, 1, code="magic"), SchemeError, "'magic'"),
        (lambda: LiveCompensation(4, wait_for=5), SchemeError, "1 to 4, the number of workers, got 5"),
        (lambda: LiveCompensation(4, wait_for=2, blocks=0), SchemeError, "got 0"),
        (lambda: CodedReduce(tree(3, 2), 3), SchemeError, "stragglers=3"),
        (lambda: CodedReduce(tree(3, 2), 1, order="later"), SchemeError, "'later'"),
        (lambda: CodedReduce(tree(3, 2), 1, code="cyclic"), SchemeError, "needs order='eager'"),
        (lambda: CodedReduce(tree(2, 1), 1, capacity=[1]), SchemeError, "2 workers, got 1"),
        (lambda: CodedReduce(tree(2, 1), 1, capacity=[1, -1]), SchemeError, "worker 2 .*got -1"),
        (lambda: CodedReduce(tree(2, 1), 1, capacity=[1, 1], order="eager"), SchemeError, "capacity= needs"),
        (lambda: CodedReduce(tree(4, 3), 1).plan(samples=83), PlanError, "83 samples .* 84 workers"),
        (lambda: CodedReduce(tree(4, 3), 1, order="eager").plan(samples=13), PlanError, "13 samples .* 14 units"),
        (
            lambda: CodedReduce(tree(4, 3), 1, order="eager", code="cyclic").plan(samples=27),
            PlanError,
            "27 samples .* 28 parts",
        ),
        (lambda: RingAllReduce(5).plan(samples=4), PlanError, "4 samples .* 5 workers"),
        (lambda: MasterWorker(5).plan(samples=0), PlanError, "got 0"),
        (lambda: LiveCompensation(4, wait_for=3, blocks=4).plan(samples=15), PlanError, "each in 4 blocks"),
        (
            lambda: CodedReduce(Tree.balanced(workers=7, fanout=3), 2).plan(samples=99),
            SchemeError,
            "at least 3 children under each parent, but a parent on level 0 of this tree has only 2",
        ),
        (
            lambda: CodedReduce(Tree.balanced(workers=5, fanout=4, stragglers=1), 1, order="eager").plan(samples=50),
            SchemeError,
            "all leaves on the last level",
        ),
        (
            lambda: CodedReduce(tree(2, 1), 1, capacity=[1, 1000]).plan(samples=50),
            PlanError,
            "worker 1 with capacity 1 of 1001 would get none of 50",
        ),
        (lambda: MasterWorker(3).plan(samples=9).units(0), PlanError, "the root, node 0, has no data"),
    ],
)
def test_errors_name_the_values(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
