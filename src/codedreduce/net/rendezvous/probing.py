"""Whether a process that cannot be reached is dead: nobody listens where it did, and its machine says so.

Silence proves nothing. A connection that is refused does: the machine is there, and the process is not. The proof is
looked for in a thread of its own, since a machine that is gone does not even refuse.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

#: Seconds that a machine has to answer; between two looks at first, and at most.
ANSWER_WITHIN = 1.0
LOOK_AGAIN, SELDOM = 0.05, 1.0


def is_dead(address: str) -> bool:
    """Whether nobody listens at an address of ZeroMQ's, of which the machine is there.

    >>> is_dead("ipc://@nobody-listens-here"), is_dead("ipc:///nowhere/at/all"), is_dead("tcp://127.0.0.1:1")
    (True, True, True)
    """
    kind, _, where = address.partition("://")
    try:
        if kind == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(ANSWER_WITHIN)
                probe.connect("\0" + where[1:] if where.startswith("@") else where)
        else:
            host, _, port = where.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_WITHIN).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False


class Probing:
    """Looks after those that cannot be reached until each is found, or known to be dead (`tell`)."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._lost: dict[int, threading.Event] = {}

    def begin(self, peer: int, address: str | None) -> None:
        """A neighbour is lost, which was reached, or reaches us, at this address."""
        self.end(peer)
        if address is not None:
            found = self._lost[peer] = threading.Event()
            threading.Thread(target=self._look, args=(peer, address, found), daemon=True, name="probing").start()

    def end(self, peer: int) -> None:
        """It is found, or listens elsewhere."""
        found = self._lost.pop(peer, None)
        if found is not None:
            found.set()

    def close(self) -> None:
        """Look after nobody."""
        for peer in list(self._lost):
            self.end(peer)

    def _look(self, peer: int, address: str, found: threading.Event) -> None:
        wait = LOOK_AGAIN
        while not found.wait(wait):
            if is_dead(address):
                if not found.is_set():
                    self._tell(peer)
                return
            wait = min(SELDOM, 2 * wait)
