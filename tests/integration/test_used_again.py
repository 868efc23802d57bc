"""A process that was killed and started again computes within two rounds of being up; over a tree and in stripes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from codedreduce.node.local import LocalCluster
from codedreduce.protocol import Settings
from codedreduce.run.world import World
from codedreduce.schemes import Piece, Scheme, Striped
from codedreduce.schemes.names import default_scheme
from codedreduce.schemes.plan import samples_in

LENGTH, SAMPLES, ROUNDS, WORKERS, KILLED, SECONDS = 50, 60, 10, 6, 2, 0.6
MODEL = np.arange(LENGTH, dtype=np.float32)


class Slow:
    """The model, once for every sample, after a while; each process writes down when it is up, and what it computes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self, node: int) -> None:
        self._write(f"up {node} {os.getpid()} {time.monotonic()}")

    def __call__(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        self._write(f"computes {node} {os.getpid()} {round_}")
        count = samples_in((piece,))
        time.sleep(SECONDS * count * WORKERS / SAMPLES)
        out[:] = count * model

    def _write(self, line: str) -> None:
        with (self._folder / "said").open("a") as file:
            file.write(line + "\n")

    def said(self) -> list[list[str]]:
        return [line.split() for line in (self._folder / "said").read_text().splitlines()]


@pytest.mark.parametrize("scheme", [default_scheme(WORKERS), Striped(WORKERS)], ids=str)
def test_a_restarted_process_is_used_within_two_rounds(scheme: Scheme, tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    began: dict[int, float] = {}

    def member(world: World) -> None:
        while world.aggregate(MODEL).round < ROUNDS:
            pass

    plan = scheme.plan(samples=SAMPLES)
    with LocalCluster.of(plan, slow, Settings(length=LENGTH), member=member, restart=True) as cluster:
        for round_ in range(1, ROUNDS + 1):
            began[round_] = time.monotonic()
            if round_ == 3:
                os.kill(killed := cluster.processes[KILLED], signal.SIGKILL)
            np.testing.assert_array_equal(cluster.sum_of(MODEL).vector, SAMPLES * MODEL)
    of_new = [(what, value) for what, node, pid, value in slow.said() if int(node) == KILLED and int(pid) != killed]
    (up,) = [float(value) for what, value in of_new if what == "up"]
    was_on = max(round_ for round_, at in began.items() if at <= up)
    used = min(int(value) for what, value in of_new if what == "computes")
    assert used <= was_on + 2
