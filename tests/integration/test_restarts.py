"""Processes that die under the launcher and are started again, and what is left when it ends itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.launch.environment import read_membership
from codedreduce.memory.arena import arenas_of
from codedreduce.process.restarts import TOO_MANY, Restarts
from codedreduce.schemes import Scheme
from codedreduce.training import SGD, LogisticRegression, synthetic
from codedreduce.training.loop import Job, reference_run
from tests.command import codedreduce
from tests.waiting import PATIENCE, wait_until

FOLDER = Path("/dev/shm")

#: Trains until there is a file "stop". Every process writes down its id when it computes first, by rank and by how
#: often it was started again; whoever leads, the model it ends with and after how many rounds.
SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
from codedreduce.training import SGD, LogisticRegression, synthetic, train

folder, rank, times = Path(sys.argv[1]), os.environ["RANK"], os.environ.get("CODEDREDUCE_RESTARTED", "0")
{before}
def note(name, text):
    (folder / (name + ".part")).write_text(text)
    (folder / (name + ".part")).rename(folder / name)

class Noting(LogisticRegression):
    def evaluate(self, *arguments):
        if not (folder / f"computed-{{rank}}-{{times}}").exists():
            note(f"computed-{{rank}}-{{times}}", str(os.getpid()))
        time.sleep(0.005)
        return super().evaluate(*arguments)
    def __repr__(self):
        return "Noting()"

def until(log):
    if log.round == 3:
        note("three", "")
    return (folder / "stop").exists()

result = train(
    Noting(), synthetic(600, 50), rounds=100_000, optimizer=SGD(0.1, momentum=0.9), until=until,
    {more}
)
if result.history:
    np.save(folder / f"model-{{rank}}.npy", result.parameters)
    (folder / f"rounds-{{rank}}").write_text(str(result.history[-1].round))
"""


class Running:
    """A run of the script under the launcher."""

    def __init__(self, folder: Path, *options: str, before: str = "", more: str = "") -> None:
        self.folder = folder
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT.format(before=before, more=more))
        command = [sys.executable, "-m", "codedreduce", "run", *options, str(self.script), str(folder)]
        self.said = folder / "said"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)

    def pid(self, rank: int, times: int = 0) -> int:
        """The process of a rank, once it has computed."""
        path = self.folder / f"computed-{rank}-{times}"
        self.wait(path.exists)
        return int(path.read_text())

    def wait(self, condition: Callable[[], bool], within: float = PATIENCE) -> None:
        if not wait_until(lambda: condition() or self.process.poll() is not None, within) or not condition():
            raise AssertionError(self.said.read_text())

    def joined_by(self, rank: int) -> subprocess.Popen[bytes]:
        """One more process, started by hand with what the launcher says."""
        words = self.said.read_text().partition("may join: ")[2].partition(")")[0].split()
        variables = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("/"))
        command = [sys.executable, str(self.script), str(self.folder)]
        return subprocess.Popen(command, env={**os.environ, **variables, "RANK": str(rank)})

    def stop(self) -> str:
        """Let it end; what was said."""
        (self.folder / "stop").touch()
        self.process.wait(PATIENCE)
        return self.said.read_text()

    def model(self, rank: int) -> tuple[int, np.ndarray]:
        return int((self.folder / f"rounds-{rank}").read_text()), np.load(self.folder / f"model-{rank}.npy")

    def everyone(self) -> list[int]:
        """All processes that run the script, or belong to the launcher."""
        name = str(self.script)
        found = (process for process in psutil.process_iter(["cmdline"]) if name in (process.info["cmdline"] or []))
        return [process.pid for process in found]

    def end(self) -> None:
        for pid in self.everyone():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def running(tmp_path: Path):
    started: list[Running] = []

    def start(*options: str, **of: str) -> Running:
        started.append(Running(tmp_path, *options, **of))
        return started[-1]

    before = set(FOLDER.iterdir())
    yield start
    try:
        for one in started:
            assert wait_until(lambda one=one: not one.everyone()), "no process is left"
            # a process that was killed is seen to be gone before the kernel has closed its files
            assert wait_until(lambda one=one: not arenas_of(f"codedreduce-{one.process.pid}-")), "nor any memory"
        assert not {path for path in set(FOLDER.iterdir()) - before if path.name.startswith("codedreduce")}
    finally:
        for one in started:
            one.end()


