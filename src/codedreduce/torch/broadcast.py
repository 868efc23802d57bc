"""Broadcasts the leader's object to all ranks, by a training of one round with a state transfer from the leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from codedreduce.torch.cluster import Cluster


def share(cluster: Cluster, thing: Any) -> Any:
    """Return the leader's object (of numbers, text and tensors) on all ranks; every member of the run must call this.

    If parameters differ before the first round, all ranks take them from the leader, together with `state`. So each
    rank starts with another parameter on purpose.
    """
    if cluster.size == 1:
        return thing
    held, mark = {"thing": thing}, torch.nn.Module()
    state = SimpleNamespace(state_dict=lambda: held, load_state_dict=held.update)
    mark.register_parameter("rank", torch.nn.Parameter(torch.tensor([float(cluster.rank)])))
    units = max(cluster.size, getattr(cluster.scheme, "units", None) or 0)

    def losses(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model.rank * batch  # type: ignore[operator]

    for _ in cluster.train(mark, torch.ones(units), losses, batch_size=units, steps=1, state=[state]):
        pass
    return held["thing"]
