"""Connections from others to a socket of this node while their senders are unidentified, and how to cut a connection.

ZeroMQ cannot end one connection of a socket that has several. The kernel can: the descriptor of a connection is known
from its frames or from the socket's monitor, and is shut down. ZeroMQ then does what it does for any lost connection.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Sequence

from codedreduce.net.limits import MOST_NAMELESS
from codedreduce.net.sockets import SocketEvent
from codedreduce.timing import Timing


class PendingConnections:
    """A listening socket's connections, and those of them that are still unidentified.

    `addresses` are where it listens. They are checked before a cut: a descriptor that was closed meanwhile may be
    another file of this process by now.
    """

    def __init__(self, addresses: Sequence[str], timing: Timing, most: int = MOST_NAMELESS) -> None:
        self._addresses = addresses
        self._timing = timing
        self._most = most
        self._open: set[int] = set()  # descriptors of all present connections
        self._nameless: dict[int, float] = {}  # unidentified ones by descriptor, and since when; oldest first
        self._left_over_until: dict[int, float] = {}  # of connections that were cut, by descriptor
        self._last_cut = -math.inf

    def __len__(self) -> int:
        return len(self._nameless)

    def came(self, descriptor: int) -> None:
        """A connection was made. If too many are unidentified, cut the oldest of those."""
        self._open.add(descriptor)
        self._nameless.pop(descriptor, None)
        self._nameless[descriptor] = time.monotonic()
        while len(self._nameless) > self._most:
            oldest = next(iter(self._nameless))
            self.cut(oldest)
            self._nameless.pop(oldest, None)

    def is_known(self, descriptor: int) -> None:
        """The peer of this connection has been identified."""
        self._nameless.pop(descriptor, None)

    def went(self, descriptor: int) -> None:
        """A connection is lost."""
        self._open.discard(descriptor)
        self._nameless.pop(descriptor, None)

    def follow(self, event: SocketEvent) -> None:
        """The monitor has reported this."""
        if event.has_come:
            self.came(event.descriptor)
        elif not event.is_there:
            self.went(event.descriptor)

    def has(self, descriptor: int) -> bool:
        """Whether this connection exists, as far as the monitor has reported."""
        return descriptor in self._open

    def look(self) -> None:
        """Cut connections that were unidentified for too long."""
        since = time.monotonic() - self._timing.identify_timeout
        for descriptor in [one for one, came in self._nameless.items() if came < since]:
            self.cut(descriptor)

    def cut(self, descriptor: int, left_over_for: float | None = None) -> bool:
        """End a connection to this socket. False if there is none, or if it was cut just now.

        For `left_over_for` seconds (`leftover`), a new connection with the same descriptor is not cut for frames left
        over from this one.
        """
        if self.has_cut(descriptor):
            return False
        self._nameless.pop(descriptor, None)
        is_cut = _shut(descriptor, lambda one: any(_is_at(one.getsockname(), address) for address in self._addresses))
        if is_cut:
            self._was_cut(descriptor, self._timing.leftover if left_over_for is None else left_over_for)
        return is_cut

    def cut_to(self, descriptor: int, address: str, left_over_for: float) -> bool:
        """End a connection that this side made with the same socket; whether there is one."""
        is_cut = cut_to(descriptor, address)
        if is_cut:
            self._was_cut(descriptor, left_over_for)
        return is_cut

    def _was_cut(self, descriptor: int, left_over_for: float) -> None:
        self._last_cut = time.monotonic()
        self._left_over_until[descriptor] = self._last_cut + left_over_for

    @property
    def has_cut_lately(self) -> bool:
        """Whether frames left over from some connection may still be read, under a name that ZeroMQ has generated
        since.
        """
        return time.monotonic() < self._last_cut + self._timing.leftover_report

    def has_cut(self, descriptor: int) -> bool:
        """Whether a connection with this descriptor was cut just now, so that frames of it may be left over."""
        return time.monotonic() < self._left_over_until.get(descriptor, -math.inf)


def cut_to(descriptor: int, address: str) -> bool:
    """End a connection that this node made; whether it did."""
    return _shut(descriptor, lambda one: _is_at(one.getpeername(), address))


def _shut(descriptor: int, is_meant: Callable[[socket.socket], bool]) -> bool:
    """Shut down a connection of this process, if `is_meant` accepts it."""
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
    """Whether the kernel's name for a place belongs to an address.

    >>> _is_at(("127.0.0.1", 5555), "tcp://node7:5555"), _is_at(b"\\x00run-3-data", "ipc://@run-3-data")
    (True, True)
    """
    scheme, _, rest = address.partition("://")
    if scheme == "tcp":
        return isinstance(place, tuple) and rest.rpartition(":")[2] == str(place[1])
    called = place if isinstance(place, bytes) else str(place).encode()
    return scheme == "ipc" and called.replace(b"\0", b"@").decode(errors="replace") == rest
