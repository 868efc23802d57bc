"""What can go wrong, at a given node in a given round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from codedreduce.errors import UsageError

Kind = Literal["crash", "pause", "cut", "slow", "duplicate", "reorder", "corrupt"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """From `after` seconds into a round, for `seconds`, a node or the link to its parent is not what it should be.

    crash: the process is gone, and a new one comes up in its place. pause: nothing moves. cut: what goes over the link
    is lost. slow: the interface is `factor` times slower. duplicate, reorder, corrupt: the node's messages arrive
    twice, late and out of order, or damaged.
    """

    kind: Kind
    node: int
    round: int
    after: float = 0.0
    seconds: float = float("inf")
    factor: float = 20.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"unknown fault {self.kind!r}; there are {', '.join(KINDS)}")
        if self.node < 1:
            raise UsageError(f"only workers can fail, 1 and above; got node {self.node}")


def fail_at(node: int, round_: int, kind: Kind = "crash") -> Fault:
    """A node fails at the start of a round, for good.

    >>> fail_at(3, 10).kind
    'crash'
    """
    return Fault(kind=kind, node=node, round=round_)


def random_faults(workers: int, rounds: int, unit: float, seed: int) -> list[Fault]:
    """A schedule of faults: a few nodes, now and then, for a fraction of a round up to several."""
    random = np.random.default_rng([seed, 77])
    faults = []
    for _ in range(int(random.integers(0, 2 * rounds))):
        faults.append(
            Fault(
                kind=KINDS[int(random.integers(len(KINDS)))],
                node=int(random.integers(1, workers + 1)),
                round=int(random.integers(1, rounds + 1)),
                after=float(random.uniform(0, 2 * unit)),
                seconds=float(random.exponential(3 * unit)),
                factor=float(random.uniform(2, 50)),
            )
        )
    return faults
