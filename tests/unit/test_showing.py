"""What is shown of what processes print."""

from __future__ import annotations

from pathlib import Path

from codedreduce.worlds.showing import AlsoInFiles, OnlyFirst


class Screen:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def say(self, rank: int, line: str) -> None:
        self.text += f"[{rank}] {line}\n"


def test_a_progress_bar_is_seen_once_and_as_it_comes() -> None:
    screen = Screen()
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
    screen = Screen()
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
    screen = Screen()
    for words in (b"one\n", b"two\n"):
        show = AlsoInFiles(str(tmp_path / "logs"), OnlyFirst(screen.write, screen.say))
        show.took(0, b"zero\n")
        show.took(3, words)
        show.took(3, words)
    assert (tmp_path / "logs" / "rank-3.log").read_bytes() == b"two\ntwo\n"
    assert screen.text == "zero\nzero\n"
