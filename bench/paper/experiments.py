"""The paper's two clusters, and the conditions they are put under. Fixed: nothing here follows from a result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codedreduce.training.data import Source, synthetic
from codedreduce.training.objectives import LinearRegression, LogisticRegression, Objective

#: Seconds an uncoded worker computes in a round.
UNIT = 0.1

#: Of every node's interface, each way.
RATE = 60e6 / 8

#: Bytes of a vector that a token bucket lets through for each byte it counts: a packet carries 1448 of its 1514.
PAYLOAD = 1448 / 1514

#: Seconds for a small message between two nodes of the lab, as measured.
LATENCY = 0.0002

#: Bytes that ZeroMQ sends over one connection before it turns to the next.
TURN = 8192

#: Rounds that are run but not counted: connections open, data is read.
WARM_UP = 2

#: A condition in which nothing is slept: a worker's samples take what their arithmetic takes here.
NOTHING_INJECTED = "nothing_injected"

#: The traces, and which of their matrices.
TRACES = {
    "ec2_persistent": "data4",
    "lambda_cold_starts": "Sydney_load0.500",
    "lambda_heavy_tail": "Canada_load0.500",
    "gpu_llm_mild": "SE_stage0",
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A tree, a model and its data, as in the paper."""

    name: str
    tree: str
    workers: int
    fanout: int
    samples: int
    parameters: int
    objective: Objective
    kind: str
    learning_rate: float

    def compute(self, condition: str) -> float:
        """Seconds the whole batch takes one worker at least, under a condition's delays."""
        return 0.0 if condition == NOTHING_INJECTED else UNIT * self.workers

    def data(self) -> Source:
        """Made from a seed."""
        return synthetic(self.samples, self.parameters, seed=0, kind=self.kind)


EXPERIMENTS = (
    Experiment(
        name="84", tree="4x3", workers=84, fanout=4, samples=6300, parameters=5800, objective=LinearRegression(),
        kind="linear", learning_rate=0.1,
    ),
    Experiment(
        name="156", tree="12x2", workers=156, fanout=12, samples=6552, parameters=5000,
        objective=LogisticRegression(), kind="logistic", learning_rate=1.0,
    ),
)  # fmt: skip


def delay_model(condition: str) -> str:
    """The delays of a condition as schemes take them."""
    return "calm" if condition == NOTHING_INJECTED else condition


def conditions(traces: Path | None) -> dict[str, str]:
    """Delay models by the name of the condition; with no folder of traces, models like them."""
    found = {NOTHING_INJECTED: NOTHING_INJECTED, "calm": "calm", "exponential": "exponential"}
    if traces is None:
        return {**found, "bursty": "bursty", "sticky": "sticky"}
    for name, key in TRACES.items():
        path = traces / f"{name}.npz"
        with np.load(path) as archive:
            if key not in archive:
                raise SystemExit(f"{path} has no {key}")
        found[name] = f"{path}:{key}"
    return found
