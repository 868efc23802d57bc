"""The same experiments in virtual time: to choose each scheme's tolerance, and to compare with what was measured."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import msgspec

from bench.paper.experiments import LATENCY, PAYLOAD, RATE, TURN, UNIT, WARM_UP, Experiment, delay_model
from codedreduce.comparison.selection import gradient_coding_choices, scenario_for
from codedreduce.errors import UsageError
from codedreduce.run.tuning import LEAST_HEAD_START, worth_announcing
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.scenario import Scenario

#: A scheme with its tolerance, and the mean round of every tolerance that was tried.
Choice = tuple[Scenario, dict[str, float]]

#: Seconds of arithmetic of a sample, about, where nothing else takes time.
ARITHMETIC = 10e-6

#: Rounds each tolerance is tried for.
SWEEP_ROUNDS = 25


def scenario(experiment: Experiment, delays: str) -> Scenario:
    """The experiment as a scenario, progressive with s=1."""
    return Scenario(
        tree=experiment.tree, delays=delay_model(delays), rate=RATE * PAYLOAD, latency=LATENCY,
        samples=experiment.samples,
        parameters=experiment.parameters + 1, compute=experiment.compute(delays) or ARITHMETIC * experiment.samples,
        least_head_start=LEAST_HEAD_START, turn=TURN,
        announce=worth_announcing(experiment.parameters + 1, 4),
    )  # fmt: skip


def candidates(experiment: Experiment, name: str, base: Scenario) -> list[Scenario]:
    """A scheme with every tolerance worth trying."""
    if name == "gradient-coding":
        return [scenario_for(base, name, tolerance) for tolerance in gradient_coding_choices(experiment.workers)]
    if name in ("eager", "progressive"):
        tolerances = [s for s in range(1, experiment.fanout) if experiment.fanout % (s + 1) == 0]
        return [scenario_for(msgspec.structs.replace(base, stragglers=s), name) for s in tolerances]
    return [scenario_for(base, name)]


def simulate_all(scenarios: list[Scenario], rounds: int) -> list[float]:
    """The mean round of each."""
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(mean_round, scenarios, [rounds] * len(scenarios)))


def mean_round(one: Scenario, rounds: int) -> float:
    """Mean seconds of a round, not counting those that are not counted in the lab either."""
    run = msgspec.structs.replace(one, rounds=rounds + WARM_UP)
    cluster = run.cluster(gradients=Gradients(run.samples, run.parameters, run.seed))
    return float(cluster.run(run.rounds).seconds()[WARM_UP:].mean())


def messages_a_round(one: Scenario, rounds: int = 10) -> float:
    """Messages that are sent in a round, acknowledgements not counted."""
    run = msgspec.structs.replace(one, rounds=rounds)
    cluster = run.cluster(gradients=Gradients(run.samples, run.parameters, run.seed))
    cluster.run(rounds)
    return cluster.network.messages / rounds


def _swept(ones: list[Scenario]) -> Choice:
    """The tolerance with the shortest mean round. Those are left out that compute for longer than the best one took."""
    times: dict[str, float] = {}
    best = (float("inf"), ones[0])
    for one in ones:
        if _tolerance(one) > 5 and (_tolerance(one) + 1) * UNIT / 2 > best[0]:
            continue
        try:
            time = mean_round(one, SWEEP_ROUNDS)
        except UsageError:  # a tolerance that this tree does not have
            continue
        times[str(_tolerance(one))] = time
        best = min(best, (time, one), key=lambda pair: pair[0])
    return best[1], times if len(times) > 1 else {}


def best_schemes(
    experiment: Experiment, conditions: dict[str, str], jobs: list[tuple[str, str]]
) -> dict[str, dict[str, Choice]]:
    """For every condition and scheme of the jobs the best tolerance, and what those tried took."""
    bases = {condition: scenario(experiment, delays) for condition, delays in conditions.items()}
    found: dict[str, dict[str, Choice]] = {condition: {} for condition in conditions}
    with ProcessPoolExecutor(2) as pool:
        tried = pool.map(_swept, [candidates(experiment, name, bases[condition]) for condition, name in jobs])
        for (condition, name), choice in zip(jobs, tried, strict=True):
            found[condition][name] = choice
    return found


def _tolerance(one: Scenario) -> int:
    return one.stragglers if one.scheme == "coded-reduce" else one.tolerance or 0
