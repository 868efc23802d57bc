"""Random n, s, L, d, codes and orders: the root gets the true sum, and loads are what the mathematics says."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from codedreduce import CodedReduce, GradientCoding, MasterWorker, Tree
from codedreduce.errors import CodeError
from tests.contract.check_scheme import check_scheme


@st.composite
def shapes(draw) -> tuple[int, int, int, int]:
    """n, L, s, d with at most about 90 workers."""
    fanout = draw(st.integers(1, 9))
    depth = draw(st.integers(1, max(level for level in range(1, 5) if fanout**level <= 81)))
    stragglers = draw(st.integers(0, fanout - 1))
    workers = Tree.regular(fanout=fanout, depth=depth).workers
    return fanout, depth, stragglers, draw(st.integers(max(4 * workers, 2), 4 * workers + 500))


@settings(max_examples=60)
@given(shapes(), st.sampled_from(["progressive", "eager"]))
def test_repetition_is_exact_and_the_same_bits(shape: tuple[int, int, int, int], order) -> None:
    n, L, s, d = shape
    check_scheme(CodedReduce(Tree.regular(fanout=n, depth=L), s, order=order), d)


@settings(max_examples=40)
@given(shapes())
def test_cyclic_is_exact_within_its_bound(shape: tuple[int, int, int, int]) -> None:
    n, L, s, d = shape
    scheme = CodedReduce(Tree.regular(fanout=n, depth=L), s, code="cyclic", order="eager")
    plan = scheme.plan(samples=(s + 1) * d)
    try:
        code = plan.needs(0, 0).code
    except CodeError:
        return
    if s == 0:
        assert code is None, "nothing to decode"
        return
    assert code is not None
    gradients = np.random.default_rng(d).standard_normal((plan.samples, 30)).astype(np.float32)
    truth = gradients.astype(np.float64).sum(axis=0)
    random = np.random.default_rng(d)
    bound = 4 * L * np.finfo(np.float32).eps * code.amplification() ** L * np.sqrt(plan.samples)
    for _ in range(5):
        stragglers: set[int] = set()
        for parent in range(plan.workers + 1):
            if children := plan.tree.children(parent):
                stragglers |= set(random.choice(children, s, replace=False).tolist())
        error = np.linalg.norm(plan.reference(gradients, stragglers) - truth) / np.linalg.norm(truth)
        assert error <= bound


@given(shapes())
def test_eager_loads_match_r(shape: tuple[int, int, int, int]) -> None:
    n, L, s, d = shape
    r = 1 / sum(Fraction(n, s + 1) ** level for level in range(1, L + 1))
    tree = Tree.regular(fanout=n, depth=L)
    for code in ("repetition", "cyclic") if n % (s + 1) == 0 else ("cyclic",):
        samples = d if code == "repetition" else (s + 1) * d
        plan = CodedReduce(tree, s, code=code, order="eager").plan(samples=samples)
        for node in {level[0] for level in tree.levels()} | {level[-1] for level in tree.levels()}:
            if node:
                parts = (s + 1) ** tree.level(node)
                assert abs(plan.load(node) - r * samples) <= parts


@given(shapes())
def test_progressive_loads(shape: tuple[int, int, int, int]) -> None:
    n, L, s, d = shape
    tree = Tree.regular(fanout=n, depth=L)
    plan = CodedReduce(tree, s).plan(samples=d)
    for node in {level[0] for level in tree.levels()} | {level[-1] for level in tree.levels()}:
        if node:
            assert abs(plan.calm_load(node) - Fraction(d, tree.workers)) < 1
            replicas = sum(1 for _ in plan.units(node))
            if n % (s + 1) == 0:
                assert replicas == (s + 1) ** tree.level(node)
            assert abs(plan.load(node) - Fraction(replicas * d, tree.workers)) < replicas
            assert len({unit.task for unit in plan.units(node)}) == replicas
    if L == 1 and n % (s + 1) == 0:
        eager = CodedReduce(tree, s, order="eager").plan(samples=d)
        assert abs(plan.load(1) - eager.load(1)) <= s + 1


@given(workers=st.integers(1, 30), extra=st.integers(0, 300), data=st.data())
def test_gradient_coding_loads(workers: int, extra: int, data) -> None:
    stragglers = data.draw(st.integers(0, min(workers - 1, 4)))
    samples = workers * (stragglers + 1) + extra
    plan = GradientCoding(workers, stragglers, code="cyclic").plan(samples=samples)
    for node in range(1, workers + 1):
        assert abs(plan.load(node) - Fraction((stragglers + 1) * samples, workers)) <= stragglers + 1


@settings(max_examples=40)
@given(
    workers=st.integers(2, 60),
    fanout=st.integers(2, 8),
    stragglers=st.integers(0, 2),
    data=st.data(),
)
def test_irregular_trees_and_unequal_capacities(workers: int, fanout: int, stragglers: int, data) -> None:
    try:
        tree = Tree.balanced(workers=workers, fanout=fanout, stragglers=stragglers)
    except ValueError:
        return
    capacity = data.draw(st.none() | st.lists(st.sampled_from([0.5, 1, 1.7, 4]), min_size=workers, max_size=workers))
    samples = data.draw(st.integers(20 * workers, 30 * workers))
    plan = CodedReduce(tree, stragglers, capacity=capacity).plan(samples=samples)
    total = sum(capacity) if capacity else workers
    for node in range(1, workers + 1):
        ideal = samples * (capacity[node - 1] if capacity else 1) / total
        assert abs(plan.calm_load(node) - ideal) < 1 + 1e-9
    check_scheme(CodedReduce(tree, stragglers, capacity=capacity), samples)


@given(st.integers(1, 40), st.integers(0, 500))
def test_master_worker_tiles_evenly(workers: int, extra: int) -> None:
    plan = MasterWorker(workers).plan(samples=workers + extra)
    loads = [plan.load(node) for node in range(1, workers + 1)]
    assert sum(loads) == workers + extra
    assert max(loads) - min(loads) <= 1
