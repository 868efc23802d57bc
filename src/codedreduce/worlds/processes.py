"""Processes of this machine that belong to one run: started, watched, and ended however the run ends."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess

from threadpoolctl import threadpool_limits

from codedreduce.errors import UsageError, WorkerFailed

#: Moves the calling process to its place, given its number.
Place = Callable[[int], None]

#: Tells a command the pipe in which it says its number when it leaves on purpose, though the run goes on.
FAREWELLS = "CODEDREDUCE_FAREWELLS"


class Processes:
    """The processes of a run by number: functions forked from this process, or commands."""

    def __init__(self, run: str, place: Place | None = None) -> None:
        self.run = run
        self._place = place
        self._forked: dict[int, BaseProcess] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._seen_end: set[int] = set()
        self._words, self._words_end = os.pipe()  # what forked processes raised
        self._farewells, self._farewells_end = os.pipe()  # which commands leave on purpose before the run is over
        os.set_blocking(self._farewells, False)
        self._unread = b""

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each."""
        forked = {number: process.pid or -1 for number, process in self._forked.items()}
        return forked | {number: process.pid for number, process in self._spawned.items()}

    def fork(self, number: int, function: Callable[[], object]) -> None:
        """Call a function in a process forked from this one, which has everything loaded."""
        sys.stdout.flush()
        sys.stderr.flush()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self._live, args=(number, function), daemon=True)
        process.start()
        self._forked[number] = process

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Run a command; what it prints comes through its pipe. Again, if the one of that number has ended."""
        parent = os.getpid()

        def begin() -> None:
            die_with_parent(parent)
            if self._place is not None:
                self._place(number)

        try:
            process = subprocess.Popen(
                command, env={**environment, FAREWELLS: str(self._farewells_end)}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=begin,
                pass_fds=[self._farewells_end],
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"cannot start {command[0]!r}: {error.strerror}") from None
        self._spawned[number] = process
        self._seen_end.discard(number)
        return process

    def who_left(self) -> set[int]:
        """Which commands have said, since last asked, that they leave though the run goes on."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._farewells, 4096):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        return {int(line) for line in lines if line.isdigit()}

    def _live(self, number: int, function: Callable[[], object]) -> None:
        """What a forked process does: live, and leave no trace but its last words."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when it is over
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        sys.setswitchinterval(0.0005)  # the thread that talks must not wait for the one that computes
        try:
            if self._place is not None:
                self._place(number)
            with threadpool_limits(1):  # one core a worker, or all of them fight for all
                function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".replace("\n", " ")
            os.write(self._words_end, f"{number}\t{text}\n".encode()[:4096])
            os._exit(1)
        os._exit(0)

    def raise_what_was_raised(self) -> None:
        """Raise if a forked process did."""
        if select.select([self._words], [], [], 0)[0]:
            who, _, message = os.read(self._words, 4096).decode(errors="replace").partition("\t")
            raise WorkerFailed(int(who), message.strip().partition("\n")[0])

    def newly_ended(self) -> list[tuple[int, int]]:
        """Who has ended since last asked, with the exit code; negative: the signal that killed it."""
        codes = [(number, process.exitcode) for number, process in self._forked.items()]
        codes += [(number, process.poll()) for number, process in self._spawned.items()]
        found = [(number, code) for number, code in codes if code is not None and number not in self._seen_end]
        self._seen_end.update(number for number, _ in found)
        return found

    def end(self, grace: float) -> None:
        """Give all so many seconds to leave, end those that have not."""
        deadline = time.monotonic() + grace
        for process in self._forked.values():
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        for process in self._forked.values():
            process.join()
            process.close()
        for command in self._spawned.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(timeout=max(0.0, deadline - time.monotonic()))
            if command.poll() is None:
                command.kill()
            command.wait()
        self._forked.clear()
        self._spawned.clear()
        if self._words >= 0:
            os.close(self._words)
            os.close(self._words_end)
            os.close(self._farewells)
            os.close(self._farewells_end)
            self._words = -1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to end this process when the one that started it ends, and end if it has ended already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def is_stopped(process: int) -> bool:
    """Whether a process is paused: it cannot end by itself."""
    return state_of(process) in ("T", "t")


def state_of(process: int) -> str:
    """What the kernel says that a process does, as a letter; nothing if there is none."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
