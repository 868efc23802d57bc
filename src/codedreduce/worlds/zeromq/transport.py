"""Messages between neighbours over ZeroMQ: the parent binds, children connect; control and data on sockets apart.

Frames of a data message: header, then the chunk's bytes, or a reference into shared memory. Frames of a control
message: header. An empty header is an acknowledgement of marked messages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterator
from typing import NamedTuple

import zmq

from codedreduce.errors import WireError
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Transmit
from codedreduce.protocol.messages import AnyMessage, RingChunk
from codedreduce.protocol.wire import decode, encode
from codedreduce.vectors import Vector
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.zeromq.sockets import LAST_WORDS, Context, Socket, bound, connected

#: Seconds a neighbour has to connect its second socket after its first; then it counts as gone.
CONNECTING = 1.0

#: Flags as plain numbers: pyzmq's own are enumerations, and combining them costs more than sending a frame.
_NOW = int(zmq.DONTWAIT)
_NOW_AND_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)

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


class Transport:
    """The sockets of one node."""

    def __init__(self, context: Context, node: int, settings: Settings, buffers: Buffers) -> None:
        self.node = node
        self._context = context
        self._settings = settings
        self._buffers = buffers
        self._identity = node.to_bytes(4, "big")
        self._down: tuple[Socket, Socket] | None = None
        self._up: tuple[Socket, Socket] | None = None
        self._up_node = -1
        self.monitor: Socket | None = None  # tells when the connection to the parent comes and goes
        self.sockets: list[Socket] = []
        self.lost: list[int] = []  # neighbours found unreachable since last asked
        self.unreadable: list[tuple[int, str]] = []  # who sent what could not be read, and why, since last asked
        self._unsent: list[tuple[float, int, int, list[bytes | memoryview]]] = []

    def listen(self, where: str) -> Endpoints:
        """Bind for children, at any free port of this host or at a name of this machine."""
        found = []
        for plane in ("control", "data"):
            name = f"{where}-{self.node}-{plane}" if where.startswith("ipc://") else f"{where}:*"
            socket, address = bound(self._context, name, f"node {self.node}")
            self.sockets.append(socket)
            found.append(address)
        self._down = (self.sockets[0], self.sockets[1])
        return Endpoints(*found)

    def connect(self, parent: int, endpoints: Endpoints) -> None:
        """Connect to the parent, or to the next in the ring."""
        control, self.monitor = connected(self._context, endpoints.control, self._identity, watched=True)
        data, _ = connected(self._context, endpoints.data, self._identity, watched=False)
        self._up = (control, data)
        self._up_node = parent
        self.sockets += self._up

    @property
    def parent(self) -> int:
        """Whom this node is connected to."""
        return self._up_node

    def send(self, action: Transmit) -> bool:
        """Send a message to a neighbour; whether it could be sent at once."""
        header = encode(action.message)
        data = action.data
        if data is None:
            return self._put(action.to, 0, [header])
        reference = self._buffers.refer(data)
        if reference is not None:
            flag = _MARKED_BY_REFERENCE if action.marked else _BY_REFERENCE
            return self._put(action.to, 1, [flag + header, reference])
        frame = self._buffers.to_bytes(data)
        sent = self._put(action.to, 1, [(_MARKED if action.marked else _PLAIN) + header, frame])
        if action.to != self._up_node:
            # Let ZeroMQ's thread write all of it, or every child is sent its first 8 KiB before any has the rest.
            os.sched_yield()
        return sent

    def acknowledge(self, peer: int) -> bool:
        """Tell a neighbour that its marked message is here; whether it could be sent at once."""
        return self._put(peer, 0, [b""])

    def _put(self, to: int, plane: int, frames: list[bytes | memoryview]) -> bool:
        waiting = bool(self._unsent) and any(one[1:3] == (to, plane) for one in self._unsent)
        if not waiting and self._try(to, plane, frames):
            return True
        self._unsent.append((time.monotonic() + CONNECTING, to, plane, frames))
        return False

    def _try(self, to: int, plane: int, frames: list[bytes | memoryview]) -> bool:
        copy = len(frames) == 1 or len(frames[1]) < 65536
        try:
            if to == self._up_node and self._up is not None:
                socket = self._up[plane]
            elif self._down is not None:
                socket = self._down[plane]
                socket.send(to.to_bytes(4, "big"), _NOW_AND_MORE)
            else:
                return True
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
        now = time.monotonic()
        for deadline, to, plane, frames in unsent:
            if to in self.lost:
                continue
            if (to, plane) in blocked or not self._try(to, plane, frames):
                blocked.add((to, plane))
                if now < deadline:
                    self._unsent.append((deadline, to, plane, frames))
                elif to not in self.lost:
                    self.lost.append(to)
        return bool(self._unsent)

    def receive(self, ready: Container[object]) -> Iterator[Arrived]:
        """A message from each socket that has one, small messages first; what cannot be read is skipped.

        Asking a socket that has nothing costs as much as a message: only those are asked that `ready` names.
        """
        for plane in (0, 1):
            for sockets, from_children in ((self._down, True), (self._up, False)):
                if sockets is not None and sockets[plane] in ready:
                    arrived = self._take(sockets[plane], plane, from_children)
                    if arrived is not None:
                        yield arrived

    def _take(self, socket: Socket, plane: int, from_children: bool) -> Arrived | None:
        try:
            frames = [socket.recv(_NOW, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(socket.recv(_NOW, copy=False))
        sender = int.from_bytes(frames.pop(0).buffer, "big") if from_children else self._up_node
        try:
            return self._read(sender, frames, plane)
        except WireError as error:
            self.unreadable.append((sender, str(error)))
            if plane == 1 and frames and bytes(frames[0].buffer[:1]) in (_MARKED, _MARKED_BY_REFERENCE):
                self.acknowledge(sender)  # or the sender's window would never open again
            return None

    def _read(self, sender: int, frames: list[zmq.Frame], plane: int) -> Arrived:
        if plane == 0:
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
            data = self._buffers.from_bytes(buffer)
        if isinstance(message, RingChunk) and len(data) > self._settings.length:
            raise WireError("a ring chunk larger than the vector")
        return Arrived(sender, message, data, flag in (_MARKED, _MARKED_BY_REFERENCE))

    def close(self) -> None:
        """Let go of all sockets, sending what has been handed over but nothing more."""
        for socket in self.sockets:
            socket.disable_monitor()
            socket.close(linger=LAST_WORDS)
        self.sockets.clear()
        if self.monitor is not None:
            self.monitor.close(linger=0)
