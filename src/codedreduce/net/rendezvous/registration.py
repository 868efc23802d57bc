"""How processes register with a directory: what both send, and the socket at which a directory answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from enum import Enum, auto
from typing import Annotated

import msgspec
import zmq

from codedreduce.net.connections import Endpoints
from codedreduce.net.keys import KEY_CHARACTERS, Guard, user_of
from codedreduce.net.limits import of_books
from codedreduce.net.pending_connections import PendingConnections
from codedreduce.net.rendezvous.identity import Identity
from codedreduce.net.sockets import Context, answering, comings_and_goings, is_local, listen_at_too
from codedreduce.timing import Timing, milliseconds

#: Registrations that are answered at a time. If there are more, they wait a moment, while others are served.
AT_ONCE = 16

#: The largest valid round or generation.
LAST = 2**53

_PLACE = re.compile(r"(tcp://[\w.:%\[\]-]{1,253}:\d{1,5}|ipc://[^\0]{1,200})")


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """The state of a node's run, as far as the node knows: its leader, and whether it has begun."""

    generation: int = 0
    leader: int = 0
    round: int = 0
    is_on: bool = False


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """A node's registration: its number, the nodes it seeks, what it came to train, and where it listens, if it does.

    It also names the node's process, the addresses that the node has for those it seeks, and the state of its run.
    """

    run: str
    node: int
    seeks: tuple[int, ...]
    listens: Endpoints | None
    subject: str = ""
    process: int = 0
    knows: dict[int, Endpoints] = {}
    standing: Standing = Standing()
    key: str = ""  # the public key of the process, where keys are required
    proof: bytes = b""  # that the process knows the secret
    series: str = ""  # the run and the number of the training that it came to
    training: int = 1
    arithmetic: Annotated[str, msgspec.Meta(max_length=400)] = ""  # how it computes
    identity: Annotated[str, msgspec.Meta(max_length=64)] = ""  # of the run it is in, if known

    def is_sound(self, nodes: range) -> bool:
        """Whether its contents are plausible in a run with these nodes."""
        listens = [self.listens] if self.listens is not None else []
        return (
            all(node in nodes for node in (self.node, *self.seeks, *self.knows))
            and len(self.seeks) <= len(nodes)
            and 0 <= self.standing.generation <= LAST
            and 0 <= self.standing.round <= LAST
            and all(map(is_place, (*listens, *self.knows.values())))
        )


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The addresses of other nodes, or the missing nodes, or why this node is rejected; and the state of the run.

    `admits` are the keys of nodes that seek this node.
    """

    endpoints: dict[int, Endpoints] | None
    refusal: str = ""
    final: bool = True
    missing: tuple[int, ...] = ()
    standing: Standing = Standing()
    admits: dict[int, str] = {}
    training: int = 0  # the training that the others are at, if this node came to another of the same run
    identity: str = ""  # of this run


class Opened(Enum):
    """The result of an attempt to answer at an address."""

    HERE = auto()
    TAKEN = auto()  # another process answers there
    ELSEWHERE = auto()  # it is the address of another host


class Listener:
    """The socket of a directory, at one or several rendezvous addresses."""

    def __init__(self, context: Context, nodes: int, identity: Identity, guard: Guard | None, timing: Timing) -> None:
        self._identity = identity
        self._guard = guard
        self._timing = timing
        self.addresses: list[str] = []  # where it answers
        self.socket, self.monitor = answering(context, of_books(nodes, timing))
        self._pending = PendingConnections(self.addresses, timing)
        self.rests_until = 0.0  # more have asked than are answered at a time

    def open(self, address: str) -> Opened:
        """Answer at a further address."""
        errno = listen_at_too(self.socket, address, self._guard)
        if errno:
            return Opened.TAKEN if errno == zmq.EADDRINUSE else Opened.ELSEWHERE
        self.addresses.append(address)
        return Opened.HERE

    def requests(self) -> Iterator[tuple[bytes, list[zmq.Frame]]]:
        """A limited number of requests, each with the name of its sender."""
        for _ in range(AT_ONCE):
            try:
                sender, *frames = self.socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            yield sender.bytes, frames
        self.rests_until = time.monotonic() + self._timing.directory_rest

    def cut(self, frames: list[zmq.Frame]) -> None:
        """The sender of a request loses its connection."""
        self._pending.cut(_descriptor(frames))

    def is_known(self, frames: list[zmq.Frame]) -> None:
        """The sender of a request has been identified."""
        self.look()  # the connection may have been made while others were answered
        self._pending.is_known(_descriptor(frames))

    def is_authentic(self, body: zmq.Frame, says: Registration) -> bool:
        """Whether a process that came by TCP knows the secret, and has the key that it claims."""
        if self._guard is None or all(map(is_local, self.addresses)):  # file permissions protect a file
            return True
        key, listens = user_of(body), says.listens
        shows = says.key == key and (listens is None or listens.key == key or all(map(is_local, listens.planes)))
        return shows and self._guard.is_proven(says.proof, says.run, says.node, says.key)

    def look(self) -> None:
        """Handle connections that were made or lost; cut those that stayed unidentified too long."""
        for told in comings_and_goings(self.monitor):
            self._pending.follow(told)
        self._pending.look()

    def answer(self, to: bytes, answer: Answer) -> bool:
        """Answer a process, with the identity of this run unless it is rejected; whether the process is connected."""
        if not answer.refusal:
            answer = msgspec.structs.replace(answer, identity=self._identity.value)
        try:
            self.socket.send_multipart([to, msgspec.msgpack.encode(answer)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def close(self) -> None:
        """Stop answering."""
        self.socket.disable_monitor()
        self.socket.close(linger=milliseconds(self._timing.linger))
        self.monitor.close(linger=0)


def _descriptor(frames: list[zmq.Frame]) -> int:
    return int(frames[-1].get(zmq.SRCFD)) if frames else -1


def is_place(endpoints: Endpoints) -> bool:
    """Whether these are addresses that a node can listen at.

    >>> is_place(Endpoints("tcp://10.0.0.1:2000", "tcp://10.0.0.1:2001")), is_place(Endpoints("tcp://", "pgm://x;y"))
    (True, False)
    """
    return len(endpoints.key) in (0, KEY_CHARACTERS) and all(map(_PLACE.fullmatch, endpoints.planes))


def named(nodes: tuple[int, ...]) -> str:
    """The name of these nodes in a message."""
    return f"node {nodes[0]}" if len(nodes) == 1 else "nodes " + ", ".join(map(str, nodes))
