"""Rank 0 of four real processes is killed: another leads, no round is lost, and rank 0 comes back as one of many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codedreduce.process.addresses import free_port
from tests.waiting import LINGER, PATIENCE, wait_until

pytest.importorskip("torch")

RANKS, STEPS, SEED = 4, 200, 3

SCRIPT = f"""
import hashlib, os, signal, sys, time
import torch
import torch.nn.functional as F
import codedreduce.torch as cr

steps, hurry, dies_in, out = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
{LINGER}
torch.manual_seed(1)
model = torch.nn.Linear(20, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(960, 20), torch.randint(0, 3, (960,)))


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


with open(out, "a") as file, cr.join() as cluster:
    for step in cluster.train(model, data, losses, batch_size=96, steps=steps, state=[optimizer], seed=3):
        optimizer.step()
        print(step.round, cluster.is_root, file=file, flush=True)
        if step.round == dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        linger(hurry, steps - step.round)
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("end", hashlib.sha1(bits).hexdigest(), cluster.is_root, file=file, flush=True)
"""


class Processes:
    """Ranks, started by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hurry = folder / "hurry"
        self.environment = {
            **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS),
            "CODEDREDUCE_ORPHANED_AFTER": "60",
        }  # fmt: skip
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int, dies_in: int = 0) -> None:
        out = self.folder / f"{rank}.txt"
        command = [sys.executable, "-c", SCRIPT, str(STEPS), str(self.hurry), str(dies_in), str(out)]
        environment = {**self.environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        self.running[rank] = subprocess.Popen(command, env=environment)

    def wait(self) -> dict[int, int]:
        try:
            return {rank: process.wait(timeout=PATIENCE) for rank, process in self.running.items()}
        finally:
            for process in self.running.values():
                process.kill()

    def told(self, rank: int) -> list[list[str]]:
        path = self.folder / f"{rank}.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    processes = Processes(tmp_path_factory.mktemp("calm"))
    processes.hurry.touch()
    for rank in range(RANKS):
        processes.start(rank)
    assert set(processes.wait().values()) == {0}
    bits = {processes.told(rank)[-1][1] for rank in range(RANKS)}
    assert len(bits) == 1
    return bits.pop()


def test_rank_0_is_killed_and_comes_back(tmp_path: Path, undisturbed: str) -> None:
    processes = Processes(tmp_path)
    for rank in range(RANKS):
        processes.start(rank, dies_in=0 if rank else 10)
    assert processes.running[0].wait(timeout=PATIENCE) == -signal.SIGKILL
    while len(processes.told(1)) < 20:
        assert processes.running[1].poll() is None, "the others go on"
        time.sleep(0.05)
    first = len(processes.told(0))
    processes.start(0)
    assert wait_until(lambda: len(processes.told(0)) > first), "it is in again"
    processes.hurry.touch()
    codes = processes.wait()
    assert codes == dict.fromkeys(range(RANKS), 0)
    for rank in range(RANKS):
        assert processes.told(rank)[-1][:2] == ["end", undisturbed], f"rank {rank} has other bits"
    for rank in range(1, RANKS):
        rounds = [int(round_) for round_, _ in processes.told(rank)[:-1]]
        assert rounds == list(range(1, STEPS + 1)), "no round is lost"
    roots = {rank for rank in range(RANKS) if processes.told(rank)[-1][2] == "True"}
    assert len(roots) == 1
    assert 0 not in roots, "who comes back follows"


def test_all_others_are_killed_at_once_and_the_last_goes_on_alone(tmp_path: Path, undisturbed: str) -> None:
    processes = Processes(tmp_path)
    for rank in range(RANKS):
        processes.start(rank)
    while len(processes.told(RANKS - 1)) < 10:
        assert processes.running[RANKS - 1].poll() is None
        time.sleep(0.05)
    for rank in reversed(range(RANKS - 1)):
        processes.running[rank].kill()
    processes.hurry.touch()
    codes = processes.wait()
    assert codes == {**dict.fromkeys(range(RANKS - 1), -signal.SIGKILL), RANKS - 1: 0}
    assert processes.told(RANKS - 1)[-1] == ["end", undisturbed, "True"]
