"""A process alone: it gives what ranks give, and leaves a script's random state as it was."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import codedreduce.torch as cr
from codedreduce import Scheme, Striped

from .test_torch_loading import Augmented
from .test_torch_striped import bits_of, digest
from .torch_model import BATCH, Model, data, losses, run_forked

SCRIPT = """
import random, sys
import numpy as np, torch
import torch.nn.functional as F
import codedreduce.torch as cr

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 3))
dataset = torch.utils.data.TensorDataset(torch.randn(100, 20), torch.randint(0, 3, (100,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
threads = torch.get_num_threads()

def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

with cr.join() as cluster:
    for step in cluster.train(model, dataset, losses, 40, 4, state=[optimizer]):
        optimizer.step()
        with torch.no_grad():
            model[0].bias += 0.01 * torch.rand(64) + np.random.rand() + random.random()
        during = torch.get_num_threads()
    if cluster.is_root:
        bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        print("bits", hash(bits), during, torch.get_num_threads() == threads)
"""


def state() -> list[object]:
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]


def test_the_bits_of_ranks_without_a_launcher(tmp_path: Path) -> None:
    """The same script, by `codedreduce run -n 3` and by `python`, where torch would take more than one core."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    variables["PYTHONHASHSEED"] = "0"
    commands = {
        "ranks": ([sys.executable, "-m", "codedreduce", "run", "-n", "3", str(script)], {}),
        "alone": ([sys.executable, str(script)], {"CODEDREDUCE_UNITS": "3"}),
    }
    said = {}
    for name, (command, more) in commands.items():
        found = subprocess.run(command, env={**variables, **more}, capture_output=True, text=True, timeout=200)
        assert found.returncode == 0, found.stdout + found.stderr
        (said[name],) = [line.partition("bits ")[2].split() for line in found.stdout.splitlines() if "bits " in line]
    assert said["alone"][0] == said["ranks"][0]
    assert said["alone"][1:] == ["1", "True"], "one thread meanwhile, and as many as before afterwards"


def trained(folder: Path, scheme: Scheme | None, **of: float) -> Callable[[], None]:
    """Leaves the bits it ends with, and whether random generators are as they were."""

    def script() -> None:
        model = Model(torch.float64, **of)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(11)
        np.random.seed(12)
        random.seed(13)
        begin = state()
        with cr.join(scheme) as cluster:
            for _ in cluster.train(model, Augmented(folder), losses, BATCH, 5, seed=3, state=[optimizer]):
                optimizer.step()
                with torch.no_grad():
                    model.last.bias += 0.1 * torch.rand(4) + np.random.rand() + random.random()
        assert state() == begin
        torch.save(list(model.parameters()), folder / f"model-{cluster.rank}")
        (folder / f"{cluster.rank}").write_text(digest(*model.parameters()))

    return script


def test_without_dropout_any_number_of_ranks_is_the_same_up_to_rounding(tmp_path: Path) -> None:
    """Also where the dataset and the loop body draw random numbers."""
    trained(tmp_path, None)()
    alone = torch.load(tmp_path / "model-0")
    assert run_forked(trained(tmp_path, Striped(2)), 2).codes == {0: 0, 1: 0}
    for one, other in zip(alone, torch.load(tmp_path / "model-0"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_with_dropout_the_ranks_must_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_forked(trained(tmp_path, None, dropout=0.3), 4)
    assert not any(outcome.codes.values()), outcome.errors
    ranks = bits_of(tmp_path)
    trained(tmp_path, Striped(4), dropout=0.3)()
    assert (tmp_path / "0").read_text() == ranks
    monkeypatch.setenv("CODEDREDUCE_UNITS", "4")
    trained(tmp_path, None, dropout=0.3)()
    assert (tmp_path / "0").read_text() == ranks


def test_a_break_and_an_error_leave_the_random_state_too() -> None:
    model = Model(dropout=0.2)
    begin = state()
    for _ in cr.join().train(model, data(), losses, BATCH, 5):
        assert state() != begin
        break
    assert state() == begin

    def fails(model: torch.nn.Module, batch: object, step: tuple) -> torch.Tensor:
        if step.round == 2:
            raise OSError("no")
        return losses(model, batch)

    steps = cr.join().train(model, data(), fails, BATCH, 5)
    next(steps)
    with pytest.raises(OSError, match="no"):
        next(steps)
    assert state() == begin
