"""The code of an actor: it runs one rank's command on its node, forwards its output and reports, and ends with it.

The kernel ends the command when the actor ends. Ray ends the actor when its raylet or the driver ends.
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

#: Timeout in seconds of a `look` without events; seconds in which a rank's reports are collected; and the limit on the
#: bytes of output in one report. Output is forwarded at once.
LOOK, GATHER, AT_ONCE = 5.0, 0.3, 1 << 18

#: Variables that Ray sets for its own workers; they are removed for a rank's process.
RAYS_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID")

#: The first word of a command that stands for the actor's interpreter.
PYTHON = "python"


class About(NamedTuple):
    """The place, GPUs and versions of an actor, before its rank is started."""

    node: str
    address: str
    port: int
    gpus: tuple[str, ...]
    versions: dict[str, str]


class Brought(NamedTuple):
    """The driver's working directory and, for a function, its module search path: ranks start with both."""

    folder: str
    path: tuple[str, ...] = ()


class Report(NamedTuple):
    """The events of a rank since the last report; `at` is the number of bytes that it has printed in all."""

    at: int
    printed: bytes
    told: list[Word]
    is_stopped: bool
    code: int | None = None
    returned: bytes | None = None


def versions() -> dict[str, str]:
    """The versions that must be equal on all nodes."""
    own = str(sys.modules["codedreduce"].__version__)  # of the package that contains this file
    return {"codedreduce": own, "ray": ray.__version__, "Python": platform.python_version().rpartition(".")[0]}


class RankActor:
    """One rank's place on a node."""

    def __init__(self) -> None:
        self._processes = Processes()
        self._printed: IO[bytes] | None = None
        self._held = b""  # output that the driver has not acknowledged
        self._at = 0
        self._told: list[Word] = []
        self._ended: int | None = None
        self._is_silent = False  # the rank has closed its output
        self._memory: list[int] = []  # anonymous files: the given function, and its return value
        self._one_at_a_time = asyncio.Lock()

    async def about(self) -> About:
        """The place of this actor, its GPUs and versions."""
        return About(
            node=ray.get_runtime_context().get_node_id(), address=ray.util.get_node_ip_address(), port=free_port(),
            gpus=tuple(str(one) for one in ray.get_gpu_ids()), versions=versions(),
        )  # fmt: skip

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], brought: Brought, given: bytes | None
    ) -> str:
        """Run a command; return why it cannot be run, or "". A given function is stored in this process's memory."""
        self._held, self._at, self._told, self._ended, self._is_silent = b"", 0, [], None, False
        if os.path.isdir(brought.folder):  # else stay in Ray's working directory
            os.chdir(brought.folder)
        if len(command) > 1 and command[1].endswith(".py") and not os.path.exists(command[1]):
            return f"there is no script {command[1]!r} in {os.getcwd()}"
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
        """Report events since the driver had seen `seen` bytes of output; wait up to `LOOK` seconds for one."""
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
        """Send the rank's process a signal."""
        self._processes.signal(0, what)

    async def end(self, grace: float) -> None:
        """End the rank's process after a grace period, and free the memory."""
        self._processes.end(grace)
        self._forget_memory()

    def _has_news(self) -> bool:
        return bool(self._held or self._told or self._ended is not None)

    def _take(self) -> None:
        """Collect events. The end of the process is checked first, so that no output can follow it."""
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
        files = [self._processes.told.reads, ends, *([] if self._is_silent else [self._printed.fileno()])]
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
        """The return value of the function, if this rank has one."""
        if not self._memory or self._ended != 0:
            return None
        with open(f"/proc/self/fd/{self._memory[1]}", "rb") as file:
            return file.read() or None

    def _forget_memory(self) -> None:
        for one in self._memory:
            os.close(one)
        self._memory = []


def _path(brought: tuple[str, ...]) -> str:
    """The module search path of this process, set by Ray, without Ray's own folders; then that of the driver."""
    rays = os.path.dirname(ray.__file__)
    own = [one for one in sys.path if one and not one.startswith(rays)]
    return os.pathsep.join(dict.fromkeys([*own, *(one for one in brought if os.path.isdir(one))]))
