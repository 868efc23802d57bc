"""Errors of ours that end a script are one line each, and one a run: what is wrong, and where in the script.

The exit code is 2 if the user can mend it, as that of the command line.

Under `codedreduce run` the launcher is told, and says it. Under others the processes of one launcher on one machine
agree by files who says it: the first of them. CODEDREDUCE_DEBUG=1 shows tracebacks instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from codedreduce.errors import CodedReduceError, ProtocolError, UsageError
from codedreduce.process.private_folder import SAID, alone_in_it
from codedreduce.process.telling import Said, What, Word, has_launcher, own_rank, tell

#: Set to 1 it shows where in our code an error was raised.
DEBUG = "CODEDREDUCE_DEBUG"

#: The exit code of a script that ends with an error that its user can mend.
USAGE = 2

#: What ranks that are sent away because of another's mistake are told ahead of it.
BECAUSE = "the run is over: "

#: Where frames are that are not a script's: here, in Python's own library, in nothing that has a file.
_NOT_A_SCRIPT = (str(Path(__file__).parents[1]) + os.sep, os.path.dirname(os.__file__) + os.sep, "<")

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def speak_plainly() -> None:
    """From now on errors of ours that nobody catches are said so; a hook that a script has set gets all others."""
    if not isinstance(sys.excepthook, _Plainly):
        sys.excepthook = _Plainly(sys.excepthook)


class _Plainly:
    """Stands in for the hook that was there before."""

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt) and has_launcher() and not wants_tracebacks():
            return  # it says so itself, once for all
        if not is_plain(error):
            self._before(kind, error, trace)
            return
        say(error, place_in(trace))
        if isinstance(error, UsageError) and not hasattr(sys, "ps1"):  # which only a prompt has, and it goes on
            sys.exit(USAGE)


def is_plain(error: BaseException) -> bool:
    """Whether its message says all that a user needs: errors of ours, but for what can only be a fault of ours."""
    is_ours = isinstance(error, CodedReduceError) and not isinstance(error, ProtocolError)
    return is_ours and not wants_tracebacks()


def wants_tracebacks() -> bool:
    """Whether the user has asked to see all tracebacks."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def say(error: BaseException, where: str) -> None:
    """Say it, or let the launcher, or leave it to who has said the same before."""
    text = str(error).removeprefix(BECAUSE)
    word = Word(
        own_rank(), What.ERRS, text, where, is_usage=isinstance(error, UsageError), about=getattr(error, "node", None)
    )
    if not tell(word) and _is_first_to_say(text):
        print(f"codedreduce: {text}{f' ({where})' if where else ''}", file=sys.stderr, flush=True)


def place_in(trace: TracebackType | None) -> str:
    """Where in the script it was that something of ours was asked for.

    >>> place_in(None)
    ''
    """
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_NOT_A_SCRIPT)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename]
    if not frames:
        return ""
    name = os.path.basename(frames[-1].filename)
    return f"{'the cell' if 'ipykernel_' in frames[-1].filename else name}, line {frames[-1].lineno}"


def _is_first_to_say(text: str) -> bool:
    """Whether no other process that the same launcher has started here has said this."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    name = hashlib.blake2b(Said.of(text).rest.encode(), digest_size=10).hexdigest()
    with contextlib.suppress(UsageError, OSError), alone_in_it() as folder:
        told = Path(folder) / f"{SAID}{os.getppid()}-{_began(os.getppid())}"
        for other in Path(folder).glob(f"{SAID}*"):
            _, process, began = other.name.split("-")
            if _began(int(process)) != began:  # whoever started those has ended
                shutil.rmtree(other, ignore_errors=True)
        told.mkdir(exist_ok=True)
        mark = told / name
        if mark.exists() and float(mark.read_text() or 0) > int(_began(os.getpid())) / os.sysconf("SC_CLK_TCK"):
            return False  # by one that was there together with this process, and not by an earlier run
        mark.write_text(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}")
    return True


def _began(process: int) -> str:
    """When a process was started, in the kernel's ticks; a number may be had by another later."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""
