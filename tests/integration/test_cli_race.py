import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.command import codedreduce
from tests.waiting import PATIENCE, wait_until

SMALL = ["--tree", "2x1", "--samples", "60", "--parameters", "10", "--rounds", "4", "--compute", "0.02s"]


def test_table_json_and_report(tmp_path: Path) -> None:
    target, report = tmp_path / "results.json", tmp_path / "report"
    run = codedreduce("race", *SMALL, "--delays", "one:0.05s", "--json", str(target), "--report", str(report))
    assert run.returncode == 0, run.stderr
    document = json.loads(target.read_text())
    assert document["conditions"]["tree"] == "2x1"
    assert [result["name"] for result in document["results"]] == [
        "master-worker", "gradient-coding", "live-compensation", "ring", "eager", "progressive",
        "striped",
    ]  # fmt: skip
    for result in document["results"]:
        assert result["scheme"].removeprefix("coded-reduce ") in run.stdout
        assert len(result["losses"]) == len(result["round_seconds"]) == 4
        assert result["final_loss"] == result["losses"][-1]
        assert result["saved"] >= 0
        assert result["busiest_bytes"] is None
        if "live" not in result["scheme"]:
            assert result["work"] > 0.99
            assert result["max_error"] < 1e-5
            assert result["bit_identical"]
    page = (report / "index.html").read_text()
    assert page.count("<svg") == 5
    assert "Loss against time" in page


def test_mistakes_are_named_before_anything_runs() -> None:
    run = codedreduce("race", *SMALL, "--delays", "windy")
    assert run.returncode == 2
    assert "unknown delays 'windy'" in run.stderr


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    """Ctrl-C in the second scheme: the first one's results and page are there, and the exit code is 130."""
    screen, stdout = pty.openpty()
    arguments = [*SMALL, "--schemes", "ring,striped", "--rounds", "100", "--compute", "0.04s", "--delays", "calm"]
    files = ["--json", str(tmp_path / "json"), "--report", str(tmp_path / "report")]
    command = [sys.executable, "-m", "codedreduce", "race", *arguments, *files]
    shown = b""
    with subprocess.Popen(command, stdout=stdout, stderr=stdout) as process:
        os.close(stdout)

        def is_in_the_second() -> bool:
            nonlocal shown
            if select.select([screen], [], [], 1)[0]:
                shown += os.read(screen, 1 << 16)
            return re.search(rb"striped +[1-9]\d*/100", re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown)) is not None

        assert wait_until(is_in_the_second), shown
        process.send_signal(signal.SIGINT)

        def has_ended() -> bool:
            nonlocal shown
            try:
                shown += os.read(screen, 1 << 16) if select.select([screen], [], [], 0.1)[0] else b""
            except OSError:  # nobody writes to it any more
                return True
            return process.poll() is not None

        assert wait_until(has_ended), shown
        assert process.wait(PATIENCE) == 130, shown
    os.close(screen)
    assert (tmp_path / "json").exists(), shown[-3000:]
    (result,) = json.loads((tmp_path / "json").read_text())["results"]
    assert result["name"] == "ring"
    assert len(result["round_seconds"]) == 100
    assert (tmp_path / "report" / "index.html").exists()
    assert b"interrupted in striped: 1 of 2 schemes are finished" in shown


def test_files_are_checked_before_anything_runs(tmp_path: Path) -> None:
    run = codedreduce("race", *SMALL, "--json", str(tmp_path / "no" / "x"), "--report", str(tmp_path / "report"))
    assert run.returncode == 2
    assert not run.stdout
    assert run.stderr.startswith("codedreduce: cannot write ")
