"""Checkpoints in real files: whole or not there, of the same training or refused."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from codedreduce.errors import UsageError
from codedreduce.run.journal import Journal
from codedreduce.training.checkpoints import VERSION, Checkpoints, InUse, Saving, When
from codedreduce.training.kept import Kept

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
    written(tmp_path, 1, 2, 4, 30)
    assert latest(tmp_path) == 30
    assert sorted(path.name for path in tmp_path.glob("round-*.json")) == [
        "round-00000002.json", "round-00000004.json", "round-00000030.json",
    ]  # fmt: skip
    assert len(list(tmp_path.glob("round-*.npz"))) == 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user can reach and write to; pytest's own are in a folder of the one that runs it."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o777)
        yield Path(path)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """As a user for whom permissions count, if this is run by root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def contents(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, but for the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and "lock" not in path.name}


@pytest.mark.parametrize("damage", ["a byte", "shorter", "gone", "its words", "a byte of its words", "its round"])
def test_a_damaged_one_is_said_and_renamed_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
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
    elif damage == "its words":
        words.write_text('{"version": 1')
    elif damage == "a byte of its words":
        words.write_bytes(words.read_bytes().replace(b"a line", b"\xe1 line"))
    else:
        words.write_text(words.read_text().replace('"round": 6', '"round": 7'))
    before = contents(tmp_path)
    said: list[str] = []
    assert latest(tmp_path, said) == 5
    assert len(said) == 1
    assert "round-00000006.json.damaged" in said[0]
    assert "is damaged: round-00000006" in said[0]
    after = {name.removesuffix(".damaged"): data for name, data in contents(tmp_path).items()}
    assert after == before, "renamed, and not removed"
    assert latest(tmp_path, said) == 5
    assert len(said) == 1


def test_one_that_is_damaged_again_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    written(tmp_path, 5)
    for _ in range(3):
        written(tmp_path, 6)
        (tmp_path / "round-00000006.npz").write_bytes(b"x")
        assert latest(tmp_path) == 5
    assert len(list(tmp_path.glob("round-00000006.json.damaged*"))) == 3
    assert len(list(tmp_path.glob("round-00000006.npz.damaged*"))) == 3


def test_damaged_ones_do_not_have_good_ones_removed_when_few_are_kept(tmp_path: Path) -> None:
    written(tmp_path, 20, 30)
    (tmp_path / "round-00000030.npz").write_bytes(b"x")
    with Checkpoints(Saving(folder=tmp_path, keep=1), SUBJECT) as checkpoints:
        found = checkpoints.latest()
        assert found is not None
        assert found.round == 20
        checkpoints.write(21, partial(state, 21))
    assert latest(tmp_path) == 21


def test_where_none_is_whole_nothing_is_begun_and_nothing_changed(tmp_path: Path) -> None:
    written(tmp_path, 5, 6)
    for path in tmp_path.glob("*.npz"):
        path.write_bytes(b"x")
    before = contents(tmp_path)
    for _ in range(2):  # a job that is started again and again does not get round it
        with (
            Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT) as checkpoints,
            pytest.raises(UsageError, match=r"none of them is whole.* has 1 bytes of 1000.*move the folder away"),
        ):
            checkpoints.begin()
        assert contents(tmp_path) == before


def test_where_only_damaged_ones_are_left_nothing_is_begun(tmp_path: Path) -> None:
    written(tmp_path, 5, 6)
    (tmp_path / "round-00000006.npz").write_bytes(b"x")
    assert latest(tmp_path) == 5
    for path in tmp_path.glob("round-00000005*"):
        path.unlink()
    with (
        Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT) as checkpoints,
        pytest.raises(UsageError, match="none of them is whole"),
    ):
        checkpoints.begin()


#: What keeps a file from being read, and the kernel's words for it.
UNREADABLE = {
    "may not": (lambda path: path.chmod(0), "Permission denied"),
    "no file": (lambda path: (path.rename(path.with_name("aside")), path.mkdir()), "Is a directory"),
    "the disk": (
        lambda path: (path.rename(path.with_name("aside")), path.symlink_to("/proc/self/mem")),
        "Input/output",
    ),
    "not mounted": (lambda path: (path.rename(path.with_name("aside")), path.symlink_to("nowhere")), "No such file"),
}


