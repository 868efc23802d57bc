"""How the launcher ends a run: it waits for ranks that save, and a run in which one fails then has failed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from codedreduce.errors import CodedReduceError
from codedreduce.launch.launcher import Launch, launch
from codedreduce.launch.placement import Placement
from codedreduce.launch.showing import Show
from codedreduce.process import restarts
from codedreduce.process.processes import Processes
from codedreduce.timing import Timing
from tests.command import codedreduce
from tests.waiting import PATIENCE

PATH = {"PYTHONPATH": os.pathsep.join(sys.path)}

#: Trains, and then does what `after` says on rank 0, when the other process has ended.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from codedreduce.training import LogisticRegression, SGD, synthetic, train

folder, mode, rank = Path(sys.argv[1]), sys.argv[2], os.environ["RANK"]
times = os.environ.get("CODEDREDUCE_RESTARTED", "0")

def wait_for(condition):
    deadline = time.monotonic() + 100
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)

def on_round(log):
    if "again" not in mode:
        return
    if rank == "0" and times == "1":
        (folder / "back").touch()
    if rank == "0" and times == "0" and log.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == "1" and not (folder / "back").exists():  # it goes on until the other is back
        time.sleep(0.05)

(folder / f"pid-{rank}").write_text(str(os.getpid()))
rounds = 2000 if "again" in mode else 20
result = train(LogisticRegression(), synthetic(60, 5), rounds=rounds, optimizer=SGD(0.1), on_round=on_round)
if rank == "0":
    other = int((folder / "pid-1").read_text())
    wait_for(lambda: not os.path.exists(f"/proc/{other}"))
    if "raises" in mode:
        raise OSError("No space left on device")
    if "killed" in mode:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.5)  # longer than the launcher's patience, for which it must not matter
    (folder / "saved").touch()
"""


class Ended:
    """How a run of two ranks went."""

    def __init__(self, folder: Path, mode: str, script: str = SCRIPT, **of: Any) -> None:
        (folder / "script.py").write_text(script)
        scheme = {"CODEDREDUCE_TREE": "2x1", "CODEDREDUCE_SCHEME": "striped"}
        command = [sys.executable, str(folder / "script.py"), str(folder), mode]
        self.lines: list[str] = []
        self.error = ""
        times, timing = None if "again" in mode else 0, Timing(failure_grace=0.1)
        options = {"count": 2, "times": times, "timing": timing, "variables": {**scheme, **PATH}, **of}
        what = Launch(command=command, **options)
        try:
            launch(what, Show(lambda rank, line: self.lines.append(f"[{rank}] {line}")))
        except CodedReduceError as error:
            self.error = str(error)


def test_rank_0_saves_for_as_long_as_it_takes(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "saves")
    assert (ended.error, ended.lines) == ("", [])
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("raises", "rank 0 ended with exit code 1; its last words are above"),
        ("killed", "rank 0 was killed by signal 9 after the training"),
        ("raises again", "rank 0 ended with exit code 1; its last words are above"),
    ],
)
def test_what_fails_when_the_others_have_ended_fails_the_run(tmp_path: Path, mode: str, error: str) -> None:
    ended = Ended(tmp_path, mode)
    assert ended.error == error, ended.lines
    assert ("[0] OSError: No space left on device" in ended.lines) == ("raises" in mode)
    assert any("started again, the 1st time" in line for line in ended.lines) == ("again" in mode)


#: One fails when the training is over, and the other saves until that has ended, and for some time.
SAVES = """
import os, sys, time
from pathlib import Path
from codedreduce.training import LogisticRegression, SGD, synthetic, train

folder, fails, rank = Path(sys.argv[1]), sys.argv[2], os.environ["RANK"]
(folder / f"pid-{rank}").write_text(str(os.getpid()))
train(LogisticRegression(), synthetic(60, 5), rounds=20, optimizer=SGD(0.1))
if rank == fails:
    raise OSError("No space left on device")
other = int((folder / f"pid-{fails}").read_text())
deadline = time.monotonic() + 100
while os.path.exists(f"/proc/{other}") and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(1.5)
(folder / "saved").touch()
"""


@pytest.mark.parametrize("fails", ["0", "1"])
def test_a_rank_that_saves_is_waited_for_when_another_has_failed(tmp_path: Path, fails: str) -> None:
    ended = Ended(tmp_path, fails, SAVES)
    assert ended.error == f"rank {fails} ended with exit code 1; its last words are above", ended.lines
    assert f"[{fails}] OSError: No space left on device" in ended.lines
    assert (tmp_path / "saved").exists()


def test_a_root_that_fails_after_the_training_is_not_started_again(tmp_path: Path) -> None:
    """Its workers have ended, and it would wait for them."""
    script = SAVES.replace("other =", "sys.exit()\nother =")
    variables = {"CODEDREDUCE_TREE": "2x1", "CODEDREDUCE_STRAGGLERS": "1", **PATH}
    ended = Ended(tmp_path, "0", script, count=3, has_root=True, times=None, variables=variables)
    assert ended.error == "rank 0 ended with exit code 1; its last words are above", ended.lines
    assert ended.lines.count("[0] OSError: No space left on device") == 1


