"""What every scheme must do, and straggler sets to do it under."""

from collections.abc import Iterator

import numpy as np
import pytest

from codedreduce import LiveCompensation, Plan, Scheme, TooManyStragglers
from codedreduce.schemes import StripedPlan, TreePlan
from codedreduce.schemes.plan import samples_in


def check_scheme(scheme: Scheme, samples: int) -> None:
    plan = scheme.plan(samples=samples)
    assert plan.workers == scheme.workers
    check_tiles(plan)
    integers = np.random.default_rng(samples).integers(-50, 50, (samples, 3)).astype(np.float64)
    floats = np.random.default_rng(samples).standard_normal((samples, 40)).astype(np.float32)
    truth = integers.sum(axis=0)
    seen = set()
    for stragglers in straggler_sets(plan):
        if not plan.tolerates(stragglers):
            with pytest.raises(TooManyStragglers):
                plan.reference(integers, stragglers)
            continue
        exact = plan.reference(integers, stragglers)
        if not isinstance(scheme, LiveCompensation) or not stragglers:
            bound = 0 if bit_identical(plan) else 1e-9
            np.testing.assert_allclose(exact, truth, rtol=bound, atol=50 * bound * samples)
        seen.add(plan.reference(floats, stragglers).tobytes())
    assert plan.tolerates(())
    if bit_identical(plan):
        assert len(seen) == 1, "the same bits whoever straggles"
        result = np.frombuffer(seen.pop(), np.float32)
        rounding = samples * np.finfo(np.float32).eps * np.abs(floats).sum(axis=0)
        assert (np.abs(result - floats.astype(np.float64).sum(axis=0)) <= rounding).all()


def bit_identical(plan: Plan) -> bool:
    return plan.scheme.bit_identical if isinstance(plan, TreePlan) else True


def check_tiles(plan: Plan) -> None:
    """What a calm round computes covers every sample, and each worker's work is what the plan says it is."""
    covered = np.zeros(plan.samples, dtype=int)
    for node in plan.computing:
        assert node in plan.group(node)
        units, calm = tuple(plan.units(node)), tuple(plan.calm_units(node))
        assert calm == units[: len(calm)]
        assert plan.calm_load(node) == sum(samples_in(unit.pieces) for unit in calm) > 0
        assert plan.load(node) == sum(samples_in(unit.pieces) for unit in units)
        for unit in units:
            plan.needs(node, unit.task)
        for piece in (piece for unit in calm for piece in unit.pieces):
            for part in piece:
                assert 0 <= part.start < part.stop <= plan.samples
                covered[part.start : part.stop] += 1
    assert (covered > 0).all()


def straggler_sets(plan: Plan, limit: int = 60) -> Iterator[set[int]]:
    """Every set of stragglers when few; else a sample, most of it tolerated."""
    workers = plan.computing
    if plan.workers <= 6:
        for pattern in range(2**plan.workers):
            yield {node for place, node in enumerate(workers) if pattern >> place & 1}
        return
    random = np.random.default_rng(plan.workers)
    tolerance = getattr(plan.scheme, "stragglers", 0)
    yield set()
    for _ in range(limit):
        if isinstance(plan, TreePlan) and tolerance:
            yield most_tolerated(plan, tolerance, random)
        if isinstance(plan, StripedPlan):
            yield most_of_each_group(plan, random)
        yield set(random.choice(workers, random.integers(1, 4), replace=False).tolist())


def most_of_each_group(plan: StripedPlan, random: np.random.Generator) -> set[int]:
    """All ranks but one of each group; rank 0 is one of those that are left."""
    chosen = set(plan.computing)
    for group in {plan.group(node).start: plan.group(node) for node in plan.computing}.values():
        chosen.discard(0 if 0 in group else int(random.choice(group)))
    assert plan.tolerates(chosen)
    return chosen


def most_tolerated(plan: TreePlan, tolerance: int, random: np.random.Generator) -> set[int]:
    """As many stragglers as tolerated, in every group (repetition) or under every parent (cyclic)."""
    chosen: set[int] = set()
    sets = {(g.start, g.stop): g for g in (plan.group(node) for node in range(1, plan.workers + 1))}
    families = list(sets.values())
    if any(len(family) <= tolerance for family in families):
        families = [plan.tree.children(node) for node in range(plan.workers + 1) if plan.tree.children(node)]
    for family in families:
        chosen |= set(random.choice(family, tolerance, replace=False).tolist())
    assert plan.tolerates(chosen)
    return chosen