@pytest.mark.parametrize("which", ["npz", "json"])
@pytest.mark.parametrize(("hinder", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_one_that_cannot_be_read_is_an_error_and_stays(
    folder: Path, which: str, hinder: Callable[[Path], object], words: str
) -> None:
    with unprivileged() if words == "Permission denied" else contextlib.nullcontext():
        written(folder, 4, 5, 6)
        before = contents(folder)
        path = folder / f"round-00000006.{which}"
        hinder(path)
        names = sorted(os.listdir(folder))
        with (
            Checkpoints(Saving(folder=folder, resume=True), SUBJECT) as checkpoints,
            pytest.raises(UsageError, match=f"{path.name} cannot be read: .*{words}"),
        ):
            checkpoints.begin()
        assert sorted(os.listdir(folder)) == names
    if (folder / "aside").exists():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (folder / "aside").rename(path)
    path.chmod(0o600)
    assert contents(folder) == before
    assert latest(folder) == 6


def test_that_the_folder_cannot_be_asked_for_a_file_is_not_taken_for_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over a network, for a moment."""
    written(tmp_path, 4, 5)
    before = contents(tmp_path)

    def stale(path: object, **options: object) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "lstat", stale)
    said: list[str] = []
    assert latest(tmp_path, said) == 5
    assert not said
    monkeypatch.undo()
    assert contents(tmp_path) == before


def test_data_without_manifests_is_not_taken_for_an_empty_folder(tmp_path: Path) -> None:
    """Of one that was being written when the machine stopped, the manifest lies beside."""
    written(tmp_path, 4, 5)
    before = contents(tmp_path)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    with (
        Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT) as checkpoints,
        pytest.raises(UsageError, match=r"none of them is whole.*round-00000005.json is missing.*00000004.json is"),
    ):
        checkpoints.begin()
    (tmp_path / "round-00000004.npz").unlink()
    (tmp_path / "round-00000005.json.writing").write_bytes(before["round-00000005.json"])
    with Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT) as checkpoints:
        assert checkpoints.begin() is None


@pytest.mark.parametrize("free", [0, 1])
def test_with_too_many_open_files_nothing_is_removed(tmp_path: Path, free: int) -> None:
    written(tmp_path, 4, 5, 6)
    before = contents(tmp_path)
    script = (
        "import os, pathlib, resource, sys\n"
        "from codedreduce.training.checkpoints import Checkpoints, Saving\n"
        "saving = Saving(folder=pathlib.Path(sys.argv[1]), resume=True)\n"
        "with Checkpoints(saving, {'model': 'a line', 'seed': '3'}, say=print) as checkpoints:\n"
        "    os.close(first := os.dup(0))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (first + int(sys.argv[2]), 4096))\n"
        "    checkpoints.begin()"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(free)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if free:
        assert done.stdout.startswith("Resumed from round 6"), done.stderr
    else:
        assert f"UsageError: checkpoints in {tmp_path} cannot be listed: Too many open files" in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_that_cannot_be_listed_is_not_taken_to_be_empty(folder: Path, resume: bool) -> None:
    with unprivileged():
        written(inner := folder / "inner", 5)
        with Checkpoints(Saving(folder=inner, resume=resume), SUBJECT) as checkpoints:
            inner.chmod(0o300)
            with pytest.raises(UsageError, match="inner cannot be listed: Permission denied"):
                checkpoints.begin()
        inner.chmod(0o700)
    assert latest(inner) == 5


def test_a_write_that_fails_leaves_the_one_of_the_same_round(tmp_path: Path) -> None:
    """As when a rank that comes to lead writes what the one before it has written."""
    written(tmp_path, 5, 6)
    before = contents(tmp_path)
    said: list[str] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(Saving(folder=tmp_path), SUBJECT, say=said.append) as checkpoints:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            checkpoints.write(6, partial(state, 6, size=1 << 21))
            checkpoints.__exit__(None, None, None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == [f"the checkpoint of round 6 could not be written to {tmp_path}: File too large"]
    assert contents(tmp_path) == before


def test_an_old_one_that_cannot_be_removed_does_not_cost_the_new_one(tmp_path: Path) -> None:
    written(tmp_path, 5)
    (tmp_path / "round-00000005.npz").unlink()
    (tmp_path / "round-00000005.npz").mkdir()
    said: list[str] = []
    with Checkpoints(Saving(folder=tmp_path, keep=1), SUBJECT, say=said.append) as checkpoints:
        checkpoints.write(6, partial(state, 6))
    assert [text for text in said if "could not be removed" in text and "round-00000005.npz" in text] == said != []
    assert latest(tmp_path) == 6


def test_writing_one_removes_neither_it_nor_a_later_one(tmp_path: Path) -> None:
    """A rank that comes to lead may do a round again that the one before it has written."""
    written(tmp_path, 7, 9, 8, keep=1)
    for suffix in ("json", "npz"):
        found = sorted(path.stem for path in tmp_path.glob(f"round-*.{suffix}"))
        assert found == ["round-00000008", "round-00000009"]


def test_a_folder_that_becomes_read_only_keeps_what_it_has(folder: Path) -> None:
    said: list[str] = []
    with unprivileged():
        inner = folder / "inner"
        written(inner, 5)
        with Checkpoints(Saving(folder=inner, keep=1), SUBJECT, say=said.append) as checkpoints:
            inner.chmod(0o500)
            checkpoints.write(6, partial(state, 6))
        inner.chmod(0o700)
    assert said == [f"the checkpoint of round 6 could not be written to {inner}: Permission denied"]
    assert latest(inner) == 5


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    mine = {"writable": b"mine", "lock": b"mine", "round-1.json": b"mine", "round-x.json": b"mine"}
    for name, data in mine.items():
        (tmp_path / name).write_bytes(data)
    written(tmp_path, 5, 6, keep=1)
    assert {name: (tmp_path / name).read_bytes() for name in mine} == mine


def test_how_a_training_begins_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT, say=said.append) as checkpoints:
            checkpoints.begin()
            checkpoints.write(30, partial(state, 30))
    assert said == [
        f"Started at round 1: there is no checkpoint in {tmp_path} yet",
        f"Resumed from round 30 ({tmp_path / 'round-00000030.json'})",
    ]


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


@contextlib.contextmanager
def no_byte_to_write() -> Iterator[None]:
    """As on a full disk: files can be made, and nothing written into them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_in_which_not_even_the_name_of_the_run_can_be_written_is_refused(tmp_path: Path) -> None:
    with no_byte_to_write(), pytest.raises(UsageError, match=r"cannot be written to .*: File too large"):
        Checkpoints(Saving(folder=tmp_path, run="a run"), SUBJECT).__enter__()
    with Checkpoints(Saving(folder=tmp_path, run="another"), SUBJECT):
        pass


def test_a_rank_that_comes_to_lead_on_a_full_disk_goes_on_and_writes_when_there_is_room(tmp_path: Path) -> None:
    class Replica:
        def copy(self) -> Callable[[], np.ndarray]:
            return partial(state, 9)

        def unpack(self, state: np.ndarray) -> None:
            raise NotImplementedError

    journal = Journal()
    saving = Saving(folder=tmp_path, when=When(rounds=1), run="a run")
    with Kept(saving, SUBJECT, Replica(), journal, is_first=False) as kept:
        with no_byte_to_write():
            kept.after(8, is_last=False)
        assert ["cannot be written to" in note.reason for note in journal.of_kind("checkpoint")] == [True]
        kept.after(9, is_last=False)
    assert latest(tmp_path) == 9


def test_a_process_that_was_forked_does_not_keep_the_folder_of_one_that_was_killed(tmp_path: Path) -> None:
    """As those of a script's own, or of torch's loaders, which live on for a while."""
    script = (
        "import os, pathlib, signal, sys\n"
        "from codedreduce.training.checkpoints import Checkpoints, Saving\n"
        "with Checkpoints(Saving(folder=pathlib.Path(sys.argv[1])), {}):\n"
        "    if not os.fork():\n"
        "        print(os.getpid(), flush=True)\n"  # only when it runs has it left what it inherited
        "    signal.pause()"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(InUse), Checkpoints(Saving(folder=tmp_path), SUBJECT):
            pass
        process.kill()
        process.wait()
        os.kill(child, 0)
        with Checkpoints(Saving(folder=tmp_path), SUBJECT):
            pass
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


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
    with pytest.raises(UsageError, match="between checkpoints must be"):
        When(**wrong)  # type: ignore[arg-type]


def test_none_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be 1 or more, got 0"):
        Checkpoints(Saving(folder=tmp_path, keep=0), SUBJECT)


def test_a_training_is_not_begun_anew_over_another_in_silence(tmp_path: Path) -> None:
    written(tmp_path, 7)
    with Checkpoints(Saving(folder=tmp_path), SUBJECT) as checkpoints, pytest.raises(UsageError, match="up to round 7"):
        checkpoints.begin()
    with Checkpoints(Saving(folder=tmp_path, resume=True), SUBJECT) as checkpoints:
        found = checkpoints.begin()
    assert found is not None
    assert found.round == 7
