"""What every node's sockets have in common: messages on two planes, control and data, to neighbours who have numbers.

Frames of a data message: header, then the chunk's bytes, or a reference into shared memory. Frames of a control
message: header. An empty header is an acknowledgement of marked messages.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from typing import ClassVar, NamedTuple

import zmq

from codedreduce.errors import WireError
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Transmit
from codedreduce.protocol.messages import AnyMessage, RingChunk, StateChunk
from codedreduce.protocol.wire import decode, encode
from codedreduce.vectors import Vector
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.zeromq.sockets import LAST_WORDS, Context, Socket

CONTROL, DATA = 0, 1

#: Flags as plain numbers: pyzmq's own are enumerations, and combining them costs more than sending a frame.
_NOW = int(zmq.DONTWAIT)
_NOW_AND_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)

#: Bytes from which a frame is sent from where it lies. Handing it over, and being told that it has been sent, wakes a
#: thread of pyzmq's for every frame: a copy of less takes no longer, and does not hold up the others.
ZERO_COPY = 1 << 18

_MARKED = b"\x01"
_PLAIN = b"\x00"
_BY_REFERENCE = b"\x02"
_MARKED_BY_REFERENCE = b"\x03"


class Endpoints(NamedTuple):
    """Where a node listens."""

    control: str
    data: str


class Arrived(NamedTuple):
    """Something a neighbour sent; a message of None is an acknowledgement."""

    sender: int
    message: AnyMessage | None
    data: Vector | None = None
    marked: bool = False


class Unsent(NamedTuple):
    """What could not be sent yet: since when, to whom, on which plane."""

    since: float
    to: int
    plane: int
    frames: list[bytes | memoryview]


def name_of(node: int) -> bytes:
    """What a node is called on its neighbours' sockets."""
    return node.to_bytes(4, "big")


