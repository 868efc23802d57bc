"""The command line: one file per command. `on_hosts` and `on_ray` belong to `run`, `terminal/` to all commands."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import traceback
from typing import Any, NoReturn

import typer

from codedreduce.cli import lab
from codedreduce.cli.chaos import chaos
from codedreduce.cli.draw import draw
from codedreduce.cli.race import race
from codedreduce.cli.replay import replay
from codedreduce.cli.run import run
from codedreduce.cli.secret import secret
from codedreduce.cli.simulate import simulate
from codedreduce.cli.terminal.console import WIDEST, complain, open_what_is_closed
from codedreduce.cli.terminal.typer_errors import COMMAND_LINE_ERROR, is_help, typer_error_text
from codedreduce.cli.train import train
from codedreduce.errors import CodedReduceError, Interrupted, UsageError
from codedreduce.process.error_lines import is_plain, wants_tracebacks
from codedreduce.process.termination import TOLD_BY

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
    """Run the command line. A user error prints one line and exits with code 2."""
    _prepare_output()
    for one in TOLD_BY:  # exit through `finally` blocks, which clean up
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, lambda number, _: sys.exit(128 + number))
    wide: dict[str, Any] = {}
    if not sys.stdout.isatty():  # print help without wrapping and boxes
        wide["terminal_width"] = WIDEST
        app.rich_markup_mode = lab.app.rich_markup_mode = None
    try:
        code = app(prog_name="codedreduce", standalone_mode=False, **wide)
    except COMMAND_LINE_ERROR as error:
        if is_help(error):
            print(str(error), end="")
            sys.exit(2)
        _end(error, 2, typer_error_text(error))
    except UsageError as error:
        _end(error, 2)
    except Interrupted as error:
        _end(error, 130)
    except CodedReduceError as error:
        _end(error, 1)
    except MemoryError as error:
        _end(error, 1, f"there is not enough memory: {error or 'take fewer samples, parameters or workers'}")
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        _end(error, 1, f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_output() -> None:
    """Make file names that are not valid text printable, and redirect closed standard streams to /dev/null."""
    open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _end(error: BaseException, code: int, text: str = "") -> NoReturn:
    """Print an error and exit. An internal error, or CODEDREDUCE_DEBUG, adds the traceback."""
    shows_place = not is_plain(error) if isinstance(error, CodedReduceError) else wants_tracebacks()
    with contextlib.suppress(OSError):  # the exit code reports the error, too
        if shows_place:
            traceback.print_exception(error)
        complain(text or str(error))
    sys.exit(code)
