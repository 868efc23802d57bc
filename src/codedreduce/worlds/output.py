"""What the processes of a run print, as it comes."""

from __future__ import annotations

import os
import selectors
from subprocess import Popen

from codedreduce.worlds.showing import Show


class Output:
    """Reads the pipes of all processes."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, Popen[bytes]] = {}

    def add(self, rank: int, process: Popen[bytes]) -> None:
        """Read what a process prints; one that had this rank before has been read to its end."""
        assert process.stdout is not None
        if rank in self._processes:
            self._read(rank)
            self._forget(rank)
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        self._processes[rank] = process

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
        self.show.close()

    def _forget(self, rank: int) -> None:
        """Of a process that others it started may still print for."""
        stdout = self._processes.pop(rank).stdout
        assert stdout is not None
        if stdout in self._selector.get_map():
            self._selector.unregister(stdout)
            self.show.ended(rank)
        stdout.close()

    def _read(self, rank: int) -> None:
        stdout = self._processes[rank].stdout
        assert stdout is not None
        if stdout not in self._selector.get_map():
            return
        data = stdout.read()
        if data:
            self.show.took(rank, data)
        elif data == b"":  # it has ended, or closed it
            self._selector.unregister(stdout)
            self.show.ended(rank)
