"""A launcher starts MPS for processes that share a GPU, and ends it: with a program in the place of NVIDIA's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from codedreduce.launch import gpu_sharing
from codedreduce.launch.gpu_sharing import CONTROL, PIPES, SAID, sharing_gpus, would_share
from codedreduce.launch.launcher import Launch, launch
from codedreduce.launch.showing import Show

#: Answers as NVIDIA's does: the daemon in its folder until it is told to quit, others by what they are told.
STAND_IN = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
    echo $$ > "$SEEN/daemon"
    sleep 0.3
    touch control
    while [ -e control ]; do sleep 0.05; done
    touch "$SEEN/quit"
    exit
fi
[ -e control ] || exit 1
read what
[ "$what" = quit ] && rm control
echo 100
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one GPU; the folder in which its daemon leaves signs."""
    (tmp_path / CONTROL).write_text(STAND_IN)
    (tmp_path / CONTROL).chmod(0o755)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpu_sharing, "DEVICES", f"{tmp_path}/nvidia[0-9]*")
    monkeypatch.setattr(gpu_sharing, "RUNNING", f"{tmp_path}/running")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path))
    for name in (SAID, PIPES, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_processes_of_a_run_are_told_of_it_and_it_ends_with_them(machine: Path) -> None:
    lines: list[str] = []
    code = f"import os; print(os.environ.get({PIPES!r}), os.path.exists(os.environ[{PIPES!r}] + '/control'))"
    what = Launch(command=[sys.executable, "-c", code], count=2, port=1)
    with pytest.raises(Exception, match="no process"):  # which trains
        launch(what, Show(lambda rank, line: lines.append(line)))
    folders = {line.split()[0] for line in lines if line.endswith("True")}
    assert len(folders) == 1, lines
    assert sum(line.endswith("True") for line in lines) == 2
    assert (machine / "quit").exists()
    assert not Path(folders.pop()).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine / "daemon").read_text()), 0)


def test_one_that_does_not_come_is_done_without(machine: Path) -> None:
    (machine / CONTROL).write_text("#!/bin/sh\nexit 1\n")
    said: list[str] = []
    with sharing_gpus(2, os.environ, said.append) as told:
        assert told == {}
    assert "take turns" in said[0]


@pytest.mark.parametrize(
    ("processes", "variables", "there"),
    [
        (2, {}, True),
        (1, {}, False),
        (2, {SAID: "0"}, False),
        (2, {PIPES: "/elsewhere"}, False),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, False),
        (2, {"CUDA_VISIBLE_DEVICES": "0"}, True),
    ],
)
def test_where_it_is_of_use(machine: Path, processes: int, variables: dict[str, str], there: bool) -> None:
    assert would_share(processes, {**os.environ, **variables}) is there
    (machine / "nvidia1").touch()
    assert not would_share(2, os.environ)
    (machine / "nvidia1").unlink()
    (machine / "running").touch()
    assert not would_share(2, os.environ), "one is there"
