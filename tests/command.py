"""Programs as at a prompt, in processes forked from this one: what they need is loaded once for all."""

from __future__ import annotations

import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

import codedreduce.report.figures
import codedreduce.report.plan_figure
from codedreduce.cli import main
from tests.waiting import PATIENCE


def codedreduce(*arguments: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """`codedreduce ...` to its end; what it printed, and its exit code."""
    return _run(main, ["codedreduce", *arguments], timeout)


def script(path: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """`python ...` in the script's folder, to its end."""

    def run() -> None:
        os.chdir(path.parent)
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")

    return _run(run, [str(path), *arguments], timeout)


def _run(program: Callable[[], object], words: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = os.fork()
        if not process:
            _be(program, words, out, errors)
        code = _wait(process, words, timeout)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), errors.read())


def _be(program: Callable[[], object], words: list[str], out: IO[str], errors: IO[str]) -> NoReturn:
    """What the interpreter does around a program."""
    code = 1
    try:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = words
        program()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int, command: list[str], timeout: float) -> int:
    """The exit code; negative: the signal that killed it."""
    ended = os.pidfd_open(process)
    try:
        if not select.select([ended], [], [], timeout)[0]:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise subprocess.TimeoutExpired(command, timeout)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    finally:
        os.close(ended)
