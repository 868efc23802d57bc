"""The commands of a first day, as at a prompt: what `make test-pythons` runs on every Python, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import PATIENCE

SCRIPT = """
import sys
import numpy as np
from codedreduce.training import LogisticRegression, SGD, synthetic, train

result = train(LogisticRegression(), synthetic(600, 50), rounds=20, optimizer=SGD(0.1), batch=60)
np.save(sys.argv[1], result.parameters)
"""


def command(*words: str) -> str:
    """What a command prints; warnings of what a later Python removes are errors."""
    warnings = ["-W", "error::SyntaxWarning", "-W", "error::DeprecationWarning:codedreduce.cli"]
    done = subprocess.run(
        [sys.executable, *warnings, "-m", "codedreduce", *words], capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("scheme", [["--tree", "2x1"], ["--scheme", "striped"], ["--scheme", "ring"]], ids=str)
def test_train(scheme: list[str], tmp_path: Path) -> None:
    workers = [] if "--tree" in scheme else ["-n", "2"]
    options = [*scheme, *workers, "--rounds", "10", "--save", str(tmp_path / "model.npz")]
    assert "trained for 10 rounds" in command("train", *options)
    assert np.isfinite(np.load(tmp_path / "model.npz")["parameters"]).all()


def test_race(tmp_path: Path) -> None:
    shape = ["--tree", "2x1", "--rounds", "3", "--samples", "60", "--parameters", "30", "--compute", "0.05s"]
    command("race", *shape, "--json", str(tmp_path / "race.json"), "--report", str(tmp_path / "report"))
    assert (tmp_path / "report" / "index.html").exists()


def test_simulate_and_replay(tmp_path: Path) -> None:
    trace = str(tmp_path / "run.trace")
    command("simulate", "--tree", "2x1", "--rounds", "2", "--schemes", "progressive", "--trace", trace)
    assert "round 2" in command("replay", trace)


def test_run(tmp_path: Path) -> None:
    """With as many units any number of ranks ends with the same bits."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for ranks in ("3", "2"):
        command("run", "-n", ranks, "--units", "3", str(script), str(tmp_path / f"{ranks}.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "3.npy"), np.load(tmp_path / "2.npy"))
