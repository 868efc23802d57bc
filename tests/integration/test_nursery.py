"""Workers that this process forks: also again, when they were killed, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from codedreduce import CodedReduce, Striped, Tree, train
from codedreduce.errors import WorkerFailed
from codedreduce.memory.arena import arenas_of
from codedreduce.process.nursery import Nursery
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme
from codedreduce.training import SGD, LogisticRegression, synthetic
from codedreduce.training.loop import Job, reference_run
from tests.waiting import PATIENCE, wait_until

TREE = CodedReduce(Tree.regular(fanout=2, depth=2), 1)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not psutil.Process().children(recursive=True)


class Noting(LogisticRegression):
    """Notes which processes compute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def evaluate(self, *arguments):
        (self.folder / str(os.getpid())).touch()
        time.sleep(0.002)
        return super().evaluate(*arguments)

    def others(self) -> set[int]:
        return {int(path.name) for path in self.folder.iterdir()} - {os.getpid()}


def expect_same_bits(scheme: Scheme, parameters: np.ndarray, rounds: int) -> None:
    """As one process computes it, directly from the plan."""
    job = Job(
        objective=LogisticRegression(), source=synthetic(600, 50), scheme=scheme, rounds=rounds,
        optimizer=SGD(0.1, momentum=0.9),
    )  # fmt: skip
    np.testing.assert_array_equal(parameters, reference_run(job, rounds)[0])


def train_and_kill(scheme: Scheme, folder: Path, kills: int) -> list[str]:
    """Train, killing the oldest worker as soon as all that should compute have done so; what was said."""
    objective = Noting(folder)
    workers = scheme.workers - isinstance(scheme, Striped)
    killed: list[int] = []
    notes: list[str] = []

    def until(log: RoundLog) -> bool:
        seen = objective.others()
        if len(seen) < workers + len(killed):
            return False
        if len(killed) == kills:
            return True
        killed.append(min(seen - set(killed)))
        os.kill(killed[-1], signal.SIGKILL)
        return False

    result = train(
        objective, synthetic(600, 50), scheme=scheme, rounds=100_000, optimizer=SGD(0.1, momentum=0.9), until=until,
        on_note=lambda note: notes.append(note.reason),
    )  # fmt: skip
    assert len(result.history) < 100_000, f"all but the last were used again; {notes}"
    expect_same_bits(scheme, result.parameters, len(result.history))
    return notes


@pytest.mark.parametrize("scheme", [TREE, Striped(4)], ids=str)
def test_killed_workers_are_started_again_and_used(tmp_path: Path, scheme: Scheme) -> None:
    notes = train_and_kill(scheme, tmp_path, kills=4)
    assert sum("was killed by signal 9, and is started again, the 1st time" in note for note in notes) >= 3


@pytest.mark.parametrize("scheme", [TREE, Striped(4)], ids=str)
def test_a_second_training_begins_after_a_kill(tmp_path: Path, scheme: Scheme) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        train_and_kill(scheme, folder, kills=1)


def test_without_restart_who_is_killed_stays_away(tmp_path: Path) -> None:
    objective = Noting(tmp_path)
    scheme = CodedReduce(Tree.regular(fanout=2, depth=1), 1)
    killed: set[int] = set()
    notes: list[str] = []

    def until(log: RoundLog) -> bool:
        if not killed and len(objective.others()) == 2:
            killed.update(objective.others())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return bool(killed) and log.round >= 5

    result = train(
        objective, synthetic(600, 50), scheme=scheme, rounds=100_000, optimizer=SGD(0.1, momentum=0.9), until=until,
        restart=False, replan_after=0.2, on_note=lambda note: notes.append(note.reason),
    )  # fmt: skip
    assert objective.others() == killed
    assert {"worker 1 was killed by signal 9", "worker 2 was killed by signal 9"} <= set(notes)
    expect_same_bits(scheme, result.parameters, len(result.history))


def test_a_nursery_forks_later_as_at_first() -> None:
    """This process has other threads by then, and other memory."""
    state = ["as it was"]
    reading, writing = os.pipe()

    def live(number: int) -> None:
        os.write(writing, f"{number} {state[0]} {threading.active_count()};".encode())

    nursery = Nursery(live)
    try:
        nursery.start(1)
        state[0] = "changed"
        stopping = threading.Event()
        thread = threading.Thread(target=stopping.wait)
        thread.start()
        ended: list[tuple[int, int]] = []
        assert wait_until(lambda: ended.extend(nursery.newly_ended()) or ended == [(1, 0)])
        first = nursery.pids[1]
        nursery.start(1)
        nursery.start(2)
        assert wait_until(lambda: ended.extend(nursery.newly_ended()) or len(ended) == 3)
        assert nursery.pids[1] != first
        stopping.set()
        thread.join()
    finally:
        nursery.end(1.0)
        os.close(writing)
    said = sorted(os.read(reading, 1000).decode().split(";")[:-1])
    os.close(reading)
    assert said == ["1 as it was 1", "1 as it was 1", "2 as it was 1"]


def test_how_workers_end_is_told() -> None:
    def live(number: int) -> None:
        if number == 1:
            raise ValueError("not today")
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    nursery = Nursery(live)
    for number in (1, 2, 3):
        nursery.start(number)
    ended: dict[int, int] = {}
    assert wait_until(lambda: ended.update(nursery.newly_ended()) or len(ended) == 2)
    assert ended == {1: 1, 2: -signal.SIGTERM}
    with pytest.raises(WorkerFailed, match="not today"):
        nursery.raise_what_was_raised()
    third = nursery.pids[3]
    nursery.end(0.0)
    assert not psutil.pid_exists(third)


def test_workers_that_are_stopped_are_ended_too() -> None:
    nursery = Nursery(lambda number: signal.pause())
    nursery.start(1)
    os.kill(nursery.pids[1], signal.SIGSTOP)
    nursery.end(0.0)
    assert not psutil.pid_exists(nursery.pids[1])


def test_a_nursery_that_is_killed_takes_its_workers_along() -> None:
    nursery = Nursery(lambda number: signal.pause())
    nursery.start(1)
    worker = nursery.pids[1]
    os.kill(psutil.Process(worker).ppid(), signal.SIGKILL)
    ended: list[tuple[int, int]] = []
    assert wait_until(lambda: ended.extend(nursery.newly_ended()) or ended == [(1, -signal.SIGKILL)])
    assert wait_until(lambda: not psutil.pid_exists(worker))
    nursery.end(0.0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("scheme", ["--tree=2x1", "--scheme=striped"])
def test_a_training_that_is_ended_leaves_nothing(how: signal.Signals, scheme: str) -> None:
    command = [sys.executable, "-m", "codedreduce", "train", scheme, "--rounds", "1000000"]
    if "striped" in scheme:
        command += ["-n", "3"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = {path.name for path in Path("/dev/shm").iterdir()}
    assert wait_until(lambda: len(arenas_of(f"codedreduce-{process.pid}-")) == 3)
    everyone = psutil.Process(process.pid).children(recursive=True)
    assert len(everyone) == 3, "the nursery and two"
    process.send_signal(how)
    assert process.wait(PATIENCE) in (-how, 143)
    assert wait_until(lambda: not any(one.is_running() for one in everyone))
    assert not arenas_of(f"codedreduce-{process.pid}-")
    assert {path.name for path in Path("/dev/shm").iterdir() if "codedreduce" in path.name} <= before
