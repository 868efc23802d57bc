import re
from pathlib import Path

import pytest
import torch  # noqa: F401  (loaded here, once for all examples)

from tests.command import codedreduce, script

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))

#: A minute on two cores that have nothing else to do; how busy they are is not what is tested.
PATIENCE = 240


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    run = script(path, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.parametrize(
    ("name", "tree", "shows"),
    [
        ("own_objective", "2x2", r"^loss"),
        ("digits", "2x1", r"^test accuracy 9[789]\."),
        ("tiny_gpt", "2x1", r"^step 150: loss [12]\."),
    ],
)
def test_an_example_with_stalling_workers(name: str, tree: str, shows: str) -> None:
    run = codedreduce(
        "run", "--tree", tree, "--inject", "stalls:0.05:0.2s", str(FOLDER / f"{name}.py"), timeout=PATIENCE
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(shows, run.stdout, re.MULTILINE), run.stdout
