"""What the processes of a run print, as it comes."""

from __future__ import annotations

import os
import selectors
from typing import IO

from codedreduce.launch.showing import Show, Unfailing


class Output:
    """Reads the pipes of all processes."""

    def __init__(self, show: Show) -> None:
        self.show = Unfailing(show)
        self._selector = selectors.DefaultSelector()
        self._printed: dict[int, IO[bytes]] = {}

    def add(self, rank: int, printed: IO[bytes]) -> None:
        """Read what a process prints; one that had this rank before has been read to its end."""
        if rank in self._printed:
            self._read(rank)
            self._forget(rank)
        os.set_blocking(printed.fileno(), False)
        self._selector.register(printed, selectors.EVENT_READ, rank)
        self._printed[rank] = printed

    def pass_on(self, timeout: float) -> None:
        """Pass on what is printed within that time."""
        for key, _ in self._selector.select(timeout=timeout):
            self._read(key.data)

    def pass_on_rest(self) -> None:
        """Pass on what is there."""
        for rank in list(self._printed):
            self._read(rank)

    def close(self) -> None:
        """Let go of all pipes."""
        for rank in list(self._printed):
            self._forget(rank)
        self._selector.close()
        self.show.close()

    def _forget(self, rank: int) -> None:
        """Of a process that others it started may still print for."""
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
        elif data == b"":  # it has ended, or closed it
            self._selector.unregister(printed)
            self.show.ended(rank)
