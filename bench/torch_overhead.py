"""What a round of PyTorch training costs beyond computing, beside a copy of the same bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.measure import interleaved
from codedreduce import CodedReduce, Tree
from codedreduce.schemes.work import Piece
from codedreduce.torch.layout import Layout
from codedreduce.worlds.tuning import settings_for
from codedreduce.worlds.zeromq.local import LocalCluster

REPEATS = 15


def overhead(model: torch.nn.Module) -> dict[str, Any]:
    """Milliseconds of each part, and as multiples of a copy."""
    layout = Layout(model)
    vector, other = (np.ones(layout.length, dtype=layout.dtype) for _ in range(2))
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    sides: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(other, vector),
        "model to vector (root)": lambda: layout.read_model(vector),
        "vector to model (worker)": lambda: layout.write_model(vector),
        "gradients to vector (worker)": lambda: layout.read_gradients(vector, torch.zeros(1)),
        "vector to gradients, mean (root)": lambda: layout.write_gradients(vector, 7),
    }
    for side in sides.values():
        side()
    times = interleaved(REPEATS, *sides.values())
    found = {name: 1000 * statistics.median(log) for name, log in zip(sides, times, strict=True)}
    found["send, sum and return, 6 workers"] = 1000 * _round(layout)
    result = {"bytes": layout.length * layout.dtype.itemsize, "milliseconds": found}
    result["of_a_copy"] = {name: value / found["copy"] for name, value in found.items()}
    return result


def _round(layout: Layout) -> float:
    """Seconds of a round in which nothing is computed but a vector of ones."""
    plan = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)

    def ones(piece: Piece, model: Any, round_: int, out: Any, node: int) -> None:
        out[:] = 1

    settings = settings_for(plan, layout.length, shared_memory=True)
    model = np.zeros(layout.length, dtype=layout.dtype)
    with LocalCluster.of(plan, ones, settings, dtype=layout.dtype) as cluster:
        seconds = [cluster.sum_of(model).seconds for _ in range(REPEATS)]
    return statistics.median(seconds[3:])
