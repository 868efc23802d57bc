"""Errors of codedreduce that end a script are one line, once per run: what is wrong, and where in the script.

The exit code is 2 if the user can correct the error, as on the command line.

Under `codedreduce run` a process reports the error to the launcher, which prints it. Under other launchers the first
of their processes on a host prints it; files record which errors were printed. CODEDREDUCE_DEBUG=1 shows tracebacks
instead.
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
from codedreduce.process.processes import stat_of
from codedreduce.process.telling import Said, What, Word, has_launcher, own_rank, tell

#: Set to 1 it shows full tracebacks.
DEBUG = "CODEDREDUCE_DEBUG"

#: The exit code of a script that ends with an error that its user can correct.
USAGE = 2

#: Start of the message to ranks that are dismissed because of another rank's error.
BECAUSE = "the run is over: "

#: Paths of frames outside the script: this package, Python's library, code without a file.
_NOT_A_SCRIPT = (str(Path(__file__).parents[1]) + os.sep, os.path.dirname(os.__file__) + os.sep, "<")

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def speak_plainly() -> None:
    """Report uncaught errors of codedreduce as one line from now on; the previous hook gets all others."""
    if not isinstance(sys.excepthook, _Plainly):
        sys.excepthook = _Plainly(sys.excepthook)


class _Plainly:
    """Replaces the previous hook, and calls it for all other errors."""

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt) and has_launcher() and not wants_tracebacks():
            return  # the launcher reports it once for all
        if not is_plain(error):
            self._before(kind, error, trace)
            return
        say(error, place_in(trace))
        if isinstance(error, UsageError) and not hasattr(sys, "ps1"):  # only an interactive prompt has it
            sys.exit(USAGE)


def is_plain(error: BaseException) -> bool:
    """Whether its message is all a user needs: an error that codedreduce raises, except for bugs in itself."""
    is_ours = isinstance(error, CodedReduceError) and not isinstance(error, ProtocolError)
    return is_ours and not wants_tracebacks()


def wants_tracebacks() -> bool:
    """Whether the user has set CODEDREDUCE_DEBUG."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def say(error: BaseException, where: str) -> None:
    """Report an error to the launcher, or print it unless another process has printed the same."""
    text = str(error).removeprefix(BECAUSE)
    word = Word(
        own_rank(), What.ERRS, text, where, is_usage=isinstance(error, UsageError), about=getattr(error, "node", None)
    )
    if not tell(word) and _is_first_to_say(text):
        print(f"codedreduce: {text}{f' ({where})' if where else ''}", file=sys.stderr, flush=True)


def place_in(trace: TracebackType | None) -> str:
    """The line of the script from which codedreduce was called.

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
    """Whether no other process of the same launcher on this host has printed this text."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    name = hashlib.blake2b(Said.of(text).rest.encode(), digest_size=10).hexdigest()
    with contextlib.suppress(UsageError, OSError), alone_in_it() as folder:
        told = Path(folder) / f"{SAID}{os.getppid()}-{_began(os.getppid())}"
        for other in Path(folder).glob(f"{SAID}*"):
            _, process, began = other.name.split("-")
            if _began(int(process)) != began:  # the launcher of those has ended
                shutil.rmtree(other, ignore_errors=True)
        told.mkdir(exist_ok=True)
        mark = told / name
        if mark.exists() and float(mark.read_text() or 0) > int(_began(os.getpid())) / os.sysconf("SC_CLK_TCK"):
            return False  # by a process that ran at the same time, and not by an earlier run
        mark.write_text(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}")
    return True


def _began(process: int) -> str:
    """Start time of a process in the kernel's ticks, since the kernel may reuse its number."""
    return stat_of(process)[19]
