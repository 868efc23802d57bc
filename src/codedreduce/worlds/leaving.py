"""Leaving on purpose: SIGTERM asks a process of a run to hand over and go, as spot machines do before they are taken.

Workers of a tree go after their round, ranks when others do their part; the run goes on, and they end with code 0. Who
alone has the state, the root of a tree or the only rank, ends with 143, after a checkpoint if there is a folder for
them. Whoever is not through after some seconds is ended, and a second SIGTERM ends at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from codedreduce.worlds.telling import What, Word, tell

#: The exit code of a process that was told to end, and did.
TOLD_TO_END = 128 + signal.SIGTERM


class Leaving(SystemExit):
    """Ends this process, which was told to leave."""


class Asked:
    """Whether this process was told to leave; `leave` is then called, in another thread.

    Until `is_in` is set there is nothing to hand over, and the process ends where it is.
    """

    def __init__(self, grace: float, leave: Callable[[], None]) -> None:
        self._grace = grace
        self._leave = leave
        self.is_in = False
        self.to_leave = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear SIGTERM for a while, if this is the thread that can and nobody else does."""
        is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        hears = is_free and threading.current_thread() is threading.main_thread()
        if hears:
            signal.signal(signal.SIGTERM, self._hear)
        try:
            yield
        finally:
            if hears:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._leave = _nothing  # whoever is asked has this, and would be kept by it

    def _hear(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the next one ends it
        self.to_leave = True
        if not self.is_in:
            raise Leaving(TOLD_TO_END)
        threading.Thread(target=self._hand_over, daemon=True).start()  # what it does needs locks

    def _hand_over(self) -> None:
        self._leave()
        time.sleep(self._grace)
        os._exit(TOLD_TO_END)


def _nothing() -> None:
    pass


def say_farewell(rank: int) -> None:
    """Let the launcher know, if there is one, that this process leaves and the run goes on."""
    tell(Word(rank, What.LEAVES))
