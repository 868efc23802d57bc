"""Whether hosts reach each other at the ports that a run needs, checked before it begins."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from codedreduce.launch.ssh.words import AgentAnswer

#: Timeout of an attempt to connect, in seconds; number of attempts at a time.
WITHIN, AT_A_TIME = 5.0, 32


class Listening:
    """Temporary listening ports of this host, for the checks of other hosts."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def at(self, port: int) -> AgentAnswer:
        """Listen at one more port; 0: any free port."""
        try:
            server = self._stack.enter_context(socket.create_server(("", port), backlog=128))
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            return AgentAnswer(refused=f"cannot listen at port {port}: {why}; choose another with --port")
        return AgentAnswer(port=int(server.getsockname()[1]))

    def close(self) -> None:
        """Stop listening at all ports."""
        self._stack.close()


def unreached(places: Sequence[tuple[str, int]]) -> tuple[tuple[str, int, str], ...]:
    """The addresses and ports that cannot be reached, with the reason."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        why = pool.map(_knock, places)
        return tuple((address, port, reason) for (address, port), reason in zip(places, why, strict=True) if reason)


def _knock(place: tuple[str, int]) -> str:
    try:
        socket.create_connection(place, timeout=WITHIN).close()
    except TimeoutError:
        return f"no answer within {WITHIN:g} s"
    except OSError as error:
        return os.strerror(error.errno or 0).lower()
    return ""
