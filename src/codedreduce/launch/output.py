"""The output of the processes of a run, passed on as it arrives."""

from __future__ import annotations

import os
import selectors
from typing import IO

from codedreduce.launch.showing import Show


class Output:
    """Reads the pipes of all processes."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self._selector = selectors.DefaultSelector()
        self._printed: dict[int, IO[bytes]] = {}

    def add(self, rank: int, printed: IO[bytes]) -> None:
        """Read the output of a process; the output of an earlier process of this rank is read to its end first."""
        if rank in self._printed:
            self._read(rank)
            self._forget(rank)
        os.set_blocking(printed.fileno(), False)
        self._selector.register(printed, selectors.EVENT_READ, rank)
        self._printed[rank] = printed

    def pass_on(self, timeout: float) -> None:
        """Pass on the output that arrives within `timeout` seconds."""
        for key, _ in self._selector.select(timeout=timeout):
            self._read(key.data)

    def pass_on_rest(self) -> None:
        """Pass on all output that has arrived."""
        for rank in list(self._printed):
            self._read(rank)

    def close(self) -> None:
        """Close all pipes."""
        for rank in list(self._printed):
            self._forget(rank)
        self._selector.close()
        self.show.close()

    def _forget(self, rank: int) -> None:
        """Close the pipe of a process, though its own children may still print to it."""
        printed = self._printed.pop(rank)
        if printed in self._selector.get_map():
            self._selector.unregister(printed)
            self.show.ended(rank)
        printed.close()

    def _read(self, rank: int) -> None:
        printed = self._printed[rank]
        if printed not in self._selector.get_map():
            return
        data = printed.read()
        if data:
            self.show.took(rank, data)
        elif data == b"":  # the process has ended, or has closed its output
            self._selector.unregister(printed)
            self.show.ended(rank)
