"""What users do wrong first: each mistake is one line that says what to do, once a run, and no traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench.forked import run_forked
from torch import nn

import codedreduce.torch as cr
from codedreduce.errors import UsageError
from codedreduce.launch.environment import read_membership
from tests.command import codedreduce
from tests.command import script as run_here
from tests.waiting import PATIENCE

from .torch_model import BATCH, Model, data, losses

NUMPY = """
import os, sys
from codedreduce.training import LogisticRegression, synthetic, train
rank, what = os.environ.get("RANK", "0"), sys.argv[1]
if what == "never joins" or (what == "ends early" and rank == "1"):
    sys.exit()
if what == "raises" and rank == "1":
    raise RuntimeError("my own bug")
train(LogisticRegression(), synthetic(60, 5), rounds=3, batch=7000 if what == "too large" else 30)
"""

TORCH = """
import os, sys, torch, torch.nn.functional as F
import codedreduce.torch as cr

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(60, 5), torch.randint(0, 2, (60,)))
model = torch.nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

with cr.join() as cluster:
    steps = cluster.train(model, data, losses, batch_size=30, steps=4)
    if sys.argv[1] == "trains":
        for step in steps:
            optimizer.step()
        print("ranks", cluster.size, [p.sum().item() for p in model.parameters()], os.environ.get("LOCAL_RANK"))
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("never joins", 2, "no process has joined the run: each of the 3 ran the whole script by itself"),
        ("ends early", 2, "rank 1 ended without an error before the training that the others wait in"),
        ("too large", 2, "a batch has 1 to 60 samples, as many as there are; got 7000 (script.py, line 9)"),
    ],
)
def test_under_the_launcher_a_mistake_is_one_line(tmp_path: Path, what: str, code: int, message: str) -> None:
    run = codedreduce("run", "-n", "3", script(tmp_path, NUMPY), what)
    assert run.returncode == code, run.stdout + run.stderr
    assert message in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1, "one a run, not one a process"
    assert "Traceback" not in run.stdout + run.stderr


def test_a_traceback_is_there_for_who_wants_it(tmp_path: Path) -> None:
    path = script(tmp_path, NUMPY)
    run = subprocess.run(
        [sys.executable, "-m", "codedreduce", "run", "-n", "2", path, "too large"], capture_output=True, text=True,
        timeout=120, env={**os.environ, "CODEDREDUCE_DEBUG": "1"}, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "Traceback" in run.stdout
    assert "got 7000" in run.stdout


def test_of_a_rank_that_raises_its_last_words_are_shown(tmp_path: Path) -> None:
    """Though only what rank 0 prints is shown otherwise."""
    run = codedreduce("run", "-n", "2", script(tmp_path, NUMPY), "raises")
    assert run.returncode == 1
    assert "[1] RuntimeError: my own bug" in run.stdout
    assert "rank 1 ended with exit code 1; its last words are above" in run.stderr


def torchrun(path: str, processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_training_without_a_loop_is_said_once_under_any_launcher(tmp_path: Path) -> None:
    path = script(tmp_path, TORCH)
    said = r"codedreduce: (rank \d: )?cluster\.train\(\.\.\.\) was called, but nothing was trained"
    for run in (torchrun(path, 2, "forgets"), codedreduce("run", "-n", "2", path, "forgets")):
        assert run.returncode
        assert len(re.findall(said, run.stdout + run.stderr)) == 1, run.stdout + run.stderr
        assert "UsageError" not in run.stderr


def test_torchrun_with_one_process_is_alone(tmp_path: Path) -> None:
    """The same numbers, and nobody is met."""
    path = script(tmp_path, TORCH)
    alone = run_here(Path(path), "trains", timeout=PATIENCE)
    one = torchrun(path, 1, "trains")
    assert alone.stdout.startswith("ranks 1 ")
    assert one.stdout == alone.stdout.replace("None", "0"), one.stderr


def test_what_is_half_said_of_a_run_is_refused() -> None:
    base = {"RANK": "1", "WORLD_SIZE": "7", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name in ("STRAGGLERS", "SCHEME", "ORDER"):
        with pytest.raises(UsageError, match=f"CODEDREDUCE_{name}=1 has no effect without CODEDREDUCE_TREE"):
            read_membership({**base, f"CODEDREDUCE_{name}": "1"})
    with pytest.raises(UsageError, match="set MASTER_ADDR and MASTER_PORT"):
        read_membership({"RANK": "1", "WORLD_SIZE": "7"})


def test_wrapped_models_are_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for wrapped, name in (
            (nn.parallel.DistributedDataParallel(Model()), "DistributedDataParallel"),
            (nn.Sequential(nn.DataParallel(Model())), "DataParallel"),
        ):
            with cr.join(environment={}) as cluster, pytest.raises(UsageError, match=f"wrapped in {name}"):
                cluster.train(wrapped, data(), losses, BATCH, 2)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("differs", "has"), [("steps", "30 steps"), ("batch_size", "batches of 30 computed whole")])
def test_in_stripes_who_differs_is_named_on_all_ranks_and_nobody_waits(differs: str, has: str) -> None:
    """Rank 0 would wait 120 s for one that has ended."""

    def train() -> None:
        with cr.join() as cluster:
            said = {"steps": 5, "batch_size": BATCH, **({differs: 30} if cluster.rank == 1 else {})}
            for _ in cluster.train(Model(), data(), losses, **said):
                pass

    outcome = run_forked(train, 3, {"CODEDREDUCE_TIMING": "0.2"}, within=60)
    assert outcome.codes == {0: 1, 1: 1, 2: 1}
    for error in outcome.errors.values():
        first = error.splitlines()[0]
        assert first.startswith("JoinRefused: ")
        assert f"rank 1 has {has}, and the root" in first
