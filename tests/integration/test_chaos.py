"""A minute of chaos: real processes in a lab, killed, stopped, cut off and restored, whoever leads among them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.command import codedreduce

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")


def chaos(*options: str) -> subprocess.CompletedProcess[str]:
    return codedreduce("chaos", *options, timeout=400)


@pytest.mark.parametrize(("name", "scheme"), [("tchaoss", ("-n", "8")), ("tchaost", ("--tree", "2x2"))])
def test_half_a_minute_of_everything(tmp_path: Path, name: str, scheme: tuple[str, ...]) -> None:
    out, keep = tmp_path / "out.json", tmp_path / "kept"
    done = chaos(
        "--minutes", "0.5", "--seed", "3", *scheme, "--lab-name", name, "--out", str(out), "--keep", str(keep),
    )  # fmt: skip
    log = (keep / "log").read_text()[-3000:] if (keep / "log").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log
    result = json.loads(out.read_text())
    assert result["same_bits"]
    assert result["rounds_lost"] == 0
    assert result["left_processes"] == 0
    assert sum(result["faults"].values()) >= 25
    assert result["faults"]["kill"] >= 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "fire"), "unknown fault 'fire'; there are kill"),
        (("--minutes", "0"), "`--minutes 0`: the duration must be above 0 minutes"),
        (("--every", "0s"), "`--every`: the time between two faults must be above 0"),
        (("--replay", "/nothing"), "cannot read /nothing"),
        (("--tree", "2y2"), "2y2"),
    ],
)
def test_mistakes_are_one_line(options: tuple[str, ...], words: str) -> None:
    done = chaos(*options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
