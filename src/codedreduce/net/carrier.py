"""What the sockets of every node have in common: messages to numbered neighbours on two planes, control and data.

With every neighbour there is a session (`sessions`) over both planes. Frames are as in `frames`; chunks of vectors are
as in `chunks`. A neighbour that sends an invalid message, or one that it has no right to send (`protocol.rights`),
loses its connection (`connections`), and the node reports it.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from typing import ClassVar, NamedTuple

import zmq

from codedreduce.errors import MemoryGone, WireError
from codedreduce.net.buffers import Buffers
from codedreduce.net.chunks import Chunks
from codedreduce.net.connections import Connections, Endpoints, PeerLink, PlaneLink
from codedreduce.net.frames import (
    ACKNOWLEDGEMENT,
    MARKS,
    OPEN,
    OPEN_ASKING,
    OPENS,
    PLAIN,
    REFERENCES,
    Damaged,
    OutOfOrder,
    count_from_bytes,
    count_to_bytes,
    split,
)
from codedreduce.net.keys import Guard
from codedreduce.net.limits import of_control, of_data
from codedreduce.net.sessions import CONTROL, DATA, SessionStep
from codedreduce.net.sockets import Context, Socket
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Transmit
from codedreduce.protocol.core.messages import DATA as CHUNKS
from codedreduce.protocol.core.messages import AnyMessage, Goodbye
from codedreduce.protocol.core.wire import decode, encode
from codedreduce.protocol.rights import Rights, beyond
from codedreduce.run.journal import is_power_of_ten
from codedreduce.run.quorum import Gathering
from codedreduce.vectors import Vector

#: Plain integers: pyzmq's are enumerations, and combining those costs more than receiving a frame.
_NOW = int(zmq.DONTWAIT)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)

#: Frames of a message that are kept: no valid message has more.
MOST_FRAMES = 4


class Arrived(NamedTuple):
    """A message from a neighbour; without a message, an acknowledgement of one marked message."""

    sender: int
    message: AnyMessage | None
    data: Vector | None = None


class Gone(NamedTuple):
    """A neighbour cannot be reached, and messages under way to or from it may be lost."""

    peer: int


class Reached(NamedTuple):
    """A neighbour can be reached, for the first time or again; nothing is under way."""

    peer: int


News = Arrived | Gone | Reached


def _descriptor(frames: list[zmq.Frame]) -> int:
    """The file descriptor of the connection by which a message came."""
    return int(frames[-1].get(zmq.SRCFD)) if frames else -1


class Carrier:
    """The messages of one node of a tree or ring; for a node that talks to all others see `mesh`.

    The parent binds two sockets, and children connect to each of them. In a ring of two the next node is also the
    previous one: there is a link each way. A peer that connects to sockets that listen is a child, whatever its name.
    """

    one_at_a_time: ClassVar[bool] = True  # send all of a chunk to one neighbour before the next gets any
    at_once: ClassVar[int] = 1  # messages that are read from a socket before the others are checked again
    connects_too: ClassVar[bool] = False  # by the sockets that others connect to

    def __init__(
        self, context: Context, node: int, settings: Settings, buffers: Buffers, rights: Rights,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.node = node
        self.process = int.from_bytes(os.urandom(4), "big") | 1  # identifies this process among those of this node
        self._rights = rights
        #: Returns the generation and the round of this node.
        self.stands: Callable[[], tuple[int, int]] = lambda: (settings.generation, settings.after)
        self._timing = settings.timing
        limits = (of_control(settings.timing), of_data(settings))
        self._connections = Connections(context, node, self.process, limits, guard)
        self._chunks = Chunks(settings, buffers)
        self._links: dict[int, PeerLink] = {}  # for messages to each neighbour
        #: Control sockets first; each with its plane and its neighbour, if it leads to only one.
        self._readers: list[tuple[Socket, int, PlaneLink | None]] = []
        self._news: deque[News] = deque()
        self._bad: Counter[int | None] = Counter()  # invalid messages, by sender
        #: The sender and session of a marked message that has to be acknowledged.
        self._owed: tuple[PeerLink, bytes] | None = None
        #: Invalid or forbidden messages since this was last read: the sender, if it is a neighbour, and the reason. Of
        #: each sender the first, tenth, hundredth and so on.
        self.unreadable: list[tuple[int | None, str]] = []

    @property
    def needs(self) -> int | None:
        """The neighbour without which this node leaves the run, if there is one."""
        return next(iter(self._rights.above), None)

    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Return at once: messages to the parent wait until it is connected, and children send Hello."""

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind: at any free port of a host, at a name on this host, or exactly there."""
        endpoints = self._connections.listen(where, connects_too=self.connects_too)
        self._readers += [(socket, plane, None) for plane, socket in enumerate(self._connections.doors)]
        if not self.connects_too:
            self._links = {child: self._connections.link(child, kinds) for child, kinds in self._rights.below.items()}
        return endpoints

    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare links to neighbours that this node connects to: over sockets of their own, or to its equals.

        Of two equals the higher number makes the control connection, and the lower number the data connection.
        """
        for peer in neighbours:
            if peer in self._rights.above:
                link = self._links[peer] = self._connections.link_apart(peer, self._rights.above[peer])
                self._readers += [(connection.socket, connection.plane, connection) for connection in link.planes]
                self._readers.sort(key=lambda reader: reader[1])
            elif peer not in self._links:
                makes = (CONTROL,) if peer < self.node else (DATA,)
                self._links[peer] = self._connections.link(peer, self._rights.below[peer], makes)

    @property
    def sockets(self) -> list[Socket]:
        """Sockets that are readable when messages have come."""
        return self._connections.sockets

    @property
    def monitors(self) -> list[Socket]:
        """Sockets that are readable when connections are made or lost."""
        return list(self._connections.monitors)

    @property
    def has_news(self) -> bool:
        """Whether `take` has news, whatever is ready."""
        return bool(self._news)

    # -- sending

    def send(self, action: Transmit) -> None:
        """Send a message to a neighbour. It waits for one that has yet to connect, and is dropped for a lost one."""
        link = self._links[action.to]
        session = link.session
        if not session.is_up and not session.is_new:
            return
        plane, kind = CONTROL, PLAIN
        payload: bytes | memoryview | None = None
        data, header = action.data, encode(action.message)
        if data is not None:
            plane = DATA
            kind, payload = self._chunks.pack(action.message, data, marked=action.marked)
        if session.is_new:
            link.waiting.append((plane, kind, header, payload))
            return
        self._put(link, plane, kind, header, payload)
        travels = payload is not None and kind not in REFERENCES  # the numbers themselves do, not a reference
        if travels and self.one_at_a_time and link.planes[DATA].called is not None:
            # Let ZeroMQ's thread write all of it; otherwise all neighbours get their first 8 KiB before one gets more.
            os.sched_yield()

    def _put(
        self, link: PeerLink, plane: int, kind: bytes, body: bytes, payload: bytes | memoryview | None = None
    ) -> None:
        """Send a frame of the session. A failure to send is the first sign that a connection is lost."""
        if link.planes[plane].send(kind + link.session.outgoing + body, payload):
            if kind in MARKS:
                link.session.marked_went()
        elif link.session.is_up:
            self._follow(link, link.session.end())

    # -- sessions

    def _follow(self, link: PeerLink, step: SessionStep) -> None:
        """Carry out a session step: report what changed, and send OPEN."""
        if step.gone:
            self._news.append(Gone(link.peer))
        for plane in step.open_on:
            self._say_open(link, plane, asks=link.session.asks_on(plane))
        if step.up:
            self._is_reached(link)

    def _say_open(self, link: PeerLink, plane: int, *, asks: bool) -> None:
        """Without a connection this OPEN is lost: the side that makes the connection sends first."""
        link.planes[plane].send((OPEN_ASKING if asks else OPEN) + link.session.outgoing)

    def _is_reached(self, link: PeerLink) -> None:
        self._news.append(Reached(link.peer))
        waiting, link.waiting = link.waiting, []
        for plane, kind, body, payload in waiting:
            self._put(link, plane, kind, body, payload)

    def _watch(self, ready: Container[object]) -> None:
        """Handle connections that were made or lost."""
        for connection, is_there in self._connections.watch(ready):
            session, plane = connection.link.session, connection.plane
            self._follow(connection.link, session.connected(plane) if is_there else session.broke(plane))

    def look_at_doors(self) -> None:
        """Cut connections that stayed unidentified too long; make lost connections again."""
        for connection, address in self._connections.lost_for_long():
            self._reach(connection, address)

    def _reach(self, connection: PlaneLink, address: str) -> None:
        if not self._connections.make(connection, address):
            peer = connection.link.peer
            self._complain(peer, f"rank {peer} has the invalid address {address[:100]!r}")

    def move(self, peer: int, endpoints: Endpoints) -> None:
        """A neighbour listens here now."""
        self._connections.admit(peer, endpoints.key)
        if peer not in self._links:
            return
        link = self._links[peer]
        for plane in link.makes:
            connection, address = link.planes[plane], endpoints[plane]
            if connection.leads_to == address and connection.key == endpoints.key:
                continue
            connection.key = endpoints.key
            if connection.leads_to is not None:
                self._connections.give_up(connection, connection.leads_to)
                self._follow(link, link.session.broke(plane))
            self._reach(connection, address)

    def address_of(self, peer: int) -> str | None:
        """One of the two addresses of a neighbour that this node connects to; None if it connects to none."""
        return next((one.leads_to for one in self._links[peer].planes if one.leads_to is not None), None)

    # -- receiving

    def take(self, ready: Container[object]) -> Iterator[News]:
        """Yield the news of each socket in `ready`, control messages first; skip unreadable messages.

        Polling an empty socket costs as much as a message, so only sockets in `ready` are read. A marked message is
        acknowledged when the caller asks for the next item.
        """
        while self._news:
            yield self._news.popleft()
        for socket, plane, connection in self._readers:
            if socket in ready:
                for _ in range(self.at_once):
                    arrived = self._next(socket, plane, connection)
                    while self._news:
                        yield self._news.popleft()
                    if arrived is not None:
                        yield arrived
                    if self._owed is not None:
                        self._acknowledge(*self._owed)
                    if self.at_once == 1 or not int(socket.get(_EVENTS)) & _READABLE:  # a tenth of polling all sockets
                        break
        self._watch(ready)  # last: a peer may have sent something before its connection was lost
        while self._news:
            yield self._news.popleft()

    def _next(self, socket: Socket, plane: int, connection: PlaneLink | None) -> Arrived | None:
        """The next valid message of a socket, if any. On a socket with several neighbours the first frame names one."""
        try:
            frames = [socket.recv(_NOW, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames[MOST_FRAMES:] = [socket.recv(_NOW, copy=False)]
        name: bytes | None = None
        if connection is None:
            name_frame = frames.pop(0)
            name = name_frame.bytes
            connection = self._connections.sender(name, name_frame, plane)
            if connection is None:
                self._turn_away(name, socket, _descriptor(frames))
                return None
        try:
            return self._read(connection, frames, name)
        except MemoryGone as error:  # not an error of the sender: the owner has ended
            peer = connection.link.peer
            self._complain(peer, f"rank {peer} sent an unusable reference: {error}")
        except WireError as error:
            self._owed = None
            self._object(error, connection, _descriptor(frames))
        return None

    def _object(self, error: WireError, connection: PlaneLink, descriptor: int) -> None:
        """Handle an invalid message: cut the connection, unless the message may be left over from an earlier one.

        With the connection the session ends at once: whatever is left over from it is dropped. A message that was
        damaged on its way is lost in any case: end the session, or ask for OPEN again.
        """
        link, is_sound = connection.link, isinstance(error, OutOfOrder)  # arrived as it was sent
        if is_sound or not link.may_be_left_over(connection.plane):
            self._complain(link.peer, f"rank {link.peer} sent {error}")
            if not is_sound and self._connections.cut(connection, descriptor):
                self._follow(link, link.session.end())
        if isinstance(error, Damaged):
            if link.session.is_up:
                self._follow(link, link.session.end())
            else:
                self._say_open(link, connection.plane, asks=True)

    def _complain(self, sender: int | None, why: str) -> None:
        """Report an error, but not as often as a peer can cause it."""
        self._bad[sender] += 1
        if is_power_of_ten(self._bad[sender]):
            self.unreadable.append((sender, why))

    def _turn_away(self, name: bytes, socket: Socket, descriptor: int) -> None:
        """Handle a message from a peer that is not a neighbour; it may be left over from a connection that was cut."""
        door = self._connections.doors[socket]
        if door.has_cut(descriptor):
            return
        self._watch(self.monitors)
        if self._connections.is_identified(descriptor):  # neighbours send under their own names
            return
        if name[:1] != b"\0" or not door.has_cut_lately:
            self._complain(None, f"a process that is not in this run, named {name[:16].hex()}, sent a message")
        door.cut(descriptor)

    def _read(self, connection: PlaneLink, frames: list[zmq.Frame], name: bytes | None = None) -> Arrived | None:
        """Return a message for the sans-IO machine. Handle messages of the session; their effects become news."""
        link, plane, session = connection.link, connection.plane, connection.link.session
        place, first = connection.unsealed(frames)
        kind, tag, body = split(first, len(frames), plane)
        if session.is_of_it(tag) and kind not in OPENS:
            if connection.has_seals:
                connection.unsealing.check_place(place, first)
            if not session.is_up and session.heard():
                self._is_reached(link)
            if kind in MARKS:  # also if its memory is gone: otherwise the sender's window would never open again
                self._owed = (link, tag)
            if kind != ACKNOWLEDGEMENT:
                return self._message(link, plane, kind, body, frames)
            self._news.extend([Arrived(link.peer, None)] * session.acknowledged(count_from_bytes(body)))
            return None
        if kind in OPENS:
            self._watch(self.monitors)  # first handle lost connections, which may have had the same descriptor
            self._connections.identify(connection, _descriptor(frames))
            step = session.opened(plane, tag, asks=kind == OPEN_ASKING)
            if session.is_theirs(tag) and name is not None:
                self._connections.take_name(connection, name)
            self._follow(link, step)
        elif kind == PLAIN and plane == CONTROL and session.is_of_their_process(tag):
            message = decode(body)  # of a session that is over: its sender, in leaving, broke the other connection
            if isinstance(message, Goodbye) and Goodbye in link.may_say:
                return Arrived(link.peer, message)
        return None

    def _acknowledge(self, link: PeerLink, tag: bytes) -> None:
        self._owed = None
        if link.session.is_of_it(tag):
            self._put(link, CONTROL, ACKNOWLEDGEMENT, count_to_bytes(link.session.marked_came()))

    def _message(self, link: PeerLink, plane: int, kind: bytes, header: bytes, frames: list[zmq.Frame]) -> Arrived:
        """The message for the sans-IO machine, after every check that is possible before memory is allocated for it."""
        if plane == CONTROL:
            message = decode(header)
            self._check(link, plane, message)
            return Arrived(link.peer, message)
        message, chunk = self._chunks.unpack(kind, header, frames[1].buffer)
        self._check(link, plane, message)
        return Arrived(link.peer, message, self._chunks.vector(message, chunk))

    def _check(self, link: PeerLink, plane: int, message: AnyMessage) -> None:
        """Check that a message came on its plane, and that its sender may send it."""
        if isinstance(message, CHUNKS) != (plane == DATA):
            where = "on the control plane" if plane == CONTROL else "on the data plane"
            raise WireError(f"{type(message).__name__} {where}")
        if type(message) not in link.may_say:
            raise WireError(f"{type(message).__name__}, which it has no right to send")
        too_far = beyond(message, *self.stands())
        if too_far is not None:
            raise WireError(f"{type(message).__name__} of {too_far}")

    def close(self) -> None:
        """Close all sockets; send what was handed over already, but nothing more."""
        self._connections.close()
