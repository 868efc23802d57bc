"""The command line: one file a command."""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from typing import TextIO, cast

import typer
from rich.console import Console
from rich.markup import escape

from codedreduce.cli import lab
from codedreduce.cli.chaos import chaos
from codedreduce.cli.draw import draw
from codedreduce.cli.race import race
from codedreduce.cli.replay import replay
from codedreduce.cli.run import run
from codedreduce.cli.screen import Screen
from codedreduce.cli.secret import secret
from codedreduce.cli.simulate import simulate
from codedreduce.cli.train import train
from codedreduce.errors import CodedReduceError, Interrupted, UsageError
from codedreduce.worlds.leaving import TOLD_BY
from codedreduce.worlds.plainly import is_plain

app = typer.Typer(
    name="codedreduce",
    help="Exact synchronous gradient aggregation that does not wait for its slowest machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(race)
app.command()(train)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.command()(draw)
app.command()(simulate)
app.command()(replay)
app.command()(chaos)
app.command()(secret)
app.add_typer(lab.app, name="lab")


@app.callback()
def _program() -> None:
    """Exact synchronous gradient aggregation that does not wait for its slowest machine."""


def main() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 2."""
    for one in TOLD_BY:  # so that everything is taken away on the way out
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except UsageError as error:
        _complain(error)
        sys.exit(2)
    except Interrupted as error:
        _complain(error)
        sys.exit(130)
    except CodedReduceError as error:
        _complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(error: CodedReduceError) -> None:
    console = Console(file=cast(TextIO, Screen(2)), soft_wrap=True, highlight=False)
    with contextlib.suppress(OSError):  # the exit code says it, too
        if not is_plain(error):  # a fault of ours, or CODEDREDUCE_DEBUG=1
            traceback.print_exception(error)
        console.print(f"[bold red]codedreduce:[/] {escape(str(error))}")