def expect_same_bits(scheme: Scheme, found: tuple[int, np.ndarray]) -> None:
    """As one process computes it, directly from the plan."""
    rounds, model = found
    job = Job(
        objective=LogisticRegression(), source=synthetic(600, 50), scheme=scheme, rounds=rounds,
        optimizer=SGD(0.1, momentum=0.9),
    )  # fmt: skip
    np.testing.assert_array_equal(model, reference_run(job, rounds)[0])


def test_a_killed_worker_of_a_tree_is_started_again_and_used(running) -> None:
    run = running("--tree", "2x2", "--restart")
    for times in (0, 1):
        os.kill(run.pid(5, times), signal.SIGKILL)
    run.pid(5, 2)
    said = run.stop()
    assert run.process.returncode == 0, said
    assert "[5] (killed by signal 9; started again, the 1st time)" in said
    assert "[5] (killed by signal 9; started again, the 2nd time)" in said
    expect_same_bits(CodedReduce(Tree.regular(fanout=2, depth=2), 1), run.model(0))


def test_a_killed_rank_is_started_again_and_used(running) -> None:
    run = running("-n", "4", "--restart")
    os.kill(run.pid(2), signal.SIGKILL)
    run.pid(2, 1)
    said = run.stop()
    assert run.process.returncode == 0, said
    assert "[2] (killed by signal 9; started again, the 1st time)" in said
    for rank in (0, 1, 3):
        expect_same_bits(Striped(4), run.model(rank))


def test_who_dies_again_and_again_ends_the_run_in_plain_words(running) -> None:
    run = running("-n", "3", "--restart", before='if rank == "2": raise RuntimeError("no such luck")')
    assert run.process.wait(PATIENCE) == 1
    said = run.said.read_text()
    assert said.count("RuntimeError: no such luck") == TOO_MANY
    assert "(ended with exit code 1; started again, the 1st time)" in said
    assert "rank 2 ended 5 times in a row within 10 s of being started" in said


def test_so_many_restarts_and_no_more(running) -> None:
    run = running("--tree", "2x2", "--restarts", "1")
    os.kill(run.pid(5), signal.SIGKILL)
    os.kill(run.pid(5, 1), signal.SIGKILL)
    run.wait(lambda: "goes on without it" in run.said.read_text())
    said = run.stop()
    assert run.process.returncode == 0, said
    assert "[5] (killed by signal 9; the run goes on without it)" in said