def test_ranks_that_fail_in_the_same_round_again_and_again_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it took them to come there."""
    monkeypatch.setattr(restarts, "QUICK", 0.0)
    monkeypatch.setattr(restarts, "TOO_MANY", 2)
    script = """
from codedreduce.training import LogisticRegression, SGD, synthetic, train

def on_round(log):
    if log.round == 3:
        raise RuntimeError("my own bug")

train(LogisticRegression(), synthetic(60, 5), rounds=20, optimizer=SGD(0.1), on_round=on_round)
"""
    ended = Ended(tmp_path, "again", script)
    assert ended.error.endswith(
        " ended 2 times in a row in round 3: starting it again does not help; its last words are above"
    ), ended.error


#: The steps have a name, as those of a progress bar often do: they are dropped when the interpreter ends.
NAMED = """
import os, sys
import torch
import codedreduce.torch as cr

def losses(model, batch):
    return model(batch[0]).mean(1)

def main():
    model = torch.nn.Linear(5, 1)
    steps = cr.join().train(model, torch.utils.data.TensorDataset(torch.ones(60, 5)), losses, 12, 20)
    for step in steps:
        if step.round == 3 and os.environ["RANK"] == "0":
            raise {error}

main()
"""


def test_steps_that_have_a_name_are_left_by_an_error(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NAMED.format(error="RuntimeError('my own bug')"))
    run = codedreduce("run", "-n", "2", str(tmp_path / "script.py"), timeout=PATIENCE)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "RuntimeError: my own bug" in run.stdout


def test_a_rank_that_hears_of_an_interrupt_ends_though_its_connections_close_slowly(tmp_path: Path) -> None:
    """The thread that talks has said that it is over, and is still there. The steps have a name here, too."""
    slowly = (
        "import time\nfrom codedreduce.node.driver import Probing\n"
        "close = Probing.close\nProbing.close = lambda self: (time.sleep(1), close(self))\n"
    )
    (tmp_path / "script.py").write_text(slowly + NAMED.format(error="KeyboardInterrupt"))
    run = codedreduce("run", "-n", "2", str(tmp_path / "script.py"), timeout=PATIENCE)
    assert run.returncode == 1, run.stdout + run.stderr


#: Rank 0 is paused, and the others go on until one of them interrupts the launcher.
PAUSED = """
import os, signal
from codedreduce.training import LogisticRegression, SGD, synthetic, train

def on_round(log):
    if log.round == 3 and os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGSTOP)
    if log.round == 200 and os.environ["RANK"] == "1":
        os.kill(os.getppid(), signal.SIGINT)

train(LogisticRegression(), synthetic(60, 5), rounds=10**6, optimizer=SGD(0.1), on_round=on_round)
"""


def test_an_interrupt_reaches_those_that_go_on_without_a_paused_rank_0(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PAUSED)
    run = codedreduce("run", "-n", "3", str(tmp_path / "script.py"), timeout=PATIENCE)
    assert run.returncode == 130, run.stdout + run.stderr
    assert re.fullmatch(
        r"codedreduce: interrupted in round 2\d\d; rank 0 had not ended when the others had, and was killed\n",
        run.stderr,
    ), run.stderr  # fmt: skip


class WithoutPlace(Processes):
    """There is no place for rank 1."""

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> IO[bytes]:
        if number == 0:
            return super().spawn(number, command, environment)
        reads, writes = os.pipe()
        os.close(writes)
        return os.fdopen(reads, "rb")

    def is_waiting(self, number: int) -> bool:
        return number == 1


def test_a_rank_that_has_no_place_when_the_run_is_over_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEDREDUCE_LEAST", "1")
    script = SAVES.replace("other =", "sys.exit()\nother =")
    placement = Placement(addresses=("127.0.0.1",) * 2, starter=WithoutPlace)
    ended = Ended(tmp_path, "nobody", script, placement=placement)
    assert (ended.error, ended.lines) == ("", [])


#: Rank 1 was never in the run, and stays when the other has ended: SIGTERM ends it, unless it does not listen.
LATE = """
import os, signal, sys, time
from codedreduce.training import LogisticRegression, SGD, synthetic, train
if os.environ["RANK"] == "1":
    if sys.argv[2] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1] + "/up", "w").close()
    time.sleep(600)
while not os.path.exists(sys.argv[1] + "/up"):
    time.sleep(0.02)
train(LogisticRegression(), synthetic(60, 5), rounds=2, optimizer=SGD(0.1))
"""


@pytest.mark.parametrize(
    ("mode", "error", "lines"),
    [
        ("hears", "", ["[1] (killed by signal 15, after the run was over)"]),
        ("deaf", "rank 1 had not ended when all others had, and was killed", []),
    ],
)
def test_a_process_that_came_too_late_is_told_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, error: str, lines: list[str]
) -> None:
    monkeypatch.setenv("CODEDREDUCE_LEAST", "1")
    ended = Ended(tmp_path, mode, LATE)
    assert (ended.error, ended.lines) == (error, lines)


def test_signals_that_are_ignored_stay_so(tmp_path: Path) -> None:
    """As under nohup; else a terminal that is gone asks all to leave, as SIGTERM does."""
    script = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)\n" + SCRIPT
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert Ended(tmp_path, "saves", script).error == ""
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(SystemExit) as end:
            Ended(tmp_path, "saves", script)
        assert end.value.code == 128 + signal.SIGHUP
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
