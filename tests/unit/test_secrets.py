"""The secret of a run: where it is found, who may read it, and that it is never shown."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from codedreduce.errors import UsageError
from codedreduce.launch.environment import read_membership
from codedreduce.process.error_lines import say
from codedreduce.process.private_folder import alone_in_it, is_listened_at, place_for, run_folder, tidy
from codedreduce.process.secrets import Secret, default_file, find_secret, read_secret, write_secret
from codedreduce.process.telling import PIPE
from codedreduce.run.agreement import Meeting

TEXT = "0123456789abcdefghijklmnopqrstuvwxyz"
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def nobody_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_it_is_found_in_the_order_that_is_said(tmp_path: Path) -> None:
    write_secret(str(tmp_path / "file"), Secret("of the file" + TEXT))
    write_secret(default_file(), Secret("of the default file" + TEXT))
    everything = {"CODEDREDUCE_SECRET": "of the variable" + TEXT, "CODEDREDUCE_SECRET_FILE": str(tmp_path / "file")}
    found = find_secret(everything)
    assert found is not None
    assert found.reveal() == "of the variable" + TEXT
    del everything["CODEDREDUCE_SECRET"]
    found = find_secret(everything)
    assert found is not None
    assert (found.reveal(), found.source) == ("of the file" + TEXT, str(tmp_path / "file"))
    found = find_secret({})
    assert found is not None
    assert found.reveal() == "of the default file" + TEXT
    os.unlink(default_file())
    assert find_secret({}) is None


def test_what_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_secret(str(path), Secret.fresh())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for mode in (0o640, 0o604, 0o666):
        path.chmod(mode)
        with pytest.raises(UsageError, match="others may read the secret"):
            read_secret(str(path))
    with pytest.raises(UsageError, match="No such file"):
        find_secret({"CODEDREDUCE_SECRET_FILE": str(tmp_path / "nowhere")})
    with pytest.raises(UsageError, match="is not a file"):
        read_secret(str(tmp_path))


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """Neither one of the same name nor what a link of that name leads to."""
    path, elsewhere = tmp_path / "file", tmp_path / "elsewhere"
    path.symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        write_secret(str(path), Secret.fresh())
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_a_short_one_is_refused() -> None:
    with pytest.raises(UsageError, match="the secret of CODEDREDUCE_SECRET has 8 characters, and needs at least 20"):
        find_secret({"CODEDREDUCE_SECRET": "password"})


def test_it_is_never_shown() -> None:
    secret = Secret(TEXT)
    meeting = Meeting(run="x", secret=secret)
    shown = [repr(secret), str(secret), f"{secret} {secret!r}", repr(meeting), repr(vars(meeting)), repr([secret])]
    try:
        assert meeting == replace(meeting, secret=Secret.fresh()), meeting
    except AssertionError:
        shown.append(traceback.format_exc())
    assert not [words for words in shown if TEXT[:8] in words]
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(secret)


def test_what_is_derived_depends_on_everything() -> None:
    one, other = Secret.fresh(), Secret.fresh()
    derived = [
        one.derived("a"), other.derived("a"), one.derived("b"), one.derived("a", b""), one.derived("a", b"x"),
        one.derived("a", b"x", b"y"), one.derived("a", b"xy"),
    ]  # fmt: skip
    assert len(set(derived)) == len(derived)
    assert one.proves(one.derived("a", b"x"), "a", b"x")
    assert not other.proves(one.derived("a", b"x"), "a", b"x")


def test_a_run_on_this_machine_has_the_users_secret_and_makes_it() -> None:
    found = read_membership({**LAUNCHED, "MASTER_ADDR": "127.0.0.1"})
    again = read_membership({**LAUNCHED, "MASTER_ADDR": "127.0.0.1"})
    assert found is not None
    assert again is not None
    assert found.meeting.secret is not None
    assert found.meeting.secret == again.meeting.secret == read_secret(default_file())
    found.meeting.check_protected()


def test_others_may_not_come_without_a_secret() -> None:
    said = {**LAUNCHED, "MASTER_ADDR": "192.0.2.1"}
    found = read_membership(said)
    assert found is not None
    assert not os.path.exists(default_file()), "made for runs of this machine only"
    with pytest.raises(UsageError, match="the run has no secret: make one with `codedreduce secret`"):
        found.meeting.check_protected()
    insecure = read_membership({**said, "CODEDREDUCE_INSECURE": "1"})
    assert insecure is not None
    insecure.meeting.check_protected()
    assert insecure.meeting.secret is None
    with_one = read_membership({**said, "CODEDREDUCE_SECRET": TEXT})
    assert with_one is not None
    with_one.meeting.check_protected()


def test_local_sockets_are_their_owners_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("codedreduce.process.private_folder.PARENT", str(tmp_path))
    with place_for(f"{run_folder('x')}/book"):
        status = os.stat(os.path.dirname(run_folder("x")))
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.getuid(), 0o700)
        assert os.path.isdir(run_folder("x"))
    tidy()
    assert not os.path.exists(run_folder("x"))
    os.chmod(tmp_path / f"codedreduce-{os.getuid()}", 0o755)
    with pytest.raises(UsageError, match="closed to others"), alone_in_it():
        pass


def test_what_was_said_is_known_though_another_run_tidies_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("codedreduce.process.private_folder.PARENT", str(tmp_path))
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for _ in range(2):
        say(UsageError("do this"), "script.py, line 1")
        tidy()
    assert capsys.readouterr().err == "codedreduce: do this (script.py, line 1)\n"


def test_a_folder_that_is_a_link_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("codedreduce.process.private_folder.PARENT", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"codedreduce-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be used"), alone_in_it():
        pass


def test_nobody_listens_where_nothing_is(tmp_path: Path) -> None:
    assert not is_listened_at(str(tmp_path / "nothing"))
