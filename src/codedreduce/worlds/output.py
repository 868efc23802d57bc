"""What the processes of a run print, line by line, as it comes."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from subprocess import Popen

#: Told (which rank, a line it printed).
Say = Callable[[int, str], None]


class Output:
    """Reads the pipes of all processes."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, Popen[bytes]] = {}
        self._pending: dict[int, bytes] = {}

    def add(self, rank: int, process: Popen[bytes]) -> None:
        """Read what a process prints; one that had this rank before has been read to its end."""
        assert process.stdout is not None
        if rank in self._processes:
            self._read(rank)
            self._forget(rank)
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        self._processes[rank] = process
        self._pending[rank] = b""

    def pass_on(self, timeout: float) -> None:
        """Pass on what is printed within that time."""
        for key, _ in self._selector.select(timeout=timeout):
            self._read(key.data)

    def pass_on_rest(self) -> None:
        """Pass on what is there."""
        for rank in list(self._processes):
            self._read(rank)

    def close(self) -> None:
        """Let go of all pipes."""
        for rank in list(self._processes):
            self._forget(rank)
        self._selector.close()

    def _forget(self, rank: int) -> None:
        """Of a process that others it started may still print for."""
        stdout = self._processes.pop(rank).stdout
        assert stdout is not None
        if stdout in self._selector.get_map():
            self._selector.unregister(stdout)
            self._flush(rank)
        stdout.close()

    def _flush(self, rank: int) -> None:
        if self._pending[rank]:
            self.say(rank, self._pending[rank].decode(errors="replace"))
            self._pending[rank] = b""

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
            self._flush(rank)
