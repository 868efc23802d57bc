import re
from collections import Counter
from pathlib import Path

import pytest

import codedreduce
from codedreduce import errors
from codedreduce._extras import require


def test_public_names() -> None:
    assert set(codedreduce.__all__) == {
        "CodedReduce",
        "CodedReduceError",
        "GradientCoding",
        "LiveCompensation",
        "MasterWorker",
        "MissingExtra",
        "Plan",
        "RingAllReduce",
        "Striped",
        "Scheme",
        "TooManyStragglers",
        "Tree",
        "UsageError",
        "train",
    }
    for name in codedreduce.__all__:
        assert hasattr(codedreduce, name)


def test_every_error_is_drawn_in_the_tree() -> None:
    for name in errors.__all__:
        assert name in (errors.__doc__ or "")
        assert issubclass(getattr(errors, name), errors.CodedReduceError)


def test_a_missing_extra_prints_the_pip_command() -> None:
    with pytest.raises(errors.MissingExtra, match=r"pip install 'codedreduce\[torch\]'") as caught:
        require("a_package_nobody_has", extra="torch")
    assert isinstance(caught.value, ImportError)


def test_a_broken_package_is_not_called_missing(tmp_path, monkeypatch) -> None:
    (tmp_path / "half_installed.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_nobody_has"):
        require("half_installed", extra="torch")


def test_ring_neighbours() -> None:
    ring = codedreduce.RingAllReduce(5).plan(samples=5)
    for node in range(1, 6):
        assert ring.previous(ring.next(node)) == node
    with pytest.raises(errors.SchemeError, match="got 0"):
        codedreduce.RingAllReduce(0)


def test_nothing_depends_on_the_time_of_day() -> None:
    """It may jump; what counts as late or gone is measured by clocks that only go forward."""
    found = [
        f"{file.name}: {line.strip()}"
        for file in Path(codedreduce.__file__).parent.rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"\btime\.time(_ns)?\(|datetime|from time import|CLOCK_REALTIME", line)
    ]
    assert found == []


def test_a_name_occurs_once() -> None:
    """Neither two classes nor two files have the same name, and no folder has more than 15 files."""
    root = Path(codedreduce.__file__).parent
    files = [path for path in root.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    classes = [name for path in files for name in re.findall(r"(?m)^ *class (\w+)", path.read_text())]
    for names in ([path.name for path in files], classes):
        assert len(names) > 200
        assert {name: count for name, count in Counter(names).items() if count > 1} == {}
    folders = Counter(path.parent.relative_to(root) for path in root.rglob("*.py"))
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
