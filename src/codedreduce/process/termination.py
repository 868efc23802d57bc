"""Leaving on request: SIGTERM asks a process of a run to hand over and leave, as clouds do before they reclaim a host.

SIGHUP, after the end of a terminal or an ssh session, asks the same, unless it is ignored, as under nohup. Under Slurm
SIGUSR1 does, too: jobs usually get it ahead of their time limit (`--signal=USR1@120`).

Workers of a tree leave after their round, ranks after others have taken over their work. The run continues, and they
end with code 0. The only process with the state, the root of a tree or the only rank, ends with 143, after a checkpoint
if there is a folder for them. After a grace period a process is ended, and a second SIGTERM ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

#: The signals that ask a process, or a launcher, to end.
TOLD_BY = (signal.SIGTERM, signal.SIGHUP)

#: The exit code of a process that has ended on request.
TOLD_TO_END = 128 + signal.SIGTERM


def signals_to_leave(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """The signals that ask a process to leave.

    >>> [one.name for one in signals_to_leave({"SLURM_JOB_ID": "7"})]
    ['SIGTERM', 'SIGHUP', 'SIGUSR1']
    """
    return (*TOLD_BY, signal.SIGUSR1) if "SLURM_JOB_ID" in environment else TOLD_BY


class Terminated(SystemExit):
    """Ends this process after a request to leave."""


class Asked:
    """Whether this process was asked to leave; it then calls `leave` in another thread.

    Until `is_in` is set there is nothing to hand over, and the process ends at once.
    """

    def __init__(self, grace: float, leave: Callable[[], None]) -> None:
        self._grace = grace
        self._leave = leave
        self._hears: list[signal.Signals] = []
        self.is_in = False
        self.to_leave = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals that have no other handler, if this is the main thread."""
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
            self._leave = lambda: None  # this object may outlive `leave` and must not keep its owner

    def _hear(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends the process
        if self.to_leave:  # after another signal: Slurm sends SIGTERM at the limit, some time after SIGUSR1
            return
        self.to_leave = True
        if not self.is_in:
            raise Terminated(TOLD_TO_END)
        threading.Thread(target=self._hand_over, daemon=True).start()  # it needs locks

    def _hand_over(self) -> None:
        self._leave()
        time.sleep(self._grace)
        os._exit(TOLD_TO_END)
