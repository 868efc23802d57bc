"""What is printed is shown as it is: no markup, no emoji, and no line of a file or a pipe is broken."""

from __future__ import annotations

import pytest
from rich.table import Table

from codedreduce.cli.terminal.console import complain, make_console
from codedreduce.errors import UsageError

#: What rich would turn into a red cross, bold type, a link, and several lines.
AWKWARD = "root:x:0:0 [bold]fat[/bold] [link=a]b[/link] :smile: " + "word " * 60 + "end"


def test_a_users_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(AWKWARD)
    assert capsys.readouterr().out == AWKWARD + "\n"


def test_a_table_in_a_pipe_has_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("rank", "node", box=None)
    table.add_row("0", AWKWARD)
    make_console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert AWKWARD in lines[1]


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    complain(str(UsageError(AWKWARD)))
    printed = capsys.readouterr()
    assert printed.err == f"codedreduce: {AWKWARD}\n"
    assert not printed.out
