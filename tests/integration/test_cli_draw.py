"""Plans as text and as pictures, by the command line."""

from pathlib import Path

import pytest

from tests.command import codedreduce


def test_tree_as_text() -> None:
    run = codedreduce("draw", "--tree", "4x2", "--stragglers", "1", "--samples", "6300")
    assert run.returncode == 0, run.stderr
    assert "● 5  315 samples, 1260 at most; tasks 5 then 6" in run.stdout
    assert "1 straggler in each group" in run.stdout
    assert "a sample is held   by 4 to 10 workers, 5.2 in the mean" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "held"),
    [
        (["--scheme", "ring"], "once"),
        (["--scheme", "master-worker"], "once"),
        (["--scheme", "gradient-coding", "--stragglers", "3"], "by 4 workers"),
        (["--tree", "4x3", "--stragglers", "3"], "by 20 to 80 workers, 65 in the mean"),
    ],
)
def test_how_often_a_sample_is_held(arguments: list[str], held: str, tmp_path: Path) -> None:
    assert f"a sample is held   {held}" in codedreduce("draw", *arguments).stdout
    run = codedreduce("draw", *arguments, "--out", str(tmp_path / "a.svg"))
    assert run.returncode == 0, run.stderr
    assert f"a sample is held {held}" in (tmp_path / "a.svg").read_text()


def test_holders_are_not_counted_in_huge_trees() -> None:
    run = codedreduce("draw", "--tree", "10x4")
    assert run.returncode == 0, run.stderr
    assert "a sample is held" not in run.stdout


@pytest.mark.parametrize("scheme", ["ring", "gradient-coding", "master-worker", "live-compensation"])
def test_other_schemes_as_text(scheme: str) -> None:
    run = codedreduce("draw", "--scheme", scheme)
    assert run.returncode == 0, run.stderr
    assert scheme in run.stdout


def test_stripes_with_several_units_a_rank(tmp_path: Path) -> None:
    units = ["--tree", "4x1", "--scheme", "striped", "--units", "6"]
    run = codedreduce("draw", *units)
    assert run.returncode == 0, run.stderr
    assert "striped of 6 units over 4 ranks" in run.stdout
    assert "in 2 units" in run.stdout
    run = codedreduce("draw", *units, "--out", str(tmp_path / "a.svg"))
    assert run.returncode == 0, run.stderr
    picture = (tmp_path / "a.svg").read_text()
    assert "6 units," in picture
    assert "one unit each" not in picture


def test_a_large_tree_is_folded() -> None:
    run = codedreduce("draw", "--tree", "4x4")
    assert run.returncode == 0
    assert "as under" in run.stdout
    assert len(run.stdout.splitlines()) < 100


@pytest.mark.parametrize(("name", "magic"), [("tree.svg", b"<?xml"), ("tree.png", b"\x89PNG")])
@pytest.mark.parametrize("scheme", ["coded-reduce", "ring", "compare"])
def test_pictures(tmp_path: Path, name: str, magic: bytes, scheme: str) -> None:
    target = tmp_path / name
    order = [] if scheme == "ring" else ["--order", "eager"]
    run = codedreduce("draw", "--tree", "4x2", *order, "--scheme", scheme, "--out", str(target))
    assert run.returncode == 0, run.stderr
    assert target.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tree", "4by2"], "FANOUTxDEPTH"),
        (["--stragglers", "4"], "got stragglers=4"),
        (["--units", "6"], "they follow from its workers; use striped"),
        (["--scheme", "magic"], "unknown scheme 'magic'"),
        (["--samples", "3"], "3 samples cannot be shared by 20 workers"),
        (["--out", "tree.gif"], ".svg or .png"),
        (["--out", "/nowhere/tree.svg"], "cannot write '/nowhere/tree.svg'"),
        (["--tree", "10x4", "--out", "tree.svg"], "do not fit in a picture"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    run = codedreduce("draw", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
