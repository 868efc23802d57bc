"""How the launcher ends a run: it waits for ranks that save, and a run in which one fails then has failed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from codedreduce.errors import CodedReduceError
from codedreduce.worlds import launcher
from codedreduce.worlds.launcher import Launch, launch
from codedreduce.worlds.showing import EveryLine

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

    def __init__(self, folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch, script: str = SCRIPT) -> None:
        monkeypatch.setattr(launcher, "GRACE", 0.1)
        (folder / "script.py").write_text(script)
        scheme = {"CODEDREDUCE_TREE": "2x1", "CODEDREDUCE_SCHEME": "striped"}
        command = [sys.executable, str(folder / "script.py"), str(folder), mode]
        self.lines: list[str] = []
        self.error = ""
        what = Launch(command=command, count=2, variables={**scheme, **PATH}, times=None if "again" in mode else 0)
        try:
            launch(what, EveryLine(lambda rank, line: self.lines.append(f"[{rank}] {line}")))
        except CodedReduceError as error:
            self.error = str(error)


def test_rank_0_saves_for_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Ended(tmp_path, "saves", monkeypatch)
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
def test_what_fails_when_the_others_have_ended_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, error: str
) -> None:
    ended = Ended(tmp_path, mode, monkeypatch)
    assert ended.error == error, ended.lines
    assert ("[0] OSError: No space left on device" in ended.lines) == ("raises" in mode)
    assert any("started again, the 1st time" in line for line in ended.lines) == ("again" in mode)


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
    ended = Ended(tmp_path, mode, monkeypatch, LATE)
    assert (ended.error, ended.lines) == (error, lines)


def test_signals_that_are_ignored_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup; else a terminal that is gone asks all to leave, as SIGTERM does."""
    script = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)\n" + SCRIPT
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert Ended(tmp_path, "saves", monkeypatch, script).error == ""
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(SystemExit) as end:
            Ended(tmp_path, "saves", monkeypatch, script)
        assert end.value.code == 128 + signal.SIGHUP
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
