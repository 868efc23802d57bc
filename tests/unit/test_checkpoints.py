"""Checkpoints in real files: whole or not there, of the same training or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from codedreduce.errors import UsageError
from codedreduce.training.checkpoints import VERSION, Checkpoints, InUse, Saving, When

SUBJECT = {"model": "a line", "seed": "3"}


def state(value: int, size: int = 1000) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(size, value, np.uint8)


def written(folder: Path, *rounds: int, keep: int = 3) -> None:
    for round_ in rounds:
        with Checkpoints(Saving(folder=folder, keep=keep), SUBJECT) as checkpoints:
            checkpoints.write(round_, partial(state, round_))


def latest(folder: Path, said: list[str] | None = None) -> int | None:
    with Checkpoints(Saving(folder=folder), SUBJECT, say=(said if said is not None else []).append) as checkpoints:
        found = checkpoints.latest()
        if found is None:
            return None
        assert found.state.tobytes() == state(found.round).tobytes()
        return found.round


def test_the_last_one_is_read_and_the_last_few_are_kept(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    written(tmp_path, 1, 2, 30, 4)
    assert latest(tmp_path) == 30
    assert sorted(path.name for path in tmp_path.glob("round-*.json")) == [
        "round-00000002.json", "round-00000004.json", "round-00000030.json",
    ]  # fmt: skip
    assert len(list(tmp_path.glob("round-*.npz"))) == 3


@pytest.mark.parametrize("damage", ["a byte", "shorter", "gone", "its words"])
def test_a_damaged_one_is_said_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
    written(tmp_path, 5, 6)
    file, words = tmp_path / "round-00000006.npz", tmp_path / "round-00000006.json"
    data = bytearray(file.read_bytes())
    if damage == "a byte":
        data[500] ^= 1
        file.write_bytes(data)
    elif damage == "shorter":
        file.write_bytes(data[:-1])
    elif damage == "gone":
        file.unlink()
    else:
        words.write_text('{"version": 1')
    said: list[str] = []
    assert latest(tmp_path, said) == 5
    assert len(said) == 1
    assert "round-00000006" in said[0]
    assert "damaged" in said[0]


def test_what_was_being_written_when_the_machine_stopped_is_not_there(tmp_path: Path) -> None:
    written(tmp_path, 5)
    (tmp_path / "round-00000006.npz.writing").write_bytes(b"half")
    (tmp_path / "round-00000007.npz").write_bytes(b"whole, but never said to be there")
    assert latest(tmp_path) == 5


def test_another_training_is_refused_by_what_differs(tmp_path: Path) -> None:
    written(tmp_path, 5)
    with (
        Checkpoints(Saving(folder=tmp_path), {**SUBJECT, "seed": "4"}) as checkpoints,
        pytest.raises(UsageError, match="another training: seed '3', now '4'"),
    ):
        checkpoints.latest()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 5)
    path = tmp_path / "round-00000005.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": VERSION + 1, "file": 7}))
    with Checkpoints(Saving(folder=tmp_path), SUBJECT) as checkpoints, pytest.raises(UsageError, match="newer version"):
        checkpoints.latest()


def test_two_trainings_cannot_share_a_folder(tmp_path: Path) -> None:
    other = (
        "import sys, pathlib; from codedreduce.training.checkpoints import Checkpoints, Saving\n"
        "with Checkpoints(Saving(folder=pathlib.Path(sys.argv[1])), {}): pass"
    )
    with Checkpoints(Saving(folder=tmp_path), SUBJECT):
        done = subprocess.run([sys.executable, "-c", other, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "another training writes its checkpoints" in done.stderr
    done = subprocess.run([sys.executable, "-c", other, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("first", "second", "own"), [("a", "a", True), ("a", "b", False), ("", "", False)])
def test_a_folder_in_use_by_ones_own_run_is_told_from_another(
    tmp_path: Path, first: str, second: str, own: bool
) -> None:
    with Checkpoints(Saving(folder=tmp_path, run=first), SUBJECT):
        with pytest.raises(InUse) as refused, Checkpoints(Saving(folder=tmp_path, run=second), SUBJECT):
            pass
        assert refused.value.by_own_run == own
    with Checkpoints(Saving(folder=tmp_path, run=second), SUBJECT):
        pass


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        Checkpoints(Saving(folder=tmp_path / "file"), SUBJECT).__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_said_and_the_last_whole_one_stays(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    try:
        said: list[str] = []
        with Checkpoints(Saving(folder=tmp_path), SUBJECT, say=said.append) as checkpoints:
            checkpoints.write(1, partial(state, 1))
        with Checkpoints(Saving(folder=tmp_path), SUBJECT, say=said.append) as checkpoints:
            checkpoints.write(2, partial(state, 2, size=1 << 20))
        assert len(said) == 1
        assert "round 2" in said[0]
        assert "No space left" in said[0]
        assert not list(tmp_path.glob("round-00000002*"))
        assert latest(tmp_path) == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_while_one_is_written_the_newest_waits(tmp_path: Path) -> None:
    with Checkpoints(Saving(folder=tmp_path, keep=100), SUBJECT) as checkpoints:
        for round_ in range(1, 51):
            checkpoints.write(round_, partial(state, round_))
    assert latest(tmp_path) == 50


def test_when_one_is_due(tmp_path: Path) -> None:
    with Checkpoints(Saving(folder=tmp_path, when=When(rounds=10)), SUBJECT) as checkpoints:
        assert not checkpoints.is_due(9)
        assert checkpoints.is_due(10)
        checkpoints.write(12, partial(state, 12))
        assert not checkpoints.is_due(21)
        assert checkpoints.is_due(22)


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_never_and_always_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        When(**wrong)  # type: ignore[arg-type]


def test_none_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 checkpoints"):
        Checkpoints(Saving(folder=tmp_path, keep=0), SUBJECT)


def test_a_training_is_not_begun_anew_over_another_in_silence(tmp_path: Path) -> None:
    written(tmp_path, 7)
    with Checkpoints(Saving(folder=tmp_path), SUBJECT) as checkpoints, pytest.raises(UsageError, match="up to round 7"):
        checkpoints.begin()
    with Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT) as checkpoints:
        found = checkpoints.begin()
    assert found is not None
    assert found.round == 7
