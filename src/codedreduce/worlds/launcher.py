"""Starts a script once for each process of a run, and looks after them until the first is done."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from subprocess import Popen

from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.worlds.addresses import free_port
from codedreduce.worlds.processes import Processes
from codedreduce.worlds.site import Site, meeting_at

#: Seconds that workers have to leave after the root has ended, and that the last words of a failed one may take.
GRACE = 5.0
LAST_WORDS = 0.2

#: Told (which rank, a line it printed).
Say = Callable[[int, str], None]


def launch(
    command: Sequence[str],
    count: int,
    variables: Mapping[str, str],
    *,
    port: int = 0,
    site: Site | None = None,
    say: Say,
) -> None:
    """Run a command in so many processes; `say(rank, line)` gets what they print. An error says who failed.

    All on this machine, or each on its node of a site.
    """
    if count < 1:
        raise UsageError(f"a run needs at least one process, got {count}")
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    host, port = ("127.0.0.1", port or free_port()) if site is None else (site.host, port or meeting_at(site).port)
    shared = {
        "OMP_NUM_THREADS": "1", **os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": host,
        "MASTER_PORT": str(port), "CODEDREDUCE_RUN": run, "PYTHONUNBUFFERED": "1", **variables,
    }  # fmt: skip
    processes = Processes(run, site.enter if site is not None else None)
    try:
        output = _Output(say)
        for rank in range(count):
            output.add(rank, processes.spawn(rank, command, {**shared, "RANK": str(rank)}))
        _look_after(processes, output)
    finally:
        processes.end(0.0)


class _Output:
    """What the processes print, line by line."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, Popen[bytes]] = {}
        self._pending: dict[int, bytes] = {}

    def add(self, rank: int, process: Popen[bytes]) -> None:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        self._processes[rank] = process
        self._pending[rank] = b""

    @property
    def root(self) -> Popen[bytes]:
        return self._processes[0]

    def say(self, rank: int, line: str) -> None:
        self._say(rank, line)

    def pass_on(self, timeout: float) -> None:
        """Pass on what is printed within that time."""
        for key, _ in self._selector.select(timeout=timeout):
            self._read(key.data)

    def pass_on_rest(self) -> None:
        for rank in self._processes:
            self._read(rank)

    def _read(self, rank: int) -> None:
        stdout = self._processes[rank].stdout
        assert stdout is not None
        if stdout not in self._selector.get_map():
            return
        data = stdout.read()
        if data:
            *lines, self._pending[rank] = (self._pending[rank] + data).split(b"\n")
            for line in lines:
                self.say(rank, line.decode(errors="replace"))
        elif data == b"":  # it has ended, or closed it
            self._selector.unregister(stdout)
            if self._pending[rank]:
                self.say(rank, self._pending.pop(rank).decode(errors="replace"))


def _look_after(processes: Processes, output: _Output) -> None:
    deadline: float | None = None
    interrupts = 0
    ended: set[int] = set()
    while deadline is None or (len(ended) < len(processes.pids) and time.monotonic() < deadline):
        try:
            output.pass_on(timeout=0.1)
            if output.root.poll() is not None and deadline is None:
                deadline = time.monotonic() + GRACE
            for rank, code in processes.newly_ended():
                ended.add(rank)
                if rank and deadline is None:
                    _judge_end(rank, code, output)
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                raise CodedReduceError("interrupted") from None
            output.root.send_signal(signal.SIGINT)
    output.pass_on_rest()
    code = output.root.returncode
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise CodedReduceError(f"rank 0 {how}; its last words are above")


def _judge_end(rank: int, code: int, output: _Output) -> None:
    """A worker that failed ends the run; one that was killed is late for ever, which is what coding is for."""
    if code > 0:
        output.pass_on(timeout=LAST_WORDS)
        output.pass_on_rest()
        raise CodedReduceError(f"rank {rank} ended with exit code {code}; its last words are above")
    if code < 0:
        output.say(rank, f"(killed by signal {-code}; the run goes on without it)")


def python_command(script: str, arguments: Sequence[str]) -> list[str]:
    """How to run a script."""
    if not os.path.isfile(script):
        raise UsageError(f"there is no script {script!r}")
    return [sys.executable, script, *arguments]
