"""What every world must do: run a plan, give the gradient of every round, and give the same bits as any other world."""

from collections.abc import Callable

import numpy as np

from codedreduce import Scheme
from codedreduce.node.local import LocalCluster
from codedreduce.protocol import Settings
from codedreduce.run.world import RoundResult
from codedreduce.run.world import World as NodeWorld
from codedreduce.schemes import Piece, Plan, StripedPlan
from codedreduce.simulator import Conditions, Gradients, Link, SimulatedCluster, parse_delays
from tests.simulation.invariants import Invariants

#: Runs a plan for some rounds with these gradients and settings; the vectors the root got.
World = Callable[[Plan, Gradients, Settings, int], list[np.ndarray]]

ROUNDS = 6


def check_world(world: World, scheme: Scheme, *, parameters: int, chunk: int) -> None:
    plan = scheme.plan(samples=240)
    gradients = Gradients(240, parameters, seed=4)
    if isinstance(plan, StripedPlan):
        chunk = plan.chunk(parameters, 4, 4 * chunk)
    settings = Settings(length=parameters, chunk=chunk, least_head_start=0.05)
    vectors = world(plan, gradients, settings, ROUNDS)
    assert len(vectors) == ROUNDS
    for round_, vector in enumerate(vectors, start=1):
        truth = gradients.truth(round_)
        assert np.linalg.norm(vector - truth) < 1e-4 * np.linalg.norm(truth)
        model = gradients.model(round_)
        if getattr(scheme, "bit_identical", True):
            calm = plan.reference(lambda piece, model=model: gradients.of_piece(piece, model))
            assert vector.tobytes() == calm.tobytes()


def simulated(plan: Plan, gradients: Gradients, settings: Settings, rounds: int) -> list[np.ndarray]:
    delays = parse_delays("stalls:0.05:3s", workers=plan.workers, unit=0.1, seed=1)
    cluster = SimulatedCluster(plan, settings, Conditions(link=Link(), delays=delays), gradients, observer=Invariants())
    vectors: dict[int, np.ndarray] = {}
    cluster.run(rounds, on_sum=lambda action: vectors.setdefault(action.round, action.vector.copy()))
    return [vectors[round_] for round_ in sorted(vectors)]


def local(*, shared_memory: bool) -> World:
    def world(plan: Plan, gradients: Gradients, settings: Settings, rounds: int) -> list[np.ndarray]:
        def gradient(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
            out[:] = gradients.of_piece(piece, model)

        def member(node: NodeWorld) -> None:
            """What the other nodes do where all begin rounds: the same, and they must get the same bits."""
            for round_ in range(1, rounds + 1):
                result = node.aggregate(gradients.model(round_))
                assert isinstance(result, RoundResult)
                calm = plan.reference(lambda piece, round_=round_: gradients.of_piece(piece, gradients.model(round_)))
                assert result.vector.tobytes() == calm.tobytes()

        with LocalCluster.of(plan, gradient, settings, shared_memory=shared_memory, member=member) as cluster:
            return [cluster.sum_of(gradients.model(round_)).vector.copy() for round_ in range(1, rounds + 1)]

    return world
