"""What one rank knows, on all of them: a training of one round, in which all take the state of the one that leads."""

from __future__ import annotations

from typing import Any

import torch

from codedreduce.torch.cluster import Cluster


class _Held:
    """Something to be taken along: numbers, text, tensors, lists and dictionaries of these."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def state_dict(self) -> dict[str, Any]:
        return {"thing": self.thing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.thing = state["thing"]


def share(cluster: Cluster, thing: Any) -> Any:
    """What the rank that leads has, when it has come here; all ranks must come that are still in the run.

    Parameters that differ before the first round are taken from it, with everything in `state`: so let them differ.
    """
    if cluster.size == 1:
        return thing
    held, mark = _Held(thing), torch.nn.Module()
    mark.register_parameter("rank", torch.nn.Parameter(torch.tensor([float(cluster.rank)])))
    units = max(cluster.size, getattr(cluster.scheme, "units", None) or 0)

    def losses(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model.rank * batch  # type: ignore[operator]

    for _ in cluster.train(mark, torch.ones(units), losses, batch_size=units, steps=1, state=[held]):
        pass
    return held.thing
