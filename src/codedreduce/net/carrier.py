"""What the sockets of every node have in common: messages to numbered neighbours on two planes, control and data.

With every neighbour there is a session (`sessions`) over both planes. Frames are as in `frames`; over unencrypted TCP
they have a seal (`frames`). A neighbour that sends an invalid message, or one that it has no right to send
(`protocol.rights`), loses its connection (`pending_connections`), and the node reports it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

import zmq

from codedreduce.errors import MemoryGone, WireError
from codedreduce.net.buffers import Buffers
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
    Seal,
    chunk_kind,
    count_from_bytes,
    count_to_bytes,
    fresh_name,
    split,
)
from codedreduce.net.keys import Guard, user_of
from codedreduce.net.limits import of_control, of_data
from codedreduce.net.pending_connections import PendingConnections, cut_to
from codedreduce.net.sessions import CONTROL, DATA, PLANES, Session, SessionStep
from codedreduce.net.sockets import Context, Socket, comings_and_goings, is_local
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Transmit
from codedreduce.protocol.core.messages import DATA as CHUNKS
from codedreduce.protocol.core.messages import AnyMessage, Goodbye, RingChunk, StateChunk
from codedreduce.protocol.core.wire import decode, encode
from codedreduce.protocol.rights import Kinds, Rights, beyond
from codedreduce.run.quorum import Gathering
from codedreduce.timing import milliseconds
from codedreduce.vectors import Vector

#: Plain integers: pyzmq's are enumerations, and combining those costs more than sending a frame.
_NOW = int(zmq.DONTWAIT)
_NOW_AND_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)

#: Frames of at least this many bytes are sent without a copy. That wakes a thread of pyzmq for every frame, to hand it
#: over and to report that it was sent. Copying a smaller frame takes no longer, and does not delay the others.
ZERO_COPY = 1 << 18

#: Frames of a message that are kept: no valid message has more.
MOST_FRAMES = 4


class Endpoints(NamedTuple):
    """Where a node listens, and its public key if it listens on encrypted TCP."""

    control: str
    data: str
    key: str = ""

    @property
    def planes(self) -> tuple[str, str]:
        """Where it listens on each plane."""
        return self.control, self.data


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


class PeerLink:
    """A neighbour, its session, and the connections below that."""

    def __init__(self, node: int, peer: int, process: int, may_say: Kinds) -> None:
        self.peer = peer
        #: The name of its connection on this node's socket, on each plane; with keys empty until the connection is
        #: identified.
        self.called = [name_of(peer), name_of(peer)]
        self.seals = [Seal(node, peer, plane) for plane in PLANES]
        self.has_seals: list[bool | None] = [None, None]  # by plane; None: not determined yet for this address
        self.unsealing = [Seal(peer, node, plane) for plane in PLANES]
        self.may_say = may_say
        self.cut_at = -math.inf  # when this node last cut its connection for what it sent
        self.session = Session(process)
        self.waiting: list[tuple[int, bytes, bytes, bytes | memoryview | None]] = []  # until the session is first up
        self.leads_to: list[str | None] = [None, None]  # the address on each plane, if this side makes the connection
        self.key = ""  # the other side's key when this side last connected
        self.comes_by: list[int] = [-1, -1]  # the descriptor of the other side's connection, on each plane


def name_of(node: int) -> bytes:
    """A node's name on its neighbours' sockets."""
    return node.to_bytes(4, "big")


def _descriptor(frames: list[zmq.Frame]) -> int:
    """The file descriptor of the connection by which a message came."""
    return int(frames[-1].get(zmq.SRCFD)) if frames else -1


class Carrier(ABC):
    """The sockets of one node; a subclass defines which sockets exist, and which neighbours they reach."""

    one_at_a_time: ClassVar[bool] = True  # send all of a chunk to one neighbour before the next gets any
    at_once: ClassVar[int] = 1  # messages that are read from a socket before the others are checked again

    def __init__(
        self, context: Context, node: int, settings: Settings, buffers: Buffers, rights: Rights,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.node = node
        self._here = ["", ""]  # the address on each plane, if this node listens there
        self._names: dict[tuple[int, bytes], PeerLink] = {}  # of connections that have been identified
        self._rights = rights
        self._limits = (of_control(settings.timing), of_data(settings))
        self._guard = guard
        self._own_key = ""  # if this node listens on TCP and authenticates peers
        self._context = context
        self._settings = settings
        self._timing = settings.timing
        #: Returns the generation and the round of this node.
        self.stands: Callable[[], tuple[int, int]] = lambda: (settings.generation, settings.after)
        self._buffers = buffers
        self.process = int.from_bytes(os.urandom(4), "big") | 1  # identifies this process among those of this node
        self.sockets: list[Socket] = []
        #: Control sockets first; each with its plane and its neighbour, if it leads to only one.
        self._readers: list[tuple[Socket, int, PeerLink | None]] = []
        self._monitors: dict[Socket, Socket] = {}  # monitor socket -> the socket that it monitors
        self._makes: dict[str, tuple[PeerLink, int]] = {}  # connections that this side makes, by address
        self._lost: dict[str, float] = {}  # when each of them was lost
        self._made_by_others: dict[int, tuple[PeerLink, int]] = {}  # connections of others, by descriptor
        self._doors: dict[Socket, PendingConnections] = {}  # of sockets that listen
        self._news: deque[News] = deque()
        self._bad: Counter[int | None] = Counter()  # invalid messages, by sender
        self._owed: tuple[PeerLink, bytes] | None = (
            None  # the sender and session of a marked message that has to be acknowledged
        )
        #: Invalid or forbidden messages since this was last read: the sender, if it is a neighbour, and the reason. Of
        #: each sender the first, tenth, hundredth and so on.
        self.unreadable: list[tuple[int | None, str]] = []

    @property
    @abstractmethod
    def needs(self) -> int | None:
        """The neighbour without which this node leaves the run, if there is one."""

    @abstractmethod
    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind: at any free port of a host, at a name on this host, or exactly there."""

    @abstractmethod
    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare links to neighbours that this node connects to, or that are its equals."""

    def connect(self, neighbours: Mapping[int, Endpoints]) -> None:
        """Connect to neighbours that listen there."""
        self.expect(neighbours)
        for peer, endpoints in neighbours.items():
            self.move(peer, endpoints)

    @abstractmethod
    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Wait for the sessions that a node needs before it can begin; call `look` meanwhile."""

    @abstractmethod
    def _planes_to(self, peer: int) -> tuple[int, ...]:
        """The planes on which this side makes the connection to a neighbour."""

    @abstractmethod
    def _link_to(self, peer: int) -> PeerLink:
        """The link for messages to a neighbour."""

    @abstractmethod
    def _link_called(self, name: bytes) -> PeerLink | None:
        """The link of the neighbour with this name, if there can be one."""

    @abstractmethod
    def _way(self, link: PeerLink, plane: int) -> tuple[Socket | None, bytes | None]:
        """The socket that leads to a neighbour, and the name to send first if the socket leads to others too."""

    def _link(self, peer: int, may_say: Kinds) -> PeerLink:
        """A link to a neighbour from which nothing has arrived."""
        link = PeerLink(self.node, peer, self.process, may_say)
        if self._own_key:
            link.called = [b"", b""]
        return link

    def _is_by_tcp(self, link: PeerLink, plane: int) -> bool:
        return (link.leads_to[plane] or self._here[plane]).startswith("tcp://")

    def _has_seals(self, link: PeerLink, plane: int) -> bool:
        """Whether frames travel there over unencrypted TCP, where they could be damaged."""
        found = link.has_seals[plane]
        if found is None:
            found = link.has_seals[plane] = self._is_by_tcp(link, plane) and self._guard is None
        return found

    def _listens(self, socket: Socket, monitor: Socket, plane: int, address: str) -> None:
        """Register a socket that others connect to."""
        self._here[plane] = address
        self._monitors[monitor] = socket
        self._doors[socket] = PendingConnections((address,), self._timing)

    def _reads(self, sockets: Iterable[Socket], link: PeerLink | None = None) -> None:
        """Read these sockets, one for each plane."""
        self.sockets += sockets
        self._readers += [(socket, plane, link) for plane, socket in enumerate(sockets)]
        self._readers.sort(key=lambda reader: reader[1])

    def _addresses(self, where: str | Endpoints) -> Endpoints:
        is_by_tcp = not is_local(where.control if isinstance(where, Endpoints) else where)
        self._own_key = self._guard.key if self._guard is not None and is_by_tcp else ""
        if isinstance(where, Endpoints):
            return where
        if not is_by_tcp:
            name = f"{where}-{self.node}-{self.process:08x}"  # an earlier process may still be there, or be probed
            return Endpoints(f"{name}-control", f"{name}-data")
        return Endpoints(f"{where}:*", f"{where}:*")

    @property
    def monitors(self) -> list[Socket]:
        """Sockets that are readable when connections are made or lost."""
        return list(self._monitors)

    @property
    def has_news(self) -> bool:
        """Whether `take` has news, whatever is ready."""
        return bool(self._news)

    # -- sending

    def send(self, action: Transmit) -> None:
        """Send a message to a neighbour. It waits for one that has yet to connect, and is dropped for a lost one."""
        link = self._link_to(action.to)
        session = link.session
        if not session.is_up and not session.is_new:
            return
        plane, kind, travels = CONTROL, PLAIN, False  # travels: the numbers themselves do, not a reference
        payload: bytes | memoryview | None = None
        data, header = action.data, encode(action.message)
        if data is not None:
            plane = DATA
            payload = self._buffers.refer(data)
            kind = chunk_kind(marked=action.marked, by_reference=payload is not None)
            travels = payload is None
            if payload is None:
                payload = self._buffers.to_bytes(data, self._exact_in(action.message))
        if session.is_new:
            link.waiting.append((plane, kind, header, payload))
            return
        self._put(link, plane, kind, header, payload)
        if travels and self.one_at_a_time and self._way(link, DATA)[1] is not None:
            # Let ZeroMQ's thread write all of it; otherwise all neighbours get their first 8 KiB before one gets more.
            os.sched_yield()

    def _put(
        self, link: PeerLink, plane: int, kind: bytes, body: bytes, payload: bytes | memoryview | None = None
    ) -> None:
        """Send a frame of the session. A failure to send is the first sign that a connection is lost."""
        if self._try(link, plane, kind + link.session.outgoing + body, payload):
            if kind in MARKS:
                link.session.marked_went()
        elif link.session.is_up:
            self._follow(link, link.session.end())

    def _try(self, link: PeerLink, plane: int, first: bytes, payload: bytes | memoryview | None = None) -> bool:
        socket, name = self._way(link, plane)
        if socket is None:
            return False
        if self._has_seals(link, plane):
            first = link.seals[plane].put(first, payload, counts=first[:1] not in OPENS)
        try:
            if name is not None:
                socket.send(name, _NOW_AND_MORE)
            if payload is None:
                socket.send(first, _NOW)
            else:
                socket.send(first, _NOW_AND_MORE)
                socket.send(payload, _NOW, copy=len(payload) < ZERO_COPY)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

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
        self._try(link, plane, (OPEN_ASKING if asks else OPEN) + link.session.outgoing)

    def _is_reached(self, link: PeerLink) -> None:
        self._news.append(Reached(link.peer))
        waiting, link.waiting = link.waiting, []
        for plane, kind, body, payload in waiting:
            self._put(link, plane, kind, body, payload)

    def _watch(self, ready: Container[object]) -> None:
        """Handle connections that were made or lost."""
        for monitor, watched in self._monitors.items():
            if monitor not in ready:
                continue
            door = self._doors.get(watched)
            for told in comings_and_goings(monitor):
                if told.has_come:
                    if door is not None:
                        door.came(told.descriptor)
                elif told.endpoint in self._makes:
                    watched.get(_EVENTS)  # lets it learn the name of the peer, which arrived before this event
                    link, plane = self._makes[told.endpoint]
                    self._lost.pop(told.endpoint, None)
                    if not told.is_there:
                        self._lost[told.endpoint] = time.monotonic()
                    self._follow(link, link.session.connected(plane) if told.is_there else link.session.broke(plane))
                elif not told.is_there:
                    if door is not None:
                        door.went(told.descriptor)
                    if told.descriptor in self._made_by_others:
                        link, plane = self._made_by_others.pop(told.descriptor)
                        link.comes_by[plane] = -1
                        self._follow(link, link.session.broke(plane))

    def look_at_doors(self) -> None:
        """Cut connections that stayed unidentified too long; make lost connections again."""
        for door in self._doors.values():
            door.look()
        now = time.monotonic()
        for address in [one for one, since in self._lost.items() if now > since + self._timing.renew_connection]:
            link, plane = self._makes[address]
            socket = self._way(link, plane)[0]
            assert socket is not None
            with contextlib.suppress(zmq.ZMQError):  # ZeroMQ has given up already
                socket.disconnect(address)
            self._lost[address] = now
            self._reach(link, plane, address)

    def _reach(self, link: PeerLink, plane: int, address: str) -> None:
        """Make a connection; ZeroMQ makes it again whenever it is lost."""
        socket = self._way(link, plane)[0]
        assert socket is not None
        try:
            if self._guard is not None and not is_local(address):
                self._show(link, plane, socket, self._guard)
            else:
                socket.setsockopt(zmq.ROUTING_ID, name_of(self.node))
            socket.connect(address)
        except zmq.ZMQError:
            self._complain(link.peer, f"rank {link.peer} has the invalid address {address[:100]!r}")
            return
        link.leads_to[plane] = address
        link.has_seals[plane] = None
        self._makes[address] = (link, plane)

    def _show(self, link: PeerLink, plane: int, socket: Socket, guard: Guard) -> None:
        """Set the keys for the next connection, and give it a unique name on this socket.

        The peer there cannot send as another neighbour then, whatever its name.
        """
        guard.connects(socket, link.key)
        if socket.type == zmq.ROUTER:
            self._is_called(link, plane, fresh_name())
            socket.setsockopt(zmq.CONNECT_ROUTING_ID, link.called[plane])

    def _is_called(self, link: PeerLink, plane: int, name: bytes) -> None:
        """Give a neighbour's connection this name in place of the one before."""
        self._names.pop((plane, link.called[plane]), None)
        link.called[plane] = name
        self._names[plane, name] = link

    def move(self, peer: int, endpoints: Endpoints) -> bool:
        """A neighbour listens here now. Returns whether this node connects to it again."""
        moved = False
        if self._guard is not None and endpoints.key:
            self._guard.name(peer, endpoints.key)
        planes = self._planes_to(peer)
        is_another = bool(planes) and self._link_to(peer).key != endpoints.key
        for plane in planes:
            link, address = self._link_to(peer), endpoints[plane]
            before = link.leads_to[plane]
            if before == address and not is_another:
                continue
            link.key = endpoints.key
            moved = True
            if before is not None:
                socket = self._way(link, plane)[0]
                assert socket is not None
                with contextlib.suppress(zmq.ZMQError):  # ZeroMQ has given up already
                    socket.disconnect(before)
                del self._makes[before]
                self._lost.pop(before, None)
                link.leads_to[plane] = None
                self._follow(link, link.session.broke(plane))
            self._reach(link, plane, address)
        return moved

    def address_of(self, peer: int) -> str | None:
        """One of the two addresses of a neighbour that this node connects to; None if it connects to none."""
        return next((address for address in self._link_to(peer).leads_to if address is not None), None)

    def _remember_connection(self, link: PeerLink, plane: int, descriptor: int) -> None:
        """Record that a neighbour uses this connection, so that the loss of the connection can be attributed to it.

        A frame left over from a lost connection is not attributed to a newer connection that has the same descriptor.
        """
        if link.leads_to[plane] is not None or link.comes_by[plane] == descriptor:
            return
        for door in self._doors.values():
            if door.has(descriptor):
                door.is_known(descriptor)
                self._made_by_others.pop(link.comes_by[plane], None)
                link.comes_by[plane] = descriptor
                self._made_by_others[descriptor] = (link, plane)

    # -- receiving

    def take(self, ready: Container[object]) -> Iterator[News]:
        """Yield the news of each socket in `ready`, control messages first; skip unreadable messages.

        Polling an empty socket costs as much as a message, so only sockets in `ready` are read. A marked message is
        acknowledged when the caller asks for the next item.
        """
        if self._news:
            yield from self._told()
        for socket, plane, link in self._readers:
            if socket in ready:
                for _ in range(self.at_once):
                    arrived = self._next(socket, plane, link)
                    if self._news:
                        yield from self._told()
                    if arrived is not None:
                        yield arrived
                    if self._owed is not None:
                        self._acknowledge(*self._owed)
                    if self.at_once == 1 or not int(socket.get(_EVENTS)) & _READABLE:  # a tenth of polling all sockets
                        break
        self._watch(ready)  # last: a peer may have sent something before its connection was lost
        if self._news:
            yield from self._told()

    def _told(self) -> Iterator[News]:
        while self._news:
            yield self._news.popleft()

    def _next(self, socket: Socket, plane: int, link: PeerLink | None) -> Arrived | None:
        """The next valid message of a socket, if any. On a socket with several neighbours the first frame names one."""
        try:
            frames = [socket.recv(_NOW, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames[MOST_FRAMES:] = [socket.recv(_NOW, copy=False)]
        name: bytes | None = None
        if link is None:
            name_frame = frames.pop(0)
            name = name_frame.bytes
            link = self._link_of(name, name_frame, plane)
            if link is None:
                self._turn_away(name, socket, frames)
                return None
        try:
            return self._read(link, plane, frames, name)
        except MemoryGone as error:  # not an error of the sender: the owner has ended
            self._complain(link.peer, f"rank {link.peer} sent an unusable reference: {error}")
        except WireError as error:
            self._owed = None
            self._object(error, socket, plane, link, frames)
        return None

    def _object(self, error: WireError, socket: Socket, plane: int, link: PeerLink, frames: list[zmq.Frame]) -> None:
        """Handle an invalid message: cut the connection, unless the message may be left over from an earlier one.

        A message that was damaged on its way is lost in any case: end the session, or ask for OPEN again.
        """
        is_sound = isinstance(error, OutOfOrder)  # arrived as it was sent
        if is_sound or not self._may_be_left_over(link, plane):
            self._complain(link.peer, f"rank {link.peer} sent {error}")
            if not is_sound:
                self._cut(socket, plane, link, frames)
        if isinstance(error, Damaged):
            if link.session.is_up:
                self._follow(link, link.session.end())
            else:
                self._say_open(link, plane, asks=True)

    def _complain(self, sender: int | None, why: str) -> None:
        """Report an error, but not as often as a peer can cause it."""
        self._bad[sender] += 1
        if str(self._bad[sender]).strip("0") == "1":
            self.unreadable.append((sender, why))

    def _cut(self, socket: Socket, plane: int, link: PeerLink, frames: list[zmq.Frame]) -> None:
        """End the connection by which this came, and the session at once: whatever is left over from it is dropped.

        Frames that came before may still be read afterwards, and a new connection may have the same descriptor. That
        connection is not cut for them.
        """
        door, leads_to, descriptor = self._doors.get(socket), link.leads_to[plane], _descriptor(frames)
        link.cut_at = time.monotonic()
        if door is None:
            is_cut = leads_to is not None and cut_to(descriptor, leads_to)
        elif leads_to is not None:
            is_cut = door.cut_to(descriptor, leads_to, self._timing.recut)
        else:
            is_cut = door.cut(descriptor, self._timing.recut) and link.comes_by[plane] == descriptor
        if is_cut:
            self._follow(link, link.session.end())

    def _may_be_left_over(self, link: PeerLink, plane: int) -> bool:
        """Whether a frame may have arrived before the neighbour's connection was cut."""
        since = time.monotonic() - link.cut_at
        return since < (self._timing.recut_unheard if link.session.asks_on(plane) else self._timing.recut)

    def _turn_away(self, name: bytes, socket: Socket, frames: list[zmq.Frame]) -> None:
        """Handle a message from a peer that is not a neighbour; it may be left over from a connection that was cut."""
        door, descriptor = self._doors[socket], _descriptor(frames)
        if door.has_cut(descriptor):
            return
        self._watch(self._monitors)
        if descriptor in self._made_by_others:  # neighbours send under their own names
            return
        if name[:1] != b"\0" or not door.has_cut_lately:
            self._complain(None, f"a process that is not in this run, named {name[:16].hex()}, sent a message")
        door.cut(descriptor)

    def _link_of(self, name: bytes, frame: zmq.Frame, plane: int) -> PeerLink | None:
        """The neighbour at the other end of the connection by which a frame came.

        With keys, the key that authenticated the neighbour identifies it, or a name that no other peer can have.
        """
        if not self._own_key:
            return self._link_called(name)
        known, user = self._names.get((plane, name)), user_of(frame)
        return known if known is not None or not user else self._link_called(name_of(int(user)))

    def _unsealed(self, link: PeerLink, plane: int, frames: list[zmq.Frame]) -> tuple[int, bytes]:
        """The place in the seal, and the first frame, after its digest was checked."""
        if not self._has_seals(link, plane):
            return 0, frames[0].bytes if frames else b""
        first, payload = frames[0].bytes if frames else b"", frames[1].buffer if len(frames) > 1 else None
        return link.unsealing[plane].take_off(first, payload)

    def _read(self, link: PeerLink, plane: int, frames: list[zmq.Frame], name: bytes | None = None) -> Arrived | None:
        """Return a message for the sans-IO machine. Handle messages of the session; their effects become news."""
        session = link.session
        place, first = self._unsealed(link, plane, frames)
        kind, tag, body = split(first, len(frames), plane)
        if session.is_of_it(tag) and kind not in OPENS:
            if self._has_seals(link, plane):
                link.unsealing[plane].check_place(place, first)
            if not session.is_up and session.heard():
                self._is_reached(link)
            if kind in MARKS:  # also if its memory is gone: otherwise the sender's window would never open again
                self._owed = (link, tag)
            if kind != ACKNOWLEDGEMENT:
                return self._message(link, plane, kind, body, frames)
            self._news.extend([Arrived(link.peer, None)] * session.acknowledged(count_from_bytes(body)))
            return None
        if kind in OPENS:
            self._watch(self._monitors)  # first handle lost connections, which may have had the same descriptor
            self._remember_connection(link, plane, _descriptor(frames))
            step = session.opened(plane, tag, asks=kind == OPEN_ASKING)
            if session.is_theirs(tag) and self._own_key and name is not None and link.leads_to[plane] is None:
                link.called[plane] = name
            self._follow(link, step)
        elif kind == PLAIN and plane == CONTROL and session.is_of_their_process(tag):
            return self._last_words(link, body)
        return None

    def _acknowledge(self, link: PeerLink, tag: bytes) -> None:
        self._owed = None
        if link.session.is_of_it(tag):
            self._put(link, CONTROL, ACKNOWLEDGEMENT, count_to_bytes(link.session.marked_came()))

    def _last_words(self, link: PeerLink, body: bytes) -> Arrived | None:
        """Accept only a Goodbye from a session that is over: its sender, in leaving, broke the other connection."""
        message = decode(body)
        return Arrived(link.peer, message) if isinstance(message, Goodbye) and Goodbye in link.may_say else None

    def _message(self, link: PeerLink, plane: int, kind: bytes, header: bytes, frames: list[zmq.Frame]) -> Arrived:
        """The message for the sans-IO machine, after every check that is possible before memory is allocated for it."""
        if plane == CONTROL:
            message = decode(header)
            self._check(link, plane, message)
            return Arrived(link.peer, message)
        buffer = frames[1].buffer
        reference = self._buffers.reference(buffer) if kind in REFERENCES else None
        size = buffer.nbytes if reference is None else reference.size
        message = decode(header, size, self._settings.chunk_bytes)
        self._check(link, plane, message)
        if isinstance(message, RingChunk) and size > self._settings.chunk_bytes(0):
            raise WireError(f"a ring chunk of {size} bytes; the largest has {self._settings.chunk_bytes(0)}")
        is_state = isinstance(message, StateChunk)
        if reference is None:
            exact = self._exact_in(message)
            return Arrived(link.peer, message, self._buffers.from_bytes(buffer, exact, plain=is_state))
        if is_state:
            raise WireError("a piece of a state by reference")
        assert isinstance(message, CHUNKS)
        return Arrived(link.peer, message, self._buffers.look_up(reference, message.index))

    def _exact_in(self, message: AnyMessage) -> int:
        """The count of a message's numbers that travel unpacked."""
        if not isinstance(message, CHUNKS) or isinstance(message, RingChunk | StateChunk):
            return 0
        return self._settings.exact_in(message.index)

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
        for socket in self.sockets:
            socket.disable_monitor()
            socket.close(linger=milliseconds(self._timing.linger))
        self.sockets.clear()
        for monitor in self._monitors:
            monitor.close(linger=0)
        self._monitors.clear()
