"""The training under chaos: small, and deliberately slow, as on a busy host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedreduce.launch.environment import Membership
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme
from codedreduce.training.checkpoints import saving_to
from codedreduce.training.data import synthetic
from codedreduce.training.loop import Job
from codedreduce.training.objectives import LogisticRegression
from codedreduce.training.optimizers import parse_optimizer

Array = npt.NDArray[Any]

#: Samples in all; samples in a batch; features; seconds that one worker needs for a batch.
SAMPLES, BATCH, FEATURES, COMPUTE = 960, 240, 1000, 2.4

#: A number of rounds that no run reaches.
ENDLESS = 10_000_000

#: Rounds between two checkpoints of a root.
CHECKPOINT_EVERY = 5


@dataclass(frozen=True)
class Looking(LogisticRegression):
    """Logistic regression that calls `look` before every computation."""

    look: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def evaluate(self, model: Array, x: Array, y: Array, weights: Array | None, gradient: Array) -> float:
        """Call `look`, then evaluate."""
        self.look()
        return super().evaluate(model, x, y, weights, gradient)


def numpy_job(
    scheme: Scheme,
    rounds: int,
    *,
    checkpoints: Path | None = None,
    membership: Membership | None = None,
    look: Callable[[], None] = lambda: None,
    until: Callable[[RoundLog], bool] | None = None,
) -> Job:
    """A training in NumPy. With momentum, so that a repeated or missing round changes the result."""
    return Job(
        objective=Looking(look), source=synthetic(SAMPLES, FEATURES), scheme=scheme, rounds=rounds, batch=BATCH, seed=7,
        optimizer=parse_optimizer("momentum", 0.05), compute=COMPUTE, until=until,
        saving=saving_to(checkpoints, CHECKPOINT_EVERY, resume=True, membership=membership) if checkpoints else None,
    )  # fmt: skip


def random_rows(samples: int, features: int) -> tuple[Array, Array]:
    """Data for a PyTorch model of ten classes."""
    random = np.random.default_rng(7)
    return random.standard_normal((samples, features), dtype=np.float32), random.integers(0, 10, samples)
