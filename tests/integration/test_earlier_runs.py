"""Runs at one port, one after the other: a process of the earlier that was stopped, and goes on, is not in the later.

Also two processes that are told to be one rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codedreduce.net.rendezvous.probing import is_dead
from codedreduce.process.addresses import free_port
from tests.waiting import PATIENCE, wait_until

RANKS, STEPS = 3, 60

#: Steps, and the pause after each, of a run that is killed, however long what comes meanwhile takes.
ENDLESS = ("100000", "0.5")

SCRIPT = """
import hashlib, sys, time
import numpy as np
from codedreduce import Striped
from codedreduce.training import LogisticRegression, SGD, synthetic, train

steps, pause, out, seed = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
data, start = synthetic(96, 20), np.random.default_rng(seed).standard_normal(20).astype(np.float32)

def on_round(log):
    print("round", log.round, file=file, flush=True)
    time.sleep(pause)

with open(out, "a") as file:
    print("up", file=file, flush=True)
    found = train(LogisticRegression(), data, scheme=Striped(3), rounds=steps, batch=48, optimizer=SGD(0.1),
                  start=start, on_round=on_round)
    print("end", hashlib.sha1(found.parameters.tobytes()).hexdigest(), file=file, flush=True)
"""


class Ranks:
    """Processes of a run at a port, as launchers start them that give it no name."""

    def __init__(self, folder: Path, port: int, seed: int, pause: float = 0.0) -> None:
        folder.mkdir()
        self.folder, self.arguments, self.seed = folder, (str(STEPS), str(pause)), str(seed)
        self.environment = {
            **os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", "CODEDREDUCE_ORPHANED_AFTER": "60",
        }  # fmt: skip
        self.rank_is = "RANK"  # what the launcher calls it
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, rank: int | None, name: str = "", timing: float = 1.0) -> subprocess.Popen[str]:
        """One of them; or a process that is alone."""
        name = name or str(rank)
        command = [sys.executable, "-c", SCRIPT, *self.arguments, str(self.folder / name), self.seed]
        environment = {**self.environment, self.rank_is: str(rank)} if rank is not None else dict(os.environ)
        environment["CODEDREDUCE_TIMING"] = str(timing)
        with (self.folder / f"{name}.errors").open("w") as errors:
            self.processes[name] = subprocess.Popen(command, env=environment, text=True, stderr=errors)
        return self.processes[name]

    def told(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def warned(self, name: str) -> str:
        """What it has printed as errors."""
        return (self.folder / f"{name}.errors").read_text()

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Ranks]]:
    port = free_port()
    made = [Ranks(tmp_path / "earlier", port, 1, pause=0.5), Ranks(tmp_path / "later", port, 2)]
    yield made
    for run in made:
        run.kill()


def test_a_worker_of_an_earlier_run_is_not_in_the_next_at_the_same_port(runs: list[Ranks]) -> None:
    earlier, later = runs
    for rank in range(RANKS):
        earlier.start(rank)
    assert wait_until(lambda: "round 3" in earlier.told("1"))
    stale = earlier.processes["1"]
    stale.send_signal(signal.SIGSTOP)
    for rank in (0, 2):
        earlier.processes[str(rank)].kill()
        earlier.processes[str(rank)].wait()
    later.start(0)
    later.start(2)
    address = f"tcp://127.0.0.1:{later.environment['MASTER_PORT']}"
    assert wait_until(lambda: not is_dead(address, within=1.0)), "before the old one goes on, and answers there itself"
    stale.send_signal(signal.SIGCONT)
    time.sleep(2.0)  # rank 1 of the new run is late, and the old one has every chance
    assert not [line for line in later.told("0") if "round" in line], "the run must wait for its own rank 1"
    later.start(1)
    ends = {}
    for rank in range(RANKS):
        code = later.processes[str(rank)].wait(timeout=PATIENCE)
        assert code == 0, later.warned(str(rank))
        assert later.told(str(rank))[1:-1] == [f"round {round_}" for round_ in range(1, STEPS + 1)]
        ends[rank] = later.told(str(rank))[-1]
    assert later.start(None, name="alone").wait(timeout=PATIENCE) == 0
    assert set(ends.values()) == {later.told("alone")[-1]}, "and its gradients were of no other model"
    assert "a process of an earlier run came to tcp://127.0.0.1" in later.warned("0")


def test_a_second_process_of_a_rank_is_refused_on_both_sides(runs: list[Ranks]) -> None:
    run, _ = runs
    run.arguments = ENDLESS
    for rank in range(RANKS):
        run.start(rank)
    assert wait_until(lambda: "round 2" in run.told("1"))
    second = run.start(1, name="second", timing=0.1)  # it asks for 0.8 s, not 8 s
    assert second.wait(timeout=PATIENCE) == 2
    said = run.warned("second")
    assert "codedreduce: rank 1 is taken: its process is in the run" in said
    assert "Traceback" not in said
    assert run.told("second") == ["up"], "it took no part"
    before = len(run.told("1"))
    assert wait_until(lambda: len(run.told("1")) > before + 1), "and the first one does as before"
    assert wait_until(lambda: "a second process came as rank 1 and was rejected" in run.warned("0"))


def test_a_later_launch_does_not_join_a_root_that_holds_its_port(runs: list[Ranks]) -> None:
    """Where the launcher says which launch it is: nobody of it is taken for one who comes back."""
    earlier, later = runs
    for run, job in ((earlier, "77"), (later, "78")):
        run.environment |= {"SLURM_NTASKS": str(RANKS), "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0"}
        del run.environment["WORLD_SIZE"]
        run.rank_is = "SLURM_PROCID"
        run.arguments = ENDLESS
    later.environment["CODEDREDUCE_ROOT_WITHIN"] = "3"
    for rank in range(RANKS):
        earlier.start(rank)
    assert wait_until(lambda: "round 2" in earlier.told("0"))
    earlier.processes["1"].kill()  # its place is free
    earlier.processes["1"].wait()
    for rank in (0, 1):
        later.start(rank)
    for rank in (0, 1):
        assert later.processes[str(rank)].wait(timeout=PATIENCE) == 2
        said = later.warned(str(rank))
        assert "belongs to another run: end the processes of that run, or choose another MASTER_PORT" in said, said
        assert "Traceback" not in said
        assert not [line for line in later.told(str(rank)) if "round" in line]
    before = len(earlier.told("0"))
    assert wait_until(lambda: len(earlier.told("0")) > before + 1), "and that goes on"
