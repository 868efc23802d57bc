"""What the documents say is shown by a test is the name of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
TEXT = "".join((HERE.parent / "docs" / name).read_text() for name in ("faults.md", "security.md"))
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
