"""Leaving on purpose: SIGTERM asks a process of a run to hand over and go, as spot machines do before they are taken.

SIGHUP, of a terminal or an ssh session that is gone, asks the same, unless it is ignored, as under nohup. Under Slurm
SIGUSR1 does, too: it is what jobs are usually sent ahead of their limit (`--signal=USR1@120`).

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
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from codedreduce.process.telling import What, Word, tell

#: The signals that tell a process, or a launcher, to end.
TOLD_BY = (signal.SIGTERM, signal.SIGHUP)

#: The exit code of a process that was told to end, and did.
TOLD_TO_END = 128 + signal.SIGTERM


def signals_to_leave(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """By which signals a process is told to leave.

    >>> [one.name for one in signals_to_leave({"SLURM_JOB_ID": "7"})]
    ['SIGTERM', 'SIGHUP', 'SIGUSR1']
    """
    return (*TOLD_BY, signal.SIGUSR1) if "SLURM_JOB_ID" in environment else TOLD_BY


class Terminated(SystemExit):
    """Ends this process, which was told to leave."""


class Asked:
    """Whether this process was told to leave; `leave` is then called, in another thread.

    Until `is_in` is set there is nothing to hand over, and the process ends where it is.
    """

    def __init__(self, grace: float, leave: Callable[[], None]) -> None:
        self._grace = grace
        self._leave = leave
        self._hears: list[signal.Signals] = []
        self.is_in = False
        self.to_leave = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the signals for a while, if this is the thread that can, those that nobody else hears."""
        can_hear = threading.current_thread() is threading.main_thread()
        free = [one for one in signals_to_leave(os.environ) if signal.getsignal(one) is signal.SIG_DFL]
        self._hears = free if can_hear else []
        for one in self._hears:
            signal.signal(one, self._hear)
        try:
            yield
        finally:
            for one in self._hears:
                signal.signal(one, signal.SIG_DFL)
            self._leave = _nothing  # whoever is asked has this, and would be kept by it

    def _hear(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends it
        if self.to_leave:  # by another signal: Slurm sends SIGTERM at the limit, some time after SIGUSR1
            return
        self.to_leave = True
        if not self.is_in:
            raise Terminated(TOLD_TO_END)
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
