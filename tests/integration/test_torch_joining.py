"""PyTorch: joining a run under launchers, and what is refused there, on every node."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import codedreduce.torch as cr

from .test_launcher import nobody_runs
from .torch_model import BATCH, Model, data, losses, run_ranks


def test_settings_that_differ_between_nodes_are_refused() -> None:
    def script() -> None:
        with cr.join() as cluster:
            for _ in cluster.train(Model(), data(), losses, BATCH, 5, seed=int(os.environ["RANK"]) // 2):
                pass

    outcome = run_ranks(script, workers=2, tree="2x1", root_within=5, timing=0.2)
    assert "seed 1" in outcome.errors[0]
    assert "seed 0" in outcome.errors[2]
    assert outcome.errors[2].startswith("JoinRefused: rank 2 has")


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


class Unsized(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("batchnorm", "BatchNorm1d in training mode"),
        ("reduced", r"it returned ()"),
        ("per-class", r"it returned (8, 4)"),
        ("iterable", "Endless can only be iterated"),
        ("unsized", "Unsized has no length"),
        ("frozen", "no parameter that requires a gradient"),
        ("batch", "a batch has 1 to 200 samples"),
        ("wire", "wire must be None or 'bfloat16', got 'float8'"),
    ],
)
def test_what_cannot_work_is_said_on_every_node(tmp_path: Path, what: str, message: str) -> None:
    def script() -> None:
        model: nn.Module = nn.Sequential(nn.Linear(10, 4))
        dataset, lossy, options = data(), losses, {}
        if what == "batchnorm":
            model.append(nn.BatchNorm1d(4))
        elif what == "reduced":
            lossy = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
        elif what == "per-class":
            lossy = lambda model, batch: model(batch[0])  # noqa: E731
        elif what == "iterable":
            dataset = Endless()
        elif what == "unsized":
            dataset = Unsized()
        elif what == "frozen":
            model.requires_grad_(False)
        elif what == "wire":
            options = {"wire": "float8"}
        with cr.join() as cluster:
            for _ in cluster.train(model, dataset, lossy, 300 if what == "batch" else BATCH, 5, **options):
                pass

    outcome = run_ranks(script, workers=2, tree="2x1")
    assert outcome.codes == {0: 1, 1: 1, 2: 1}
    for error in outcome.errors.values():
        assert error.startswith("UsageError")
        assert message in error


@pytest.mark.parametrize(("what", "odd"), [("shape", 2), ("shape", 5), ("frozen values", 5), ("buffer", 5)])
def test_another_model_on_another_node_is_refused(tmp_path: Path, what: str, odd: int) -> None:
    def script() -> None:
        model = Model()
        model.register_buffer("table", torch.arange(3.0))
        if os.environ["RANK"] == str(odd):
            if what == "shape":
                model.last = nn.Linear(20, 4, bias=False)
            elif what == "frozen values":
                model.frozen.weight.data += 1
            else:
                model.table += 1
        with cr.join() as cluster:
            for _ in cluster.train(model, data(), losses, BATCH, 5):
                pass

    outcome = run_ranks(script, root_within=5, orphaned_after=1, timing=0.2)
    differs = "a model with" if what == "shape" else "frozen parameters and buffers with the digest"
    for node in (0, odd):
        first, *_ = outcome.errors[node].splitlines()
        assert first.startswith(f"JoinRefused: rank {odd} has {differs}")
        assert "seed" not in first, "nothing is named but what differs"
    assert None not in outcome.codes.values(), "somebody hangs"


def test_under_torchrun(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        """
import os, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import TensorDataset
import codedreduce.torch as cr
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(60, 5), torch.randint(0, 2, (60,)))
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")
with cr.join() as cluster:
    for step in cluster.train(model, dataset, losses, batch_size=30, steps=5):
        optimizer.step()
        os.write(1, f"round {step.round} of {cluster.size} processes\\n".encode())  # one write: lines do not mix
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("of 2 processes") == 10, "every process steps"
    assert nobody_runs(str(path))
