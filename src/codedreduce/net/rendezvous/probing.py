"""Detects that an unreachable process has ended: its host answers, and nothing listens at the process's address.

Silence proves nothing. A refused connection does: the host is up, and the process is not. A thread looks for this
proof, since a host that is down does not even refuse.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from codedreduce.timing import Timing


def is_dead(address: str, within: float) -> bool:
    """Whether nothing listens at this ZeroMQ address, although its host is up: it answers within so many seconds.

    >>> [is_dead(at, 1.0) for at in ("ipc://@nobody-listens-here", "ipc:///nowhere/at/all", "tcp://127.0.0.1:1")]
    [True, True, True]
    """
    kind, _, where = address.partition("://")
    try:
        if kind == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(within)
                probe.connect("\0" + where[1:] if where.startswith("@") else where)
        else:
            host, _, port = where.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=within).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False


class Probing:
    """Probes unreachable neighbours until each is reached again, or has ended (`tell`)."""

    def __init__(self, tell: Callable[[int], None], timing: Timing) -> None:
        self._tell = tell
        self._timing = timing
        self._lost: dict[int, threading.Event] = {}

    def begin(self, peer: int, address: str | None) -> None:
        """A neighbour that listened at this address is lost; None: there is no address to probe."""
        self.end(peer)
        if address is not None:
            found = self._lost[peer] = threading.Event()
            threading.Thread(target=self._look, args=(peer, address, found), daemon=True, name="probing").start()

    def end(self, peer: int) -> None:
        """The neighbour is reached again, or listens elsewhere."""
        found = self._lost.pop(peer, None)
        if found is not None:
            found.set()

    def close(self) -> None:
        """End all probes."""
        for peer in list(self._lost):
            self.end(peer)

    def _look(self, peer: int, address: str, found: threading.Event) -> None:
        wait = self._timing.probe_retry
        while not found.wait(wait):
            if is_dead(address, self._timing.probe_timeout):
                if not found.is_set():
                    self._tell(peer)
                return
            wait = min(self._timing.probe_retry_limit, 2 * wait)
