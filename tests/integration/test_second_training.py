"""A script that trains twice, and loses a process in the first training: the second begins with those that are there.

A process that was started again skips the training that is over, and takes what came of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import LINGER, PATIENCE

torch = pytest.importorskip("torch")

import codedreduce.torch as cr  # noqa: E402

from .torch_model import BATCH, Model, data, losses, run_forked  # noqa: E402

RANKS = 3

#: Bits, and how many steps of the second training it saw, by rank.
Seen = dict[int, tuple[str, int]]

IN_TORCH = f"""
import hashlib, os, signal, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import codedreduce.torch as cr

killed, out = int(sys.argv[1]), sys.argv[2]
waits = "waits" in sys.argv
restarted = "CODEDREDUCE_RESTARTED" in os.environ
hurry, second = os.path.join(out, "hurry"), os.path.join(out, "second")
{LINGER}
while restarted and not os.path.exists(second):
    time.sleep(0.05)  # until the second training has begun
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(60, 5), torch.randint(0, 2, (60,)))
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

with cr.join() as cluster:
    seen = 0
    for training in (1, 2):
        for step in cluster.train(model, data, losses, batch_size=30, steps=40, state=[optimizer], seed=training):
            optimizer.step()
            seen += training == 2
            if training == 1 and not restarted and step.round == 5 and cluster.rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            if training == 2 and waits:
                open(second, "w").close()
                if restarted:
                    open(hurry, "w").close()
                linger(hurry, 40 - step.round)
    bits = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    with open(os.path.join(out, str(cluster.rank)), "w") as file:
        print(bits, seen, file=file)
"""

IN_NUMPY = """
import hashlib, os, signal, sys
from codedreduce.training import LogisticRegression, synthetic, train

killed, out, rank = int(sys.argv[1]), sys.argv[2], os.environ["RANK"]

class Dying(LogisticRegression):
    calls = 0

    def evaluate(self, *given):
        Dying.calls += 1
        if Dying.calls == 5 and int(rank) == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(*given)

first = train(Dying(), synthetic(240, 20, seed=1), rounds=20, batch=120)
second = train(LogisticRegression(), synthetic(240, 20, seed=2), rounds=20, batch=120, start=first.parameters)
with open(os.path.join(out, rank), "w") as file:
    print(hashlib.sha1(second.parameters.tobytes()).hexdigest(), len(second.journal.rounds), file=file)
"""


def run(script: str, folder: Path, killed: int, *options: str, waits: bool = False) -> Seen:
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "codedreduce", "run", *options, str(path), str(killed), str(folder)]
    command += ["waits"] * waits
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == 0, found.stdout + found.stderr
    files = [one for one in folder.iterdir() if one.name.isdigit()]
    return {int(one.name): (one.read_text().split()[0], int(one.read_text().split()[1])) for one in files}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What comes of both trainings when nobody is killed: in one process, that does the units of all."""
    return run(IN_TORCH, tmp_path_factory.mktemp("nobody") / "calm", -1, "-n", "1", "--units", str(RANKS))


def test_rank_0_is_killed_and_the_others_train_again(tmp_path: Path, calm: Seen) -> None:
    left = run(IN_TORCH, tmp_path / "left", 0, "-n", str(RANKS))
    assert left == dict.fromkeys(range(1, RANKS), calm[0])


@pytest.mark.parametrize("killed", [0, 2])
def test_one_that_is_started_again_takes_part_in_the_second_training(tmp_path: Path, calm: Seen, killed: int) -> None:
    again = run(IN_TORCH, tmp_path / "again", killed, "-n", str(RANKS), "--restart", waits=True)
    assert {bits for bits, _ in again.values()} == {calm[0][0]}, "also who was killed has what came of both"
    assert set(again) == set(range(RANKS))
    assert 0 < again[killed][1] < 40, "it came into the second, which was on"
    assert all(seen == 40 for rank, (_, seen) in again.items() if rank != killed)


@pytest.mark.parametrize("options", [("-n", "4", "--scheme", "striped"), ("--tree", "2x2")], ids=str)
def test_in_numpy(tmp_path: Path, options: tuple[str, ...]) -> None:
    calm = run(IN_NUMPY, tmp_path / "calm", -1, *options)
    left = run(IN_NUMPY, tmp_path / "left", 3, *options)
    assert 3 not in left
    assert left[0] == calm[0]


def trains_twice(folder: Path, killed: int, pause: float) -> None:
    """One worker is killed in the first training, and the first process takes its time before the second."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with cr.join() as cluster:

        def dying(model: torch.nn.Module, batch: list[torch.Tensor], step: cr.Step) -> torch.Tensor:
            if cluster.rank == killed and step.round == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return losses(model, batch)

        for _ in cluster.train(model, data(), dying, BATCH, 10, state=[optimizer]):
            optimizer.step()
        meeting = replace(cluster._membership.meeting, root_within=0.5, all_within=0.5)
        cluster._membership = replace(cluster._membership, meeting=meeting)
        if cluster.rank == 0:
            time.sleep(pause)
        for step in cluster.train(model, data(), losses, BATCH, 10, state=[optimizer], seed=1):
            optimizer.step()
            if step.round == 10:
                bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters()).hex()
                (folder / f"{cluster.rank}").write_text(bits)


@pytest.mark.parametrize("tree", ["", "4x1"], ids=["stripes", "tree"])
def test_processes_wait_for_one_that_evaluates_between_and_do_without_one_that_was_killed(
    tmp_path: Path, tree: str
) -> None:
    processes, variables = (5, {"CODEDREDUCE_TREE": tree}) if tree else (4, {})
    calm = run_forked(lambda: trains_twice(tmp_path, -1, 0.0), processes, variables)
    assert set(calm.codes.values()) == {0}, calm
    expected = (tmp_path / "0").read_text()
    (tmp_path / "0").unlink()
    left = run_forked(lambda: trains_twice(tmp_path, 3, 2.5), processes, variables)
    assert left.codes == dict.fromkeys(range(processes), 0) | {3: -signal.SIGKILL}, left
    assert (tmp_path / "0").read_text() == expected