class Carrier(ABC):
    """The sockets of one node; which there are, and who is behind them, is a subclass's."""

    one_at_a_time: ClassVar[bool] = True  # whether one neighbour should have all of a chunk before the next has some

    def __init__(self, context: Context, node: int, settings: Settings, buffers: Buffers) -> None:
        self.node = node
        self._context = context
        self._settings = settings
        self._buffers = buffers
        self.sockets: list[Socket] = []
        self.monitors: list[Socket] = []  # have something to read when `comes_and_goes` has something to tell
        self.lost: list[int] = []  # neighbours found unreachable since last asked
        #: Who sent what could not be read, if it is a neighbour, and that in words, since last asked.
        self.unreadable: list[tuple[int | None, str]] = []
        self._unsent: list[Unsent] = []

    @property
    @abstractmethod
    def needs(self) -> int | None:
        """The one without whom this node leaves, if there is one."""

    @abstractmethod
    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind, at any free port of a host, at a name of this machine, or exactly there."""

    @abstractmethod
    def connect(self, neighbours: Mapping[int, Endpoints]) -> None:
        """Connect to those who listen there."""

    @abstractmethod
    def wait_until_connected(self, within: float, look: Callable[[], None]) -> None:
        """Wait for the connections without which a node cannot begin; `look` is called meanwhile."""

    @abstractmethod
    def comes_and_goes(self) -> list[tuple[int, bool]]:
        """Whose connection has come (True) or gone (False) since last asked, in that order."""

    @abstractmethod
    def receive(self, ready: Container[object]) -> Iterator[Arrived]:
        """A message from each socket that has one, small messages first; what cannot be read is skipped.

        Asking a socket that has nothing costs as much as a message: only those are asked that `ready` names.
        """

    @abstractmethod
    def _way(self, to: int, plane: int) -> tuple[Socket | None, bytes | None]:
        """The socket that leads to a neighbour, and the name to put ahead if it leads to others too."""

    @abstractmethod
    def _gives_up(self, unsent: Unsent) -> bool:
        """Whether what still cannot be sent never will be."""

    def _addresses(self, where: str | Endpoints) -> Endpoints:
        if isinstance(where, Endpoints):
            return where
        if where.startswith("ipc://"):
            return Endpoints(f"{where}-{self.node}-control", f"{where}-{self.node}-data")
        return Endpoints(f"{where}:*", f"{where}:*")

    def send(self, action: Transmit) -> bool:
        """Send a message to a neighbour; whether it could be sent at once."""
        header = encode(action.message)
        data = action.data
        if data is None:
            return self._put(action.to, CONTROL, [header])
        reference = self._buffers.refer(data)
        if reference is not None:
            flag = _MARKED_BY_REFERENCE if action.marked else _BY_REFERENCE
            return self._put(action.to, DATA, [flag + header, reference])
        frame = self._buffers.to_bytes(data)
        sent = self._put(action.to, DATA, [(_MARKED if action.marked else _PLAIN) + header, frame])
        if self.one_at_a_time and self._way(action.to, DATA)[1] is not None:
            # Let ZeroMQ's thread write all of it, or everyone is sent their first 8 KiB before any has the rest.
            os.sched_yield()
        return sent

    def acknowledge(self, peer: int) -> bool:
        """Tell a neighbour that its marked message is here; whether it could be sent at once."""
        return self._put(peer, CONTROL, [b""])

    def _put(self, to: int, plane: int, frames: list[bytes | memoryview]) -> bool:
        waiting = bool(self._unsent) and any((one.to, one.plane) == (to, plane) for one in self._unsent)
        if not waiting and self._try(to, plane, frames):
            return True
        self._unsent.append(Unsent(time.monotonic(), to, plane, frames))
        return False

    def _try(self, to: int, plane: int, frames: list[bytes | memoryview]) -> bool:
        copy = len(frames) == 1 or len(frames[1]) < ZERO_COPY
        socket, name = self._way(to, plane)
        if socket is None:
            return True
        try:
            if name is not None:
                socket.send(name, _NOW_AND_MORE)
            for frame in frames[:-1]:
                socket.send(frame, _NOW_AND_MORE)
            socket.send(frames[-1], _NOW, copy=copy)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def retry(self) -> bool:
        """Send what could not be sent, since a neighbour's second socket was still connecting; whether some is left."""
        unsent, self._unsent = self._unsent, []
        blocked: set[tuple[int, int]] = set()
        for one in unsent:
            if one.to in self.lost:
                continue
            way = (one.to, one.plane)
            if way in blocked or not self._try(*way, one.frames):
                blocked.add(way)
                if not self._gives_up(one):
                    self._unsent.append(one)
        return bool(self._unsent)

    def _take(self, socket: Socket, plane: int, sender: int | None = None) -> Arrived | None:
        """The next message of a socket; if it is not from one sender only, the first frame says from whom."""
        try:
            frames = [socket.recv(_NOW, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(socket.recv(_NOW, copy=False))
        if sender is None:
            name = frames.pop(0).bytes
            sender = self._called(name)
            if sender is None:
                self.unreadable.append((None, f"somebody not of this run, called {name[:16].hex()}, sent something"))
                return None
        try:
            return self._read(sender, frames, plane)
        except WireError as error:
            self.unreadable.append((sender, f"node {sender} sent {error}"))
            if plane == DATA and frames and bytes(frames[0].buffer[:1]) in (_MARKED, _MARKED_BY_REFERENCE):
                self.acknowledge(sender)  # or the sender's window would never open again
            return None

    def _called(self, name: bytes) -> int | None:
        """Who is called this, if anybody."""
        return int.from_bytes(name, "big")

    def _read(self, sender: int, frames: list[zmq.Frame], plane: int) -> Arrived:
        if plane == CONTROL:
            if len(frames) != 1:
                raise WireError(f"a small message of {len(frames)} frames")
            header = frames[0].bytes
            return Arrived(sender, decode(header) if header else None)
        if len(frames) != 2:
            raise WireError(f"a data message of {len(frames)} frames")
        first, buffer = frames[0].bytes, frames[1].buffer
        flag, header = first[:1], first[1:]
        if flag in (_BY_REFERENCE, _MARKED_BY_REFERENCE):
            reference, data = self._buffers.look_up(buffer)
            message = decode(header, reference.size, self._settings.chunk_bytes)
        else:
            message = decode(header, buffer.nbytes, self._settings.chunk_bytes)
            data = self._buffers.from_bytes(buffer, plain=isinstance(message, StateChunk))
        if isinstance(message, RingChunk) and len(data) > self._settings.length:
            raise WireError("a ring chunk larger than the vector")
        return Arrived(sender, message, data, flag in (_MARKED, _MARKED_BY_REFERENCE))

    def close(self) -> None:
        """Let go of all sockets, sending what has been handed over but nothing more."""
        for socket in self.sockets:
            socket.disable_monitor()
            socket.close(linger=LAST_WORDS)
        self.sockets.clear()
        for monitor in self.monitors:
            monitor.close(linger=0)
        self.monitors.clear()
