import numpy as np
import pytest

from codedreduce import CodedReduce, GradientCoding, LiveCompensation, MasterWorker, RingAllReduce, Striped, Tree

from .check_scheme import check_scheme


def tree(fanout: int, depth: int) -> Tree:
    return Tree.regular(fanout=fanout, depth=depth)


SCHEMES = [
    MasterWorker(1),
    MasterWorker(5),
    MasterWorker(5, capacity=(1, 2, 3, 4, 0.5)),
    RingAllReduce(1),
    RingAllReduce(5),
    RingAllReduce(9),
    GradientCoding(6, 0),
    GradientCoding(6, 2),
    GradientCoding(7, 2),
    GradientCoding(6, 2, code="cyclic"),
    GradientCoding(9, 3, code="cyclic"),
    GradientCoding(5, 2, code="cyclic", seed=3),
    LiveCompensation(6, wait_for=4, blocks=3),
    LiveCompensation(9, wait_for=9, blocks=1),
    *(
        CodedReduce(tree(n, depth), s, code=code, order=order)
        for n, depth, s in [(2, 2, 1), (2, 2, 0), (3, 2, 2), (5, 2, 1), (4, 3, 1), (6, 2, 2), (4, 1, 3)]
        for code, order in [("repetition", "progressive"), ("repetition", "eager"), ("cyclic", "eager")]
    ),
    *(
        CodedReduce(Tree.balanced(workers=workers, fanout=fanout, stragglers=s), s)
        for workers, fanout, s in [(5, 4, 1), (7, 4, 1), (9, 4, 1), (13, 3, 1), (23, 5, 2), (50, 4, 1), (20, 2, 1)]
    ),
    *(
        CodedReduce(Tree.balanced(workers=workers, fanout=fanout, stragglers=s), s, order="eager", code=code)
        for workers, fanout, s in [(7, 4, 1), (9, 4, 1), (50, 4, 1)]
        for code in ("repetition", "cyclic")
    ),
    Striped(1),
    Striped(2),
    Striped(6),
    Striped(5, blocks=1),
    Striped(5, reach=1),
    Striped(5, reach=2, stripes=1),
    Striped(7, reach=3, blocks=5),
    Striped(12, reach=2, blocks=8, stripes=4),
    Striped(37, reach=5),
    Striped(1, units=6),
    Striped(4, units=6),
    Striped(5, reach=2, units=12, blocks=3),
    Striped(9, reach=3, units=20),
    CodedReduce(tree(4, 2), 1, capacity=[1 + node % 3 for node in range(20)]),
    CodedReduce(Tree.balanced(workers=9, fanout=4, stragglers=1), 1, capacity=[1, 2, 1, 5, 1, 1, 3, 1, 1]),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("samples", [300, 1009])
def test_scheme(scheme, samples: int) -> None:
    check_scheme(scheme, samples)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_how_often_samples_are_held(scheme) -> None:
    plan = scheme.plan(samples=1009)
    holders = np.zeros(1009, dtype=int)
    for node in plan.computing:
        mine = {
            sample
            for unit in plan.held(node)
            for piece in unit.pieces
            for part in piece
            for sample in range(part.start, part.stop)
        }
        assert sorted(mine) == [sample for held in plan.holds(node) for sample in held]
        holders[list(mine)] += 1
    assert plan.copies() == (holders.min(), pytest.approx(holders.mean()), holders.max())
    assert holders.min() > getattr(scheme, "stragglers", 0) or isinstance(scheme, LiveCompensation)
