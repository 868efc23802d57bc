"""Somebody who is not of a run and connects to it all the same: the one place that knows how."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq

from codedreduce.net.rendezvous.meeting import neighbours
from codedreduce.run.agreement import Run
from codedreduce.schemes import Plan, RingPlan, StripedPlan

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

CONTROL, DATA, BOOK = "control", "data", "directory"


def doors(run: Run) -> dict[tuple[int, str], str]:
    """Where a run of this machine's can be reached: its book of addresses, and every node that listens, by plane.

    Names have a number of their process in them, so they are looked up: all nodes must have come.
    """
    folder = Path(run.meeting.address.removeprefix("ipc://")).parent
    found = {(run.plan.first_node, BOOK): run.meeting.address}
    for node in run.plan.nodes:
        if neighbours(run.plan, node)[1]:
            for plane in (CONTROL, DATA):
                (name,) = folder.glob(f"node-{node}-*-{plane}")
                found[node, plane] = f"ipc://{name}"
    return found


def role_of(plan: Plan, node: int) -> str:
    """What a node is, in words."""
    if isinstance(plan, RingPlan):
        return "ring node"
    if isinstance(plan, StripedPlan):
        return "rank" if node else "rank that leads"
    return "inner worker" if node else "root"


class Stranger:
    """A connection to a door, under a name of its own choice; it is made again whenever it is cut."""

    def __init__(self, context: Context, address: str, name: bytes | None = None) -> None:
        self.address = address
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 1)
        if name is not None:
            self._socket.setsockopt(zmq.ROUTING_ID, name)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.cuts = 0
        self._socket.connect(address)

    def send(self, *frames: bytes) -> bool:
        """Send a message; whether there was room for it."""
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def hear(self) -> list[bytes] | None:
        """What was answered, if anything was."""
        try:
            return self._socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def was_cut(self, within: float = 0.0) -> bool:
        """Whether the connection was ended by the other side, at least once."""
        wait = int(1000 * within)
        while (not self.cuts and self._monitor.poll(wait)) or self._monitor.poll(0):
            what, _ = self._monitor.recv_multipart()
            self.cuts += int.from_bytes(what[:2], "little") == int(zmq.EVENT_DISCONNECTED)
        return self.cuts > 0

    def close(self) -> None:
        """Be gone."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)


def plain_connection(address: str) -> socket.socket:
    """A connection that does not speak ZeroMQ's protocol, unless it is told to."""
    scheme, _, rest = address.partition("://")
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=5.0)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5.0)
    connection.connect(rest.replace("@", "\0", 1) if rest.startswith("@") else rest)
    return connection


class Raw:
    """A stranger that speaks ZeroMQ's protocol by itself: all that it sends is with the kernel before it can be cut.

    It greets without a key (the mechanism NULL); it raises an OSError if that is not enough.
    """

    _GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

    def __init__(self, address: str, name: bytes | None = None) -> None:
        self._connection = plain_connection(address)
        self._connection.sendall(self._GREETING)
        self._read(len(self._GREETING))
        said = b"".join(
            bytes([len(key)]) + key + len(value).to_bytes(4, "big") + value
            for key, value in ((b"Socket-Type", b"DEALER"), (b"Identity", name or b""))
        )
        ready = b"\x05READY" + said
        self._connection.sendall(b"\x04" + bytes([len(ready)]) + ready)
        _, size = self._read(2)
        self._read(size)

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self._connection.recv(count - len(found))
            if not more:
                raise ConnectionResetError("the other side has gone")
            found += more
        return found

    def send(self, messages: Iterable[tuple[bytes, ...]]) -> None:
        """Send messages, all at once."""
        self._connection.sendall(b"".join(map(_on_the_wire, messages)))

    def was_cut(self, within: float) -> bool:
        """Whether the other side ended the connection."""
        self._connection.settimeout(within)
        try:
            while self._connection.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Be gone."""
        self._connection.close()


def _on_the_wire(frames: tuple[bytes, ...]) -> bytes:
    """A message as ZeroMQ sends it: of each frame whether more follow, and how long it is."""
    made = []
    for number, frame in enumerate(frames, start=1):
        more = number < len(frames)
        if len(frame) < 256:
            made.append(bytes([more, len(frame)]) + frame)
        else:
            made.append(bytes([more | 2]) + len(frame).to_bytes(8, "big") + frame)
    return b"".join(made)


@contextlib.contextmanager
def stranger(address: str, name: bytes | None = None) -> Iterator[Stranger]:
    """A stranger that goes again."""
    context: Context = zmq.Context()
    one = Stranger(context, address, name)
    try:
        yield one
    finally:
        one.close()
        context.destroy(linger=0)
