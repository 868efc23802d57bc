"""What an actor does: it runs one rank's command on its node, passes on what that prints and tells, and ends with it.

The kernel ends the command when the actor ends, and Ray ends the actor when its raylet or the driver does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

import ray

from codedreduce.process.addresses import free_port
from codedreduce.process.processes import Processes
from codedreduce.process.telling import Word

#: Seconds that a look takes if nothing happens, and in which what a rank tells is gathered; what it prints is passed on
#: at once, so many bytes at a time.
LOOK, GATHER, AT_ONCE = 5.0, 0.3, 1 << 18

#: Variables that Ray has for its own workers, which a rank's process is none of.
RAYS_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID")

#: The name of a rank's command that stands for the interpreter.
PYTHON = "python"


class About(NamedTuple):
    """What is to be known of an actor before its rank is started: where it is, and with what."""

    node: str
    address: str
    port: int
    gpus: tuple[str, ...]
    versions: dict[str, str]


class Brought(NamedTuple):
    """What ranks are started with beside their command: from where, and for a function, with what and found where."""

    folder: str
    path: tuple[str, ...] = ()


class Report(NamedTuple):
    """What has happened to a rank since the last one; `at` counts what it has printed so far."""

    at: int
    printed: bytes
    told: list[Word]
    is_stopped: bool
    code: int | None = None
    returned: bytes | None = None


def versions() -> dict[str, str]:
    """Of what all nodes must have alike."""
    own = str(sys.modules["codedreduce"].__version__)  # the package that this file is in, whichever that is
    return {"codedreduce": own, "ray": ray.__version__, "Python": platform.python_version().rpartition(".")[0]}


class RankActor:
    """One rank's place on a node."""

    def __init__(self) -> None:
        self._processes = Processes()
        self._printed: IO[bytes] | None = None
        self._held = b""  # printed, and not known to have arrived
        self._at = 0
        self._told: list[Word] = []
        self._ended: int | None = None
        self._is_silent = False  # it has closed what it printed to
        self._memory: list[int] = []  # files without a name: what is given, and what is returned
        self._one_at_a_time = asyncio.Lock()

    async def about(self) -> About:
        """Where this is."""
        return About(
            node=ray.get_runtime_context().get_node_id(), address=ray.util.get_node_ip_address(), port=free_port(),
            gpus=tuple(str(one) for one in ray.get_gpu_ids()), versions=versions(),
        )  # fmt: skip

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], brought: Brought, given: bytes | None
    ) -> str:
        """Run a command; why that cannot be, if it cannot. A function that is given lies in this process's memory."""
        self._held, self._at, self._told, self._ended, self._is_silent = b"", 0, [], None, False
        if os.path.isdir(brought.folder):  # else where Ray has put what it was told to bring along
            os.chdir(brought.folder)
        if len(command) > 1 and command[1].endswith(".py") and not os.path.exists(command[1]):
            return f"there is no script {command[1]!r}, seen from {os.getcwd()}"
        self._forget_memory()
        words = [sys.executable if word == PYTHON else word for word in command[:1]] + list(command[1:])
        if given is not None:
            self._memory = [os.memfd_create(name) for name in ("given", "returned")]
            with open(self._memory[0], "wb", closefd=False) as file:
                file.write(given)
            words += [f"/proc/{os.getpid()}/fd/{one}" for one in self._memory]
        own = {name: value for name, value in os.environ.items() if name not in RAYS_OWN}
        self._printed = self._processes.spawn(0, words, {**own, "PYTHONPATH": _path(brought.path), **environment})
        os.set_blocking(self._printed.fileno(), False)
        return ""

    async def look(self, seen: int) -> Report:
        """What has happened since the driver had seen so much of what was printed; soon, or when something has."""
        async with self._one_at_a_time:
            self._held = self._held[len(self._held) - (self._at - seen) :] if self._at > seen else b""
            self._take()
            if not self._has_news():
                await self._until_something_happens()
                self._take()
                if self._told and not self._held and self._ended is None:
                    await asyncio.sleep(GATHER)
                    self._take()
            told, self._told = self._told, []
            is_over = self._ended is not None and not self._read()
            stopped = self._ended is None and self._processes.is_stopped(0)
            report = Report(self._at, self._held, told, stopped)
            return report._replace(code=self._ended, returned=self._returned()) if is_over else report

    async def signal(self, what: int) -> None:
        """Send it to the rank's process."""
        self._processes.signal(0, what)

    async def end(self, grace: float) -> None:
        """End it, and leave nothing."""
        self._processes.end(grace)
        self._forget_memory()

    def _has_news(self) -> bool:
        return bool(self._held or self._told or self._ended is not None)

    def _take(self) -> None:
        """Whatever there is by now; ends are looked for first, so that nothing is printed after it."""
        for _, code in self._processes.newly_ended():
            self._ended = code
        self._told += self._processes.take_told()
        if len(self._held) < AT_ONCE:
            self._read()

    def _read(self) -> bytes:
        assert self._printed is not None
        data = self._printed.read(AT_ONCE)
        self._is_silent |= data == b""
        self._held += data or b""
        self._at += len(data or b"")
        return data or b""

    async def _until_something_happens(self) -> None:
        assert self._printed is not None
        loop, happened = asyncio.get_running_loop(), asyncio.Event()
        ends = os.pidfd_open(self._processes.pids[0])
        files = [self._processes.told_at, ends, *([] if self._is_silent else [self._printed.fileno()])]
        for file in files:
            loop.add_reader(file, happened.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(happened.wait(), LOOK)
        finally:
            for file in files:
                loop.remove_reader(file)
            os.close(ends)

    def _returned(self) -> bytes | None:
        """What the function has returned, if this is where that is kept."""
        if not self._memory or self._ended != 0:
            return None
        with open(f"/proc/self/fd/{self._memory[1]}", "rb") as file:
            return file.read() or None

    def _forget_memory(self) -> None:
        for one in self._memory:
            os.close(one)
        self._memory = []


def _path(brought: tuple[str, ...]) -> str:
    """Where this process finds modules, as Ray has arranged it, less what is Ray's own; then where the driver does."""
    rays = os.path.dirname(ray.__file__)
    own = [one for one in sys.path if one and not one.startswith(rays)]
    return os.pathsep.join(dict.fromkeys([*own, *(one for one in brought if os.path.isdir(one))]))
