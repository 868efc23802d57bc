"""Connections that others make to a socket of this node, until it is known whose they are, and how one is cut.

ZeroMQ has no way to end one connection of a socket that has several. The kernel has: the descriptor that a frame came
by, or that the socket's monitor told, is shut; ZeroMQ then does what it does whenever a connection is lost.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Sequence

from codedreduce.net.limits import MOST_NAMELESS, NAMED_WITHIN

#: Seconds after a connection was cut in which what is left of it may be read, though another may be where it was.
LEFT_OVER_FOR = 0.1

#: Seconds in which nobody is told of what may be left over, however busy the machine is.
NAMELESS_LEFT_OVER_FOR = 5.0


class PendingConnections:
    """Where others come in: a socket that listens, and who has come by it and not said who it is.

    `addresses` are where it listens, which is looked at before anything is cut: a descriptor that was closed meanwhile
    may be another file of this process by now.
    """

    def __init__(
        self, addresses: Sequence[str], most: int = MOST_NAMELESS, within: float = NAMED_WITHIN
    ) -> None:  # fmt: skip
        self._addresses = addresses
        self._most = most
        self._within = within
        self._open: set[int] = set()  # descriptors of all that have come and not gone
        self._nameless: dict[int, float] = {}  # of those by descriptor, since when; the oldest first
        self._left_over_until: dict[int, float] = {}  # by descriptor, of those that were cut
        self._last_cut = -math.inf

    def __len__(self) -> int:
        return len(self._nameless)

    def came(self, descriptor: int) -> None:
        """A connection was made; if there are too many of which nothing is known, the oldest of those goes."""
        self._open.add(descriptor)
        self._nameless.pop(descriptor, None)
        self._nameless[descriptor] = time.monotonic()
        while len(self._nameless) > self._most:
            oldest = next(iter(self._nameless))
            self.cut(oldest)
            self._nameless.pop(oldest, None)

    def is_known(self, descriptor: int) -> None:
        """It is known whose connection this is."""
        self._nameless.pop(descriptor, None)

    def went(self, descriptor: int) -> None:
        """A connection is gone."""
        self._open.discard(descriptor)
        self._nameless.pop(descriptor, None)

    def has(self, descriptor: int) -> bool:
        """Whether there is such a connection, as far as was told."""
        return descriptor in self._open

    def look(self) -> None:
        """Cut those who have had time enough to say who they are."""
        since = time.monotonic() - self._within
        for descriptor in [one for one, came in self._nameless.items() if came < since]:
            self.cut(descriptor)

    def cut(self, descriptor: int, left_over_for: float = LEFT_OVER_FOR) -> bool:
        """End a connection to this door; whether there is one, and it was not cut just now.

        For so many seconds another that is the same to the kernel is not cut for what is left over of it.
        """
        if self.has_cut(descriptor):
            return False
        self._nameless.pop(descriptor, None)
        is_cut = _shut(descriptor, lambda one: any(_is_at(one.getsockname(), address) for address in self._addresses))
        if is_cut:
            self._was_cut(descriptor, left_over_for)
        return is_cut

    def cut_to(self, descriptor: int, address: str, left_over_for: float = LEFT_OVER_FOR) -> bool:
        """End a connection that this side has made by the same socket; whether there is one."""
        is_cut = cut_to(descriptor, address)
        if is_cut:
            self._was_cut(descriptor, left_over_for)
        return is_cut

    def _was_cut(self, descriptor: int, left_over_for: float) -> None:
        self._last_cut = time.monotonic()
        self._left_over_until[descriptor] = self._last_cut + left_over_for

    @property
    def has_cut_lately(self) -> bool:
        """Whether what is left of some connection may still be read, under a name that ZeroMQ has given it since."""
        return time.monotonic() < self._last_cut + NAMELESS_LEFT_OVER_FOR

    def has_cut(self, descriptor: int) -> bool:
        """Whether a connection that was the same to the kernel was cut just now: something of it may be left over."""
        return time.monotonic() < self._left_over_until.get(descriptor, -math.inf)


def cut_to(descriptor: int, address: str) -> bool:
    """End a connection that this node has made; whether it has."""
    return _shut(descriptor, lambda one: _is_at(one.getpeername(), address))


def _shut(descriptor: int, is_meant: Callable[[socket.socket], bool]) -> bool:
    """Shut a connection of this process's, if it is the one that is meant."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return False
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # another file by now
        os.close(copy)
        return False
    with contextlib.closing(connection), contextlib.suppress(OSError):
        if is_meant(connection):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _is_at(place: object, address: str) -> bool:
    """Whether the kernel's name for a place is that of an address.

    >>> _is_at(("127.0.0.1", 5555), "tcp://node7:5555"), _is_at(b"\\x00run-3-data", "ipc://@run-3-data")
    (True, True)
    """
    scheme, _, rest = address.partition("://")
    if scheme == "tcp":
        return isinstance(place, tuple) and rest.rpartition(":")[2] == str(place[1])
    called = place if isinstance(place, bytes) else str(place).encode()
    return scheme == "ipc" and called.replace(b"\0", b"@").decode(errors="replace") == rest
