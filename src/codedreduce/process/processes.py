"""Commands on this host that belong to one run: started, watched, and ended however the run ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from codedreduce.errors import UsageError
from codedreduce.process.telling import PIPE, ReportPipe, Word

#: Moves the calling process to its place, given its number.
Place = Callable[[int], None]


class Processes:
    """The processes of a run, by number."""

    def __init__(self, place: Place | None = None) -> None:
        self._place = place
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._seen_end: set[int] = set()
        self.told = ReportPipe()  # reports of commands, apart from their output

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each number."""
        return {number: process.pid for number, process in self._spawned.items()}

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> IO[bytes]:
        """Run a command and return its output; a number can be started again once its process has ended."""
        parent = os.getpid()

        def begin() -> None:
            die_with_parent(parent)
            if self._place is not None:
                self._place(number)

        try:
            process = subprocess.Popen(
                command, env={**environment, PIPE: str(self.told.writes)}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=begin,
                pass_fds=[self.told.writes],
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"cannot start {command[0]!r}: {error.strerror}") from None
        self._spawned[number] = process
        self._seen_end.discard(number)
        assert process.stdout is not None
        return process.stdout

    def signal(self, number: int, what: int) -> None:
        """Send a signal to a process, if it exists."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._spawned[number].pid, what)

    def is_stopped(self, number: int) -> bool:
        """Whether a process is paused, so that it cannot end by itself."""
        return is_stopped(self._spawned[number].pid)

    def is_waiting(self, number: int) -> bool:
        """Whether a process does not exist yet: never, since it exists once it was started."""
        return False

    def take_told(self) -> list[Word]:
        """Reports of commands since the last call."""
        return self.told.take()

    def newly_ended(self) -> list[tuple[int, int]]:
        """Processes that have ended since the last call, with exit codes; negative: the signal that killed it."""
        codes = [(number, process.poll()) for number, process in self._spawned.items()]
        found = [(number, code) for number, code in codes if code is not None and number not in self._seen_end]
        self._seen_end.update(number for number, _ in found)
        return found

    def end(self, grace: float) -> None:
        """Give all processes `grace` seconds to end, then kill the rest."""
        deadline = time.monotonic() + grace
        for command in self._spawned.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(timeout=max(0.0, deadline - time.monotonic()))
            if command.poll() is None:
                command.kill()
            command.wait()
        self._spawned.clear()
        self.told.close()


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends; exit if the parent has ended already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def is_stopped(process: int) -> bool:
    """Whether a process is paused, so that it cannot end by itself."""
    return state_of(process) in ("T", "t")


def state_of(process: int) -> str:
    """The state letter of a process in the kernel; "" if there is no such process."""
    return stat_of(process)[0]


def stat_of(process: int | str) -> list[str]:
    """The numbers that the kernel has of a process, from its state on; empty texts if there is no such process."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return [""] * 50
