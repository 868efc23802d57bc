"""Rank 0 of four real processes is killed: another leads, no round is lost, and rank 0 comes back as one of many."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from codedreduce.process.addresses import free_port
from tests.waiting import PATIENCE, linger, wait_until

torch = pytest.importorskip("torch")

import codedreduce.torch as cr  # noqa: E402

from .torch_model import BATCH, Model, data, losses  # noqa: E402

RANKS, STEPS, SEED = 4, 200, 3


def rank_trains(environment: dict[str, str], hurry: Path, dies_in: int, out: Path) -> None:
    """What a process does: it writes down its rounds, and whether it leads."""
    os.environ.update(environment)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with out.open("a") as file, cr.join() as cluster:
        for step in cluster.train(model, data(), losses, BATCH, STEPS, state=[optimizer], seed=SEED):
            optimizer.step()
            print(step.round, cluster.is_root, file=file, flush=True)
            if step.round == dies_in:
                os.kill(os.getpid(), signal.SIGKILL)
            linger(str(hurry), STEPS - step.round)
        bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        print("end", hashlib.sha1(bits).hexdigest(), cluster.is_root, file=file, flush=True)


class Processes:
    """Ranks, started by hand: forked from this process, which has torch loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hurry = folder / "hurry"
        self.environment = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS),
            "CODEDREDUCE_ORPHANED_AFTER": "60",
        }  # fmt: skip
        self.running: dict[int, BaseProcess] = {}

    def start(self, rank: int, dies_in: int = 0) -> None:
        out = self.folder / f"{rank}.txt"
        environment = {**self.environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = get_context("fork").Process(target=rank_trains, args=(environment, self.hurry, dies_in, out))
        process.start()
        self.running[rank] = process

    def code(self, rank: int) -> int | None:
        """The exit code of a rank's process, once it has ended."""
        self.running[rank].join(PATIENCE)
        return self.running[rank].exitcode

    def wait(self) -> dict[int, int | None]:
        try:
            return {rank: self.code(rank) for rank in self.running}
        finally:
            for process in self.running.values():
                process.kill()

    def told(self, rank: int) -> list[list[str]]:
        path = self.folder / f"{rank}.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits of one process that does the units of all."""
    processes = Processes(tmp_path_factory.mktemp("calm"))
    processes.environment |= {"WORLD_SIZE": "1", "CODEDREDUCE_UNITS": str(RANKS)}
    processes.hurry.touch()
    processes.start(0)
    assert processes.wait() == {0: 0}
    return processes.told(0)[-1][1]


def test_rank_0_is_killed_and_comes_back(tmp_path: Path, undisturbed: str) -> None:
    processes = Processes(tmp_path)
    for rank in range(RANKS):
        processes.start(rank, dies_in=0 if rank else 10)
    assert processes.code(0) == -signal.SIGKILL
    while len(processes.told(1)) < 20:
        assert processes.running[1].is_alive(), "the others go on"
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
    assert sum(processes.told(rank)[-1][2] == "True" for rank in range(RANKS)) == 1
    assert processes.told(0)[first][1] == "False", "who comes back follows"


def test_all_others_are_killed_at_once_and_the_last_goes_on_alone(tmp_path: Path, undisturbed: str) -> None:
    processes = Processes(tmp_path)
    for rank in range(RANKS):
        processes.start(rank)
    while len(processes.told(RANKS - 1)) < 10:
        assert processes.running[RANKS - 1].is_alive()
        time.sleep(0.05)
    for rank in reversed(range(RANKS - 1)):
        processes.running[rank].kill()
    processes.hurry.touch()
    codes = processes.wait()
    assert codes == {**dict.fromkeys(range(RANKS - 1), -signal.SIGKILL), RANKS - 1: 0}
    assert processes.told(RANKS - 1)[-1] == ["end", undisturbed, "True"]
