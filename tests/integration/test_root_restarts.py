"""A tree's root is killed and started again, by whatever launcher: the same workers go on with it, to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from codedreduce.process.addresses import free_port
from tests.waiting import PATIENCE

ROUNDS = 40

NUMPY = """
import sys, time
import numpy as np
import codedreduce as cr
from codedreduce.training import SGD, LogisticRegression, synthetic

class Slow(LogisticRegression):
    def evaluate(self, *of):
        time.sleep(0.02)
        return super().evaluate(*of)

def on_round(log):
    print("round", log.round, flush=True)

print("up", flush=True)
result = cr.train(
    Slow(), synthetic(120, 40), rounds=40, optimizer=SGD(0.2, momentum=0.9), batch=60, on_round=on_round,
    checkpoint=sys.argv[1] if len(sys.argv) > 2 else None, every=4,
    scheme=cr.CodedReduce(cr.Tree.regular(fanout=2, depth=2), 1),
)
np.save(sys.argv[-1], result.parameters)
"""

TORCH = """
import sys, time
import numpy as np
import torch
import codedreduce as cr
import codedreduce.torch as crt
from tests.integration.torch_model import BATCH, Model, data, losses

def slow(model, batch):
    time.sleep(0.02)
    return losses(model, batch)

print("up", flush=True)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
with crt.join(cr.CodedReduce(cr.Tree.regular(fanout=2, depth=1), 1)) as cluster:
    for step in cluster.train(
        model, data(), slow, BATCH, 40, state=[optimizer],
        checkpoint=sys.argv[1] if len(sys.argv) > 2 else None, every=4,
    ):
        optimizer.step()
        print("round", step.round, flush=True)
np.save(sys.argv[-1], np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]))
"""


class Ranks:
    """Processes that are started by hand: a root and its workers."""

    def __init__(self, script: str, size: int, folder: Path, port: int, *arguments: str) -> None:
        self.script, self.folder, self.arguments = script, folder, arguments
        self.environment = {
            **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int, **more: str) -> subprocess.Popen[str]:
        name = self.folder / f"out-{rank}.npy"
        command = [sys.executable, "-c", self.script, *self.arguments, str(name)]
        self.processes[rank] = subprocess.Popen(
            command, env={**self.environment, "RANK": str(rank), **more}, text=True,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )  # fmt: skip
        return self.processes[rank]

    def lines(self) -> Iterator[str]:
        """What the root prints."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        return iter(stdout.readline, "")

    def end(self) -> list[int]:
        return [process.wait(timeout=PATIENCE) for process in self.processes.values()]

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.mark.parametrize(("script", "size"), [(NUMPY, 7), (TORCH, 3)], ids=["numpy", "torch"])
def test_a_root_that_is_killed_and_started_again(script: str, size: int, tmp_path: Path) -> None:
    calm = tmp_path / "calm.npy"
    alone = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", script, str(calm)], env=alone, text=True, stdout=subprocess.PIPE)
    assert found.returncode == 0
    assert found.stdout.count("round ") == ROUNDS, "a process alone goes through the same plan"
    ranks = Ranks(script, size, tmp_path, free_port(), str(tmp_path / "checkpoints"))
    try:
        next(line for line in ranks.lines() if line == "round 14\n")
        os.kill(ranks.processes[0].pid, signal.SIGKILL)
        ranks.processes[0].wait()
        workers = {rank: process.pid for rank, process in ranks.processes.items() if rank}
        time.sleep(1.0)
        ranks.start(0, CODEDREDUCE_RESTARTED="1")
        lines = ranks.lines()
        next(line for line in lines if line == "up\n")
        first = next(line for line in lines if line.startswith("round"))
        assert 5 <= int(first.split()[1]) <= 15, "it went on from a checkpoint"
        assert list(lines)[-1] == f"round {ROUNDS}\n"
        assert {rank: process.pid for rank, process in ranks.processes.items() if rank} == workers
        assert set(ranks.end()) == {0}, "and they ended as they should"
    finally:
        ranks.kill()
    np.testing.assert_array_equal(np.load(tmp_path / "out-0.npy"), np.load(calm))
