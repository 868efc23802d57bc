import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_an_example_under_the_launcher() -> None:
    command = "from codedreduce.cli import main; main()"
    arguments = ["run", "--tree", "2x2", str(EXAMPLES[0])]
    run = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "[root] loss" in run.stdout
