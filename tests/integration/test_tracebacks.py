"""CODEDREDUCE_DEBUG=1: every command shows where an error was raised, in whatever process or thread that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from codedreduce.errors import CodedReduceError
from codedreduce.node.local import LocalCluster
from codedreduce.process.nursery import Nursery
from tests.command import codedreduce
from tests.waiting import wait_until

from .test_local import MODEL, PLAN, SETTINGS, counting

#: A mistake that each command finds.
MISTAKES = {
    "train": ["--data", "nothing.csv"],
    "race": ["--delays", "magic"],
    "simulate": ["--delays", "magic"],
    "draw": ["--tree", "magic"],
    "run": ["nothing.py"],
    "replay": ["nothing.trace"],
    "lab": ["down", "--name", "not/a/name"],
}


@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("command", MISTAKES)
def test_a_command_shows_the_traceback_of_a_mistake_if_asked(
    command: str, debug: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODEDREDUCE_DEBUG", debug)
    run = codedreduce(command, *MISTAKES[command])
    assert run.returncode == 2, run.stdout + run.stderr
    assert ("Traceback (most recent call last)" in run.stderr) == (debug == "1")
    assert run.stderr.splitlines()[-1].startswith("codedreduce: "), "the line is there in any case"


def test_what_the_thread_that_talks_raised_is_the_cause() -> None:
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        cluster.sum_of(MODEL)

        def breaks(*arguments: object) -> None:
            raise TypeError("not callable")

        cluster._node._driver._transport.send = breaks  # type: ignore[union-attr, method-assign]
        with pytest.raises(CodedReduceError, match="rank 0 stopped: TypeError: not callable") as raised:
            cluster.sum_of(MODEL)
        assert isinstance(raised.value.__cause__, TypeError)
        assert raised.value.__cause__.__traceback__ is not None


@pytest.mark.parametrize("debug", ["0", "1"])
def test_what_a_forked_worker_raised_is_shown_if_asked(
    debug: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CODEDREDUCE_DEBUG", debug)

    def live(number: int) -> None:
        raise OSError("no luck")

    nursery = Nursery(live)
    try:
        nursery.start(1)
        ended: list[tuple[int, int]] = []
        assert wait_until(lambda: ended.extend(nursery.newly_ended()) or ended == [(1, 1)])
    finally:
        nursery.end(0.0)
    printed = capfd.readouterr().err
    assert ('raise OSError("no luck")' in printed) == (debug == "1")
