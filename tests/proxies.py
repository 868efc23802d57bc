"""Somebody on the network between two nodes: a proxy by TCP that passes on what they send, but for what it does to it.

It reads ZMTP, as anybody can: after a greeting of 64 bytes come frames, each with a byte of flags (1: more follow, 2: a
long one, 4: a command) and its size. Of what is encrypted it sees as much.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from random import Random

GREETING = 64
MORE, LONG, COMMAND = 1, 2, 4

#: A message as it travels: its frames, each with flags and size ahead.
Message = tuple[bytes, ...]

#: What is passed on in the place of the messages that are here, in one direction (True: towards who listens).
Act = Callable[[bool, list[Message]], list[Message]]


def frame(body: bytes, *, more: bool) -> bytes:
    """A frame as it travels."""
    flags = MORE if more else 0
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body


def body_of(one: bytes) -> bytes:
    """What is in a frame."""
    return one[9:] if one[0] & LONG else one[2:]


def message(*bodies: bytes) -> Message:
    """A message of such frames."""
    return tuple(frame(body, more=number + 1 < len(bodies)) for number, body in enumerate(bodies))


def is_command(one: Message) -> bool:
    """Whether it is ZeroMQ's own; of a connection that is encrypted, messages are commands, too."""
    return bool(one[0][0] & COMMAND) and b"MESSAGE" not in one[0][:20]


def flipped(one: Message, random: Random) -> Message:
    """With one bit the other way, in some frame; mostly in the longest."""
    where = max(range(len(one)), key=lambda number: len(one[number])) if random.random() < 0.7 else 0
    changed = bytearray(one[where])
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return (*one[:where], bytes(changed), *one[where + 1 :])


class _Stream:
    """Bytes of one direction, as messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._frames: list[bytes] = []
        self._greeting = GREETING  # bytes of it that are to come

    def take(self, data: bytes) -> tuple[bytes, list[Message]]:
        """What is to be passed on as it is, and the messages that are whole."""
        plain, data = data[: self._greeting], data[self._greeting :]
        self._greeting -= len(plain)
        self._bytes += data
        found: list[Message] = []
        while (size := self._size()) is not None and len(self._bytes) >= size:
            self._frames.append(bytes(self._bytes[:size]))
            del self._bytes[:size]
            if not self._frames[-1][0] & MORE:
                found.append(tuple(self._frames))
                self._frames.clear()
        return plain, found

    def _size(self) -> int | None:
        if len(self._bytes) < 9:
            return 2 + self._bytes[1] if len(self._bytes) >= 2 and not self._bytes[0] & LONG else None
        return 9 + int.from_bytes(self._bytes[1:9], "big") if self._bytes[0] & LONG else 2 + self._bytes[1]


class Proxy:
    """Stands before an address; `act` says what becomes of messages."""

    def __init__(self, to: str, act: Act) -> None:
        host, _, port = to.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self.act = act
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections: list[tuple[socket.socket, socket.socket]] = []
        self._begin(self._accept)

    @staticmethod
    def _begin(act: Callable[..., None], *of: object) -> None:
        threading.Thread(target=act, args=of, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                try:
                    far = socket.create_connection(self._to)
                except OSError:
                    near.close()
                    continue
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections.append((near, far))
                self._begin(self._pass_on, near, far, True)
                self._begin(self._pass_on, far, near, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        stream = _Stream()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                plain, messages = stream.take(data)
                commands = [one for one in messages if is_command(one)]
                others = [one for one in messages if not is_command(one)]
                passed = [*commands, *(self.act(up, others) if others else ())]
                target.sendall(plain + b"".join(b"".join(one) for one in passed))
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Be there no longer."""
        self._socket.close()
        for pair in self.connections:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
