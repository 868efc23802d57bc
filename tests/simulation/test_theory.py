"""The simulator against a Monte-Carlo of the same model that shares none of its code."""

import numpy as np
import pytest

from codedreduce.simulator import parse_delays
from codedreduce.simulator.scenario import Scenario


def eager_round(n: int, L: int, s: int, load: float, vector: float, latency: float, startup: np.ndarray) -> float:
    """The time of one eager round over a regular tree, by recursion; an interface carries one vector at a time."""

    def children(node: int) -> list[int]:
        return [n * node + i for i in range(1, n + 1)]

    def sum_ready(node: int, level: int, model_at: float) -> float:
        own = 0.0 if node == 0 else model_at + startup[node - 1] + load
        if level == L:
            return own
        sent = sorted(
            (sum_ready(child, level + 1, model_at + (place + 1) * vector + latency), place)
            for place, child in enumerate(children(node))
        )
        busy = 0.0
        first: dict[int, float] = {}
        for ready, place in sent:
            busy = max(ready + vector + latency, busy + vector)
            first.setdefault(place // (s + 1), busy)
            if len(first) == n // (s + 1):
                break
        return max(own, *first.values())

    return sum_ready(0, 0, 0.0)


@pytest.mark.parametrize(
    ("tree", "n", "L", "s"), [("4x3", 4, 3, 1), ("6x2", 6, 2, 1), ("6x2", 6, 2, 2), ("12x1", 12, 1, 3)]
)
@pytest.mark.parametrize("delays", ["calm", "exponential", "stalls:0.05:2s", "bursty"])
def test_eager_round_times(tree: str, n: int, L: int, s: int, delays: str) -> None:
    rounds = 60
    scenario = Scenario(tree=tree, stragglers=s, order="eager", delays=delays, rounds=rounds, parameters=5000)
    plan = scenario.plan()
    simulated = scenario.cluster().run(rounds).seconds()
    model = parse_delays(delays, workers=plan.workers, unit=scenario.compute / plan.workers, seed=scenario.seed)
    r = 1 / sum((n / (s + 1)) ** level for level in range(1, L + 1))
    vector = (4 * scenario.parameters + 100) / scenario.rate
    expected = [
        eager_round(n, L, s, r * scenario.compute, vector, scenario.latency, model.draw(index).startup)
        for index in range(1, rounds + 1)
    ]
    assert simulated.mean() == pytest.approx(np.mean(expected), rel=0.05)
    assert np.median(simulated) == pytest.approx(np.median(expected), rel=0.05)
