"""Output that cannot be printed, or not as it is: what is computed is written all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.command import codedreduce
from tests.waiting import PATIENCE

TRAIN = ["train", "-n", "2", "--rounds", "30"]
SIMULATE = ["simulate", "--tree", "2x1", "--rounds", "2", "--schemes", "ring,striped"]


def run(*arguments: str, stdout: int) -> tuple[int, str]:
    command = [sys.executable, "-m", "codedreduce", *arguments]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        os.close(stdout)
        errors = process.communicate(timeout=PATIENCE)[1]
    return process.returncode, errors


def nobody_reads() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(("out", "word"), [(nobody_reads, "has closed it"), (full_disk, "No space left")])
def test_what_is_computed_is_written_though_nothing_can_be_printed(out: object, word: str, tmp_path: Path) -> None:
    assert callable(out)
    code, errors = run(*TRAIN, "--save", str(tmp_path / "model.npz"), stdout=out())
    assert code == 0
    assert len(np.load(tmp_path / "model.npz")["parameters"])
    assert errors.startswith("codedreduce: ")
    assert word in errors
    assert errors.count("\n") == 1
    code, errors = run(*SIMULATE, "--json", str(tmp_path / "j"), "--report", str(tmp_path / "r"), stdout=out())
    assert code == 0
    assert len(json.loads((tmp_path / "j").read_text())["results"]) == 2
    assert (tmp_path / "r" / "index.html").exists()
    assert errors.count("\n") == 1


def test_what_only_prints_ends_with_an_error() -> None:
    assert run("draw", stdout=full_disk()) == (1, "codedreduce: No space left on device\n")


def test_the_report_is_written_though_the_results_cannot_be(tmp_path: Path) -> None:
    ended = codedreduce(*SIMULATE, "--json", "/dev/full", "--report", str(tmp_path / "r"))
    assert ended.returncode == 2
    assert ended.stderr == "codedreduce: cannot write '/dev/full': No space left on device\n"
    assert (tmp_path / "r" / "index.html").exists()


def test_a_name_that_is_no_text_is_printed(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    ended = codedreduce(*SIMULATE, "--json", name)
    assert ended.returncode == 0, ended.stderr
    assert "\\udcff.json" in ended.stdout


def test_a_narrow_terminal_shows_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from codedreduce.cli.terminal.console import print_whole
    from codedreduce.report.comparison import comparison_table
    from tests.unit.test_comparison_report import compared
    from tests.unit.test_comparison_report import run as one

    for width in (40, 80, 200):
        shown = io.StringIO()
        table = comparison_table(compared(one("live-compensation K=80", 10.0), one("striped", 9.0)).results)[1]
        print_whole(Console(file=shown, width=width, force_terminal=True, color_system=None), table)
        assert "…" not in shown.getvalue()
        assert "same" in shown.getvalue()