def test_a_root_that_is_killed_ends_the_run(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEDREDUCE_TIMING", "0.2")
    run = running("--tree", "2x1")
    run.wait((run.folder / "three").exists)
    root = next(pid for pid in run.everyone() if psutil.Process(pid).environ().get("RANK") == "0")
    os.kill(root, signal.SIGKILL)
    assert run.process.wait(PATIENCE) == 1
    assert "rank 0 was killed by signal 9" in run.said.read_text()


@pytest.mark.parametrize("options", [("-n", "3"), ("--tree", "2x1"), ("-n", "3", "--restart")])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_launcher_that_is_ended_leaves_nothing(running, options: tuple[str, ...], how: signal.Signals) -> None:
    run = running(*options, "--grace", "3s")
    run.wait((run.folder / "three").exists)
    assert len(run.everyone()) == 4, "the launcher, and three"
    run.process.send_signal(how)
    assert run.process.wait(PATIENCE) == (-9 if how is signal.SIGKILL else 143), run.said.read_text()


@pytest.mark.parametrize(("options", "rank"), [(("--tree", "2x2"), 5), (("--tree", "2x2"), 1), (("-n", "4"), 2)])
def test_who_is_told_to_leave_hands_over_and_is_not_started_again(
    running, options: tuple[str, ...], rank: int
) -> None:  # fmt: skip
    run = running(*options, "--restart")
    pid = run.pid(rank)
    run.wait((run.folder / "three").exists)
    os.kill(pid, signal.SIGTERM)
    run.wait(lambda: f"[{rank}] (left on purpose; the run goes on without it)" in run.said.read_text())
    time.sleep(0.5)
    said = run.stop()
    assert run.process.returncode == 0, said
    assert "started again" not in said
    expect_same_bits(Striped(4) if "-n" in options else CodedReduce(Tree.regular(fanout=2, depth=2), 1), run.model(0))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_root_that_is_told_to_end_keeps_what_it_has(running, how: signal.Signals) -> None:
    """It alone has the state: it writes a checkpoint, though none is due, and a run goes on from there."""
    more = "checkpoint=folder / 'kept', every='1000s', resume=True,"
    run = running("--tree", "2x1", more=more)
    run.pid(1)
    run.wait((run.folder / "three").exists)
    root = next(pid for pid in run.everyone() if psutil.Process(pid).environ().get("RANK") == "0")
    os.kill(root, how)
    assert run.process.wait(PATIENCE) == 1
    said = run.said.read_text()
    assert "rank 0 ended with exit code 143" in said
    assert "leave requested: writing a checkpoint after round" in said
    assert len(list((run.folder / "kept").glob("*.json"))) == 1
    again = running("--tree", "2x1", more=more)
    (again.folder / "stop").touch()
    assert again.process.wait(PATIENCE) == 0, again.said.read_text()
    rounds, model = again.model(0)
    assert rounds > 3
    expect_same_bits(CodedReduce(Tree.regular(fanout=2, depth=1), 1), (rounds, model))


def test_the_second_sigterm_ends_at_once(running) -> None:
    """A process in whose round nothing happens any more: it would hand over when that is over."""
    run = running("-n", "2", "--grace", "50s")
    pid = run.pid(1)
    run.wait((run.folder / "three").exists)
    other = run.pid(0)
    os.kill(other, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.3)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: not psutil.pid_exists(pid))
    os.kill(other, signal.SIGCONT)
    run.stop()


def test_pauses_double_and_are_forgotten() -> None:
    book = Restarts(None)
    assert [book.pause_after(1, 0.0) for _ in range(TOO_MANY - 1)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert book.pause_after(2, 0.0) == pytest.approx(0.1), "each has its own"
    assert book.pause_after(1, 11.0) == pytest.approx(0.1)
    assert book.times(1) == TOO_MANY
    for _ in range(TOO_MANY - 1):
        book.pause_after(1, 1.0)
    with pytest.raises(CodedReduceError, match="rank 1 ended 5 times in a row"):
        book.pause_after(1, 1.0)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CODEDREDUCE_LEAST": "0"}, "CODEDREDUCE_LEAST must be 1 or more"),
        ({"CODEDREDUCE_LEAST": "4"}, "CODEDREDUCE_LEAST=4 exceeds the number of ranks of the run"),
        ({"CODEDREDUCE_UNITS": "none"}, "CODEDREDUCE_UNITS must be a number"),
        ({"CODEDREDUCE_REPLAN_AFTER": "-1"}, "CODEDREDUCE_REPLAN_AFTER must be 0 or more"),
        ({"CODEDREDUCE_GRACE": "nan"}, "CODEDREDUCE_GRACE must be 0 or more"),
        ({"CODEDREDUCE_RESTARTED": "-2"}, "CODEDREDUCE_RESTARTED must be 0 or more"),
        ({"CODEDREDUCE_TIMING": "0"}, "CODEDREDUCE_TIMING must be above 0 and at most 100, got '0'"),
        ({"CODEDREDUCE_TIMING": "nan"}, "CODEDREDUCE_TIMING must be above 0 and at most 100, got 'nan'"),
        ({"CODEDREDUCE_TIMING": "fast"}, "CODEDREDUCE_TIMING must be a number, got 'fast'"),
    ],
)
def test_variables_that_cannot_be(variables: dict[str, str], message: str) -> None:
    base = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError, match=message):
        read_membership({**base, **variables})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-n", "4:x"], "write 12, or 4:12"),
        (["-n", "5:4"], "`--workers 5:4`: the minimum (5) exceeds the maximum (4)"),
        (["-n", "0"], "`--workers 0`: a run needs at least 1 worker"),
        (["-n", "2:6", "--tree", "2x2"], "a tree needs all its workers"),
        (["-n", "2:4", "--start", "1"], "`--start 1`: the run needs at least 2 processes"),
        (["-n", "4", "--start", "5"], "of 4 processes 1 to 4 can start at first, not 5"),
        (["-n", "4", "--restarts", "-1"], "`--restarts -1`: the number of restarts must be at least 0"),
        (["-n", "4", "--grace", "soon"], "a time is written as"),
        (["-n", "4", "--units", "3"], "units must be at least 4, one for each rank; got 3"),
        (["--tree", "2x2", "--units", "12"], "they follow from its workers; use striped"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str) -> None:
    run = codedreduce("run", *options, __file__)
    assert run.returncode == 2, run.stdout + run.stderr
    assert message in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("options", [("--restart",), ()])
