"""Stripes in shared memory: whoever is stopped wherever, for many rounds, nobody believes what it then does."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codedreduce.errors import WorkerFailed
from codedreduce.memory.arena import arenas_of
from codedreduce.memory.lending import Lending
from codedreduce.net.buffers import Buffers
from codedreduce.node.local import LocalCluster
from codedreduce.protocol.core import settings
from codedreduce.protocol.rank import reducer as keeping
from codedreduce.schemes import Piece
from codedreduce.timing import Timing
from tests.waiting import wait_until

from .test_striped import Bits

UNLUCKY = 2


@pytest.fixture(autouse=True)
def few_rounds_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with long vectors: room is used again after 4 rounds."""
    monkeypatch.setattr(settings, "HELD_BYTES", 0)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    assert not arenas_of(f"codedreduce-{os.getpid()}-")


def stop_here_once(bits: Bits, name: str) -> None:
    """In a process of a run: stop, until somebody continues it; but only one process, once."""
    try:
        (bits.folder / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)


class Continue:
    """Continues a process that has stopped itself, so many rounds later."""

    def __init__(self, bits: Bits, name: str, rounds: int) -> None:
        self.bits, self.flag = bits, bits.folder / name
        self.rounds = rounds
        self.due: int | None = None

    def __call__(self, cluster: LocalCluster, round_: int) -> None:
        if self.due is None and self.flag.exists():
            self.due = round_ + self.rounds
        if round_ == self.due:
            os.kill(cluster.processes[UNLUCKY], signal.SIGCONT)
        time.sleep(0.02)
        if round_ == self.bits.rounds:
            assert wait_until(lambda: self.bits.reached[UNLUCKY] > 8), "it has noticed, and goes on"


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_keeper_is_stopped_before_it_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it goes on, what it adds up is of later rounds: it must notice, and nobody must be told."""
    bits = Bits(4, 40, tmp_path, stripes=4)
    combine, are_intact = keeping.combine, Lending.are_intact
    number = []

    def live(self: LocalCluster, node: int, of=LocalCluster._live) -> None:
        number[:] = [node]
        of(self, node)

    def stopping(vectors, weights, out):
        if number == [UNLUCKY] and lending and lending[-1] >= 8:
            stop_here_once(bits, "stopped")
        return combine(vectors, weights, out)

    lending: list[int] = []
    sum_room = Lending.sum_room

    def noting(self: Lending, round_: int, index: int):
        lending[:] = [round_]
        return sum_room(self, round_, index)

    def watching(self: Lending, round_: int, chunks):
        found = are_intact(self, round_, chunks)
        if not found and number == [UNLUCKY]:
            (tmp_path / "noticed").write_text(str(round_))
        return found

    monkeypatch.setattr(LocalCluster, "_live", live)
    monkeypatch.setattr(keeping, "combine", stopping)
    monkeypatch.setattr(Lending, "sum_room", noting)
    monkeypatch.setattr(Lending, "are_intact", watching)
    bits.run(Continue(bits, "stopped", rounds=7))
    assert int((tmp_path / "noticed").read_text()) >= 8
    sums, renewals = bits.seen(UNLUCKY)
    assert sums + renewals >= 8
    assert bits.seen(1) == (40, 0)


def test_a_rank_is_stopped_before_it_has_taken_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the sum is there, where its keepers have it; when the rank takes it, it is that of later rounds."""
    bits = Bits(4, 40, tmp_path, stripes=4)
    take = Buffers.take
    number: list[int] = []

    def live(self: LocalCluster, node: int, of=LocalCluster._live) -> None:
        number[:] = [node]
        of(self, node)

    def stopping(self: Buffers, gathered):
        if number == [UNLUCKY] and gathered.round >= 8:
            stop_here_once(bits, "stopped")
        found = take(self, gathered)
        if found is None and not (tmp_path / "noticed").exists():  # it may happen again, on a busy machine
            (tmp_path / "noticed").write_text(str(gathered.round))
        return found

    monkeypatch.setattr(LocalCluster, "_live", live)
    monkeypatch.setattr(Buffers, "take", stopping)
    bits.run(Continue(bits, "stopped", rounds=8))
    assert (tmp_path / "noticed").read_text() == "8"
    assert bits.seen(UNLUCKY)[1] >= 1, "it takes another's state"


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_ranks_are_stopped_anywhere_again_and_again(tmp_path: Path, rounds: int) -> None:
    bits = Bits(4, 120, tmp_path, stripes=4)
    stopping = threading.Timer(0.0, int)

    def pause(cluster: LocalCluster, round_: int) -> None:
        nonlocal stopping
        victim = cluster.processes[1 + (round_ // 10) % 3]
        if round_ % 10 == 2:
            stopping = threading.Timer(0.001 * (round_ % 7), os.kill, (victim, signal.SIGSTOP))
            stopping.start()
        if round_ % 10 == 2 + rounds:
            stopping.join()
            os.kill(victim, signal.SIGCONT)

    bits.run(pause)
    assert all(sum(bits.seen(rank)) > 10 for rank in (1, 2, 3))


def test_a_long_vector_in_few_chunks(tmp_path: Path) -> None:
    """Chunks that lie in pages of their own, more rounds than there are slots."""
    bits = Bits(3, 12, tmp_path, length=30_000, chunk_bytes=20_000)
    bits.run()
    assert [bits.seen(rank) for rank in (1, 2)] == [(12, 0)] * 2


def end_by_kill(cluster: LocalCluster, round_: int) -> None:
    if round_ == 3:
        os.kill(cluster.processes[1], signal.SIGKILL)


def end_by_stop(cluster: LocalCluster, round_: int) -> None:
    if round_ == 3:
        os.kill(cluster.processes[1], signal.SIGSTOP)
        while not is_stopped(cluster.processes[1]):
            time.sleep(0.001)


@pytest.mark.parametrize("how", [None, end_by_kill, end_by_stop])
def test_nothing_is_left_of_a_run(tmp_path: Path, how: Callable[[LocalCluster, int], None] | None) -> None:
    seen: list[int] = []

    def meanwhile(cluster: LocalCluster, round_: int) -> None:
        if round_ == 2:
            seen.append(len(arenas_of(f"{cluster.run.meeting.run}-")))
        if how is not None:
            how(cluster, round_)

    bits = Bits(3, 6, tmp_path)
    if how is end_by_stop:  # a stopped rank is waited for in vain
        bits.settings = replace(bits.settings, timing=Timing(end_grace=0.5))
    bits.run(meanwhile)
    assert seen == [3], "one arena a rank, while it runs"


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    bits = Bits(3, 50, tmp_path)

    def gradient(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        if round_ == 3:
            raise ValueError("no")
        out[:] = bits.gradients.of_piece(piece, model)

    bits.gradient = gradient  # type: ignore[method-assign]
    with pytest.raises(WorkerFailed, match="no"):
        bits.run(lambda cluster, round_: time.sleep(0.05))
