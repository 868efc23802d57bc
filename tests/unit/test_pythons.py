"""What `make test-pythons` does about versions that are not here, or only seem to be."""

import sys
from pathlib import Path

import pytest

from tests import pythons

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_missing_version_is_skipped_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.main(["3.99"]) == 1, "nothing was tested"
    printed = capsys.readouterr().out
    assert "Python 3.99: skipped, it is not installed" in printed
    assert "none of the versions is installed: 3.99" in printed


def test_an_interpreter_of_another_version_or_that_does_not_start_is_none(tmp_path: Path) -> None:
    assert pythons.is_version(sys.executable, HERE)
    assert not pythons.is_version(sys.executable, "3.99")
    broken = tmp_path / "python3.99"  # as pyenv's are for versions that are not chosen
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert not pythons.is_version(str(broken), "3.99")
    assert not pythons.is_version(str(tmp_path / "nothing"), "3.99")


def test_it_is_found_among_those_of_pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "versions" / "3.99.1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.99\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.find("3.99") == str(python)


def test_all_that_it_runs_is_there() -> None:
    assert [path for path in pythons.TESTS if not (pythons.ROOT / path).exists()] == []