def test_rank_0_is_killed_and_the_others_go_on(running, options: tuple[str, ...]) -> None:
    run = running("-n", "4", *options)
    run.wait((run.folder / "three").exists)
    os.kill(run.pid(0), signal.SIGKILL)
    if options:
        run.pid(0, 1)
    else:
        run.wait(lambda: "[0] (killed by signal 9; the run goes on without it)" in run.said.read_text())
        time.sleep(1.0)
    said = run.stop()
    assert run.process.returncode == 0, said
    for rank in (1, 2, 3):
        expect_same_bits(Striped(4), run.model(rank))


def test_an_error_on_rank_0_costs_no_more_than_a_kill(running) -> None:
    before = """
def on_round(log):
    if log.round == 3 and (rank, times) == ("0", "0"):
        raise RuntimeError("my own bug")
"""
    run = running("-n", "3", "--restart", before=before, more="on_round=on_round,")
    run.pid(0, 1)
    said = run.stop()
    assert run.process.returncode == 0, said
    assert "RuntimeError: my own bug" in said
    assert "[0] (ended with exit code 1; started again, the 1st time)" in said
    for rank in (1, 2):
        assert run.model(rank)[0] > 3, "the others went on"
        expect_same_bits(Striped(3), run.model(rank))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_whose_terminal_is_gone_leaves_as_at_sigterm(running, rank: int) -> None:
    run = running("-n", "3", "--restart")
    pid = run.pid(rank)
    run.wait((run.folder / "three").exists)
    os.kill(pid, signal.SIGHUP)
    run.wait(lambda: f"[{rank}] (left on purpose; the run goes on without it)" in run.said.read_text())
    said = run.stop()
    assert run.process.returncode == 0, said
    expect_same_bits(Striped(3), run.model(1))


def test_rank_0_is_told_to_leave_and_the_others_go_on(running) -> None:
    run = running("-n", "4")
    run.wait((run.folder / "three").exists)
    os.kill(run.pid(0), signal.SIGTERM)
    run.wait(lambda: "[0] (left on purpose; the run goes on without it)" in run.said.read_text())
    said = run.stop()
    assert run.process.returncode == 0, said
    for rank in (1, 2, 3):
        expect_same_bits(Striped(4), run.model(rank))


def test_a_run_begins_when_the_least_are_in_and_others_may_join(running) -> None:
    run = running("-n", "2:4", "--start", "2")
    run.wait((run.folder / "three").exists)
    said = run.said.read_text()
    assert "(more processes may join: RANK=2..3 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=" in said
    third = run.joined_by(2)
    try:
        run.pid(2)
        said = run.stop()
        assert third.wait(PATIENCE) == 0
    finally:
        third.kill()
        third.wait()
    assert run.process.returncode == 0, said
    for rank in (0, 1, 2):
        expect_same_bits(Striped(4), run.model(rank))
