"""What the documents name is there: tests that show something, and commits on which figures were measured."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
ROOT = HERE.parent
TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("faults.md", "security.md"))
FILES = sorted(set(re.findall(r"((?:unit/|integration/|simulation/)?test_\w+\.py)", TEXT)))
NAMES = sorted(set(re.findall(r"`(?:\S+::)?(test_\w+)`", TEXT)))


def found(file: str) -> list[Path]:
    return [path for path in HERE.rglob("test_*.py") if str(path).endswith(f"/{file}")]


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_named_is_there(file: str) -> None:
    assert found(file)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_that_is_named_is_there(name: str) -> None:
    assert any(f"def {name}(" in path.read_text() for path in HERE.rglob("test_*.py"))


def test_names_were_found() -> None:
    assert len(FILES) > 15
    assert len(NAMES) > 20


# -- figures

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMIT = re.compile(r"`([0-9a-f]{7,40})`")
CITED = sorted({(path.name, commit) for path in DOCUMENTS for commit in COMMIT.findall(path.read_text())})
#: Parts of documents that say how their figures were measured.
MEASURED = [
    pytest.param(part, id=f"{path.name}: {part.partition(chr(10))[0]}")
    for path in DOCUMENTS
    for part in re.split(r"^#+ ", path.read_text(), flags=re.MULTILINE)
    if "bench/results/" in part or re.search(r"`python -m bench\.[^`]*`", part)
]


@pytest.mark.parametrize(("document", "commit"), CITED)
def test_a_commit_that_is_cited_is_an_ancestor(document: str, commit: str) -> None:
    """Needs the whole history: `git fetch --unshallow`."""
    asked = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"{document} cites {commit}: {found.stderr or 'it is not an ancestor of HEAD'}"


@pytest.mark.parametrize("part", MEASURED)
def test_figures_say_of_which_commit_they_are(part: str) -> None:
    assert COMMIT.search(part)


def test_results_that_are_named_are_there() -> None:
    named = {one for path in DOCUMENTS for one in re.findall(r"bench/results/\w+\.json", path.read_text())}
    assert len(named) > 15
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []
