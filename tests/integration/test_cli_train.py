"""`codedreduce train`: what it says of checkpoints, and what becomes of files that were there before."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codedreduce.cli.terminal.output_files import check_writable, write_whole
from codedreduce.errors import UsageError
from tests.command import codedreduce
from tests.waiting import PATIENCE

SMALL = ("train", "-n", "2", "--scheme", "striped")


def test_it_says_after_which_round_it_goes_on(tmp_path: Path) -> None:
    kept = ("--checkpoints", str(tmp_path / "kept"), "--checkpoint-every", "5")
    run = codedreduce(*SMALL, *kept, "--rounds", "10", "--resume")
    assert run.returncode == 0, run.stderr
    assert "Started at round 1: there is no checkpoint in" in run.stdout
    run = codedreduce(*SMALL, *kept, "--rounds", "12", "--resume")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Resumed from round 10") == 1, "once, and not once a rank"
    assert "trained for 2 rounds" in run.stdout
    run = codedreduce(*SMALL, *kept, "--rounds", "12")
    assert run.returncode == 2
    assert "up to round 12: resume it (--resume" in run.stderr
    for path in (tmp_path / "kept").glob("*.npz"):
        path.write_bytes(b"")
    run = codedreduce(*SMALL, *kept, "--rounds", "12", "--resume")
    assert run.returncode == 2
    assert "none of them is whole" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_training_that_fails_leaves_the_files_that_were_there(tmp_path: Path) -> None:
    files = [tmp_path / "model.npz", tmp_path / "log.jsonl"]
    for path in files:
        path.write_text("from an earlier training")
    options = ("--save", str(files[0]), "--log", str(files[1]), "--rounds", "5")
    run = codedreduce(*SMALL, *options, "--model", "linear", "--lr", "1e30", "--rounds", "50")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "the gradient is not finite" in run.stderr
    assert [path.read_text() for path in files] == ["from an earlier training"] * 2
    assert sorted(tmp_path.iterdir()) == sorted(files)
    run = codedreduce(*SMALL, *options)
    assert run.returncode == 0, run.stderr
    assert np.load(files[0])["parameters"].shape == (1000,)
    assert len(files[1].read_text().splitlines()) == 5
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(UsageError, match=r"cannot write '.*model.npz': File too large"):
            write_whole(path, lambda file: file.write(bytes(1 << 21)) and None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_modes_are_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"before")
    target.chmod(0o640)
    link.symlink_to(target)
    check_writable(link)
    assert target.read_bytes() == b"before"
    write_whole(link, lambda file: file.write(b"after") and None)
    assert link.is_symlink()
    assert target.read_bytes() == b"after"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("where", ["> /dev/full", ">&-", ">&- 2>&-"])
def test_a_training_goes_on_where_nothing_can_be_printed(tmp_path: Path, where: str) -> None:
    model = tmp_path / "model.npy"
    command = f"{sys.executable} -m codedreduce train -n 2 --rounds 3 --save {model} {where}"
    run = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    assert model.exists()
    expected = "codedreduce: cannot print: No space left on device; the command continues without output\n"
    assert run.stderr == (expected if "full" in where else "")


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    path = Path(f"/proc/self/fd/{writes}")
    check_writable(path)
    write_whole(path, lambda file: file.write(b"a line\n") and None)
    os.close(writes)
    assert os.read(reads, 100) == b"a line\n"
    os.close(reads)


def test_a_folder_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        check_writable(tmp_path)
