"""`wire="bfloat16"`: gradients are rounded, what is beside them is not; by reference or through sockets, the same."""

import json
import math
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import codedreduce.torch as cr
from codedreduce import CodedReduce, Scheme, Striped, Tree
from codedreduce.memory.arena import Arena
from codedreduce.torch.device.pinned import PinnedMemory
from codedreduce.torch.rounds import roles

from .tensors import HERE, TensorMemory
from .test_torch_striped import digest
from .torch_model import BATCH, Model, data, losses, run_forked

RANKS = 3
TREE = CodedReduce(Tree.regular(fanout=2, depth=1), 1)


class PagedMemory(PinnedMemory):
    """As for a GPU that others cannot read, without one: what is computed is a tensor, what is lent is on the host."""

    def __init__(self) -> None:
        super().__init__(HERE)

    def shared(self, run: str, node: int, *, slots: int, chunks: int, length: int, dtype: npt.DTypeLike) -> Any:
        return Arena(run, node, slots=slots, length=length, dtype=dtype)


class Normalised(nn.Module):
    """With memory of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(10, 21)
        self.norm = nn.BatchNorm1d(21)
        self.last = nn.Linear(21, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def weighed(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    x, y = batch
    found = model(x)
    weights = 1 + y / 7
    right = (found.argmax(1) == y).float()
    return weights * F.cross_entropy(found, y, reduction="none"), weights, {"right": right, "index": y * 1000.0 + 1}


def trained(out: Path, scheme: Scheme, wire: str | None) -> None:
    model = Normalised()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first: dict[str, Any] = {}
    with cr.join(scheme) as cluster:
        for step in cluster.train(
            model, data(), weighed, BATCH, 4, seed=3, wire=wire, state=[optimizer], micro_batch=6, coupled="micro-batch"
        ):  # fmt: skip
            if step.round == 1:
                first = {
                    "loss": step.loss, **step.metrics, "gradient": model.first.weight.grad.tolist(),
                    "mean": model.norm.running_mean.tolist(), "variance": model.norm.running_var.tolist(),
                }  # fmt: skip
            optimizer.step()
        (out / f"{cluster.rank}").write_text(json.dumps({"first": first, "bits": digest(*model.state_dict().values())}))


def run(folder: Path, scheme: Scheme, wire: str | None, ranks: int = RANKS, **variables: str) -> dict[str, Any]:
    """What ranks have seen, which is the same on all that step."""
    said = {f"CODEDREDUCE_{name.upper()}": value for name, value in variables.items()}
    outcome = run_forked(lambda: trained(folder, scheme, wire), ranks, said)
    assert outcome.codes == dict.fromkeys(range(ranks), 0), outcome.errors
    found = [(folder / f"{rank}").read_text() for rank in range(ranks if isinstance(scheme, Striped) else 1)]
    assert len(set(found)) == 1
    result: dict[str, Any] = json.loads(found[0])
    return result


def check_beside(exact: dict[str, Any], rounded: dict[str, Any]) -> None:
    """What is beside gradients is what it is in float32; gradients are not."""
    for name in ("loss", "right", "index"):
        assert math.isclose(exact[name], rounded[name], rel_tol=1e-6), name
    for name in ("mean", "variance"):
        torch.testing.assert_close(torch.tensor(rounded[name]), torch.tensor(exact[name]), rtol=1e-6, atol=1e-7)
    gradients = [torch.tensor(one["gradient"]) for one in (rounded, exact)]
    assert not torch.equal(*gradients)
    torch.testing.assert_close(*gradients, rtol=0.02, atol=1e-3)


def test_in_stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = Striped(RANKS, stripes=2)
    exact = run(tmp_path, scheme, None)
    lent = run(tmp_path, scheme, "bfloat16")
    check_beside(exact["first"], lent["first"])
    assert run(tmp_path, scheme, "bfloat16", shared_memory="0") == lent, "through sockets they have other bits"
    for memory in (TensorMemory, PagedMemory):
        monkeypatch.setattr(roles, "memory_for", lambda device, run, memory=memory: memory())
        assert run(tmp_path, scheme, "bfloat16", inject="worker:2:0.5:0.2s") == lent, memory


def test_over_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers compute with the rounded model: here it is such from the begin, so that nothing else differs."""
    as_made = Normalised.__init__

    def make(model: Normalised) -> None:
        as_made(model)
        for one in model.parameters():
            one.data = one.data.bfloat16().float()

    monkeypatch.setattr(Normalised, "__init__", make)
    exact = run(tmp_path, TREE, None)
    check_beside(exact["first"], run(tmp_path, TREE, "bfloat16")["first"])


def test_gradients_are_sums_of_rounded_units_rounded_once(tmp_path: Path) -> None:
    """Against units that are computed here, one after the other."""

    def script() -> None:
        model, plain = Model(), Model()
        x, y = data()[cr.batch_indices(200, BATCH, 1, seed=3)]
        each = BATCH // RANKS
        totals: list[torch.Tensor] = []
        for unit in range(RANKS):
            plain.zero_grad()
            where = slice(unit * each, (unit + 1) * each)
            losses(plain, (x[where], y[where])).sum().backward()
            found = [one.grad.bfloat16().float() for one in plain.parameters() if one.grad is not None]
            totals = [one + other for one, other in zip(totals, found, strict=True)] if totals else found
        with cr.join(Striped(RANKS)) as cluster:
            for _ in cluster.train(model, data(), losses, BATCH, 1, seed=3, wire="bfloat16"):
                mine = [one.grad for one in model.parameters() if one.grad is not None]
                for one, total in zip(mine, totals, strict=True):
                    assert torch.equal(one, total.bfloat16().float() / torch.tensor(float(BATCH)))
                (tmp_path / str(cluster.rank)).touch()

    outcome = run_forked(script, RANKS, {})
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert len(list(tmp_path.iterdir())) == RANKS
