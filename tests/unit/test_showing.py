"""What is shown of what processes print."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from codedreduce.cli.run import _shown
from codedreduce.cli.terminal.console import Screen
from codedreduce.launch.showing import AlsoInFiles, OnlyFirst


class Shown:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def say(self, rank: int, line: str) -> None:
        self.text += f"[{rank}] {line}\n"


def test_a_progress_bar_is_seen_once_and_as_it_comes() -> None:
    screen = Shown()
    show = OnlyFirst(screen.write, screen.say)
    for part in (b"\r 10 %", b"\r 20 % \xc3", b"\xa9"):  # a character may come in two parts
        for rank in range(3):
            show.took(rank, part)
    assert screen.text == "\r 10 %\r 20 % é"
    show.note(2, "(killed by signal 9; the run goes on without it)")
    show.took(0, b"\r 30 %")
    show.close()
    assert screen.text.endswith("é\n[2] (killed by signal 9; the run goes on without it)\n\r 30 %\n")


def test_who_fails_is_heard_and_all_are_when_the_first_is_lost() -> None:
    screen = Shown()
    show = OnlyFirst(screen.write, screen.say)
    show.took(1, b"a\n" * 5000 + b"its last words")
    show.took(2, b"nothing\n")
    show.last_words(1)
    assert screen.text.endswith("[1] its last words\n")
    assert len(screen.text) < 30_000, "not all that it ever said"
    show.lost_first()
    show.took(2, b"I lead\n")
    show.took(2, b"and end")
    show.ended(2)
    assert screen.text.endswith("[2] I lead\n[2] and end\n")
    assert "nothing" not in screen.text


def test_files_of_an_earlier_run_are_written_anew(tmp_path: Path) -> None:
    screen = Shown()
    for words in (b"one\n", b"two\n"):
        show = AlsoInFiles(str(tmp_path / "logs"), screen.write, screen.say)
        show.took(0, b"zero\n")
        show.took(3, words)
        show.took(3, words)
    assert (tmp_path / "logs" / "rank-3.log").read_bytes() == b"two\ntwo\n"
    assert screen.text == "zero\nzero\n"


def test_logs_that_cannot_be_written_are_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    screen = Shown()
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    show = AlsoInFiles(str(tmp_path), screen.write, screen.say)
    for _ in range(3):
        show.took(0, b"zero\n")
        show.took(1, b"one\n")
    assert screen.text == "zero\n" * 3, "what is shown is shown"
    assert (tmp_path / "rank-1.log").read_bytes() == b"one\n" * 3, "and so is there what can be written"
    said = capfd.readouterr().err
    assert said.startswith(f"codedreduce: cannot write {tmp_path}/rank-0.log: No space left on device")
    assert said.count("\n") == 1


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def unread() -> int:
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize(
    ("opened", "words"), [(full, "No space left on device"), (unread, "the reader of the processes' output has ended")]
)
@pytest.mark.parametrize("output", ["root", "all"])
def test_standard_output_that_cannot_be_written_to(
    opened: Callable[[], int], words: str, output: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is reported once; what comes later is shown if that can be."""
    kept = os.dup(1)
    reads, writes = os.pipe()
    try:
        file = opened()
        show = _shown(output, has_root=False)
        os.dup2(file, 1)
        for _ in range(3):
            show.took(0, b"zero\n")
            show.note(1, "(a note)")
        os.dup2(writes, 1)
        show.took(0, b"again\n")
    finally:
        os.dup2(kept, 1)
        for one in (kept, writes, file):
            os.close(one)
    with open(reads) as said:
        assert said.read().endswith("again\n")
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_screen_is_what_its_file_is() -> None:
    assert (Screen(1).fileno(), Screen(1).isatty(), Screen(1).writable()) == (1, os.isatty(1), True)
