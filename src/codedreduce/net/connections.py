"""The sockets of a node, and the connections over them: those that it makes, and those that others make to it.

A neighbour that sends an invalid message loses its connection (`pending_connections`). A connection that this side
makes is made again whenever it is lost; to a neighbour that listens elsewhere it leads from there on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import zmq

from codedreduce.net.frames import OPENS, Seal, fresh_name
from codedreduce.net.keys import Guard, user_of
from codedreduce.net.limits import Limits
from codedreduce.net.pending_connections import PendingConnections, cut_to
from codedreduce.net.sessions import PLANES, Session
from codedreduce.net.sockets import Context, Socket, bound, comings_and_goings, connecting, is_local
from codedreduce.protocol.rights import Kinds
from codedreduce.timing import Timing, milliseconds

#: Plain integers: pyzmq's are enumerations, and combining those costs more than sending a frame.
_NOW = int(zmq.DONTWAIT)
_NOW_AND_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)

#: Frames of at least this many bytes are sent without a copy. That wakes a thread of pyzmq for every frame, to hand it
#: over and to report that it was sent. Copying a smaller frame takes no longer, and does not delay the others.
ZERO_COPY = 1 << 18


class Endpoints(NamedTuple):
    """Where a node listens, and its public key if it listens on encrypted TCP."""

    control: str
    data: str
    key: str = ""

    @property
    def planes(self) -> tuple[str, str]:
        """Where it listens on each plane."""
        return self.control, self.data


class PlaneLink:
    """The connection with a neighbour on one plane. Over unencrypted TCP its frames have seals."""

    def __init__(self, link: PeerLink, node: int, plane: int, socket: Socket, name: bytes | None) -> None:
        self.link = link
        self.plane = plane
        self.socket = socket
        #: Its name on a socket that leads to others too; with keys empty until the connection is identified.
        self.called = name
        self.seal, self.unsealing = Seal(node, link.peer, plane), Seal(link.peer, node, plane)
        self.has_seals = False
        self.leads_to: str | None = None  # the address, if this side makes the connection
        self.key = ""  # the other side's key when this side last connected
        self.lost_at: float | None = None  # when that was lost, if it has not been made again
        self.comes_by = -1  # the descriptor of the other side's connection

    def send(self, first: bytes, payload: bytes | memoryview | None = None) -> bool:
        """Send a message of one or two frames. False without a connection."""
        if self.has_seals:
            first = self.seal.put(first, payload, counts=first[:1] not in OPENS)
        try:
            if self.called is not None:
                self.socket.send(self.called, _NOW_AND_MORE)
            if payload is None:
                self.socket.send(first, _NOW)
            else:
                self.socket.send(first, _NOW_AND_MORE)
                self.socket.send(payload, _NOW, copy=len(payload) < ZERO_COPY)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def unsealed(self, frames: list[zmq.Frame]) -> tuple[int, bytes]:
        """The place in the seal of a message, and its first frame, after its digest was checked."""
        first = frames[0].bytes if frames else b""
        if not self.has_seals:
            return 0, first
        return self.unsealing.take_off(first, frames[1].buffer if len(frames) > 1 else None)


class PeerLink:
    """A neighbour, its session, and the connections below that: one on each plane."""

    def __init__(
        self, node: int, peer: int, process: int, may_say: Kinds, makes: tuple[int, ...], sockets: Sequence[Socket],
        name: bytes | None, timing: Timing,
    ) -> None:  # fmt: skip
        self.peer = peer
        self._timing = timing
        self.makes = makes  # the planes on which this side makes the connection
        self.planes = tuple(PlaneLink(self, node, plane, sockets[plane], name) for plane in PLANES)
        self.may_say = may_say
        self.cut_at = -math.inf  # when this node last cut its connection for what it sent
        self.session = Session(process)
        self.waiting: list[tuple[int, bytes, bytes, bytes | memoryview | None]] = []  # until the session is first up

    def may_be_left_over(self, plane: int) -> bool:
        """Whether a frame may have arrived before the neighbour's connection was cut."""
        since = time.monotonic() - self.cut_at
        return since < (self._timing.recut_unheard if self.session.asks_on(plane) else self._timing.recut)


def name_of(node: int) -> bytes:
    """A node's name on its neighbours' sockets."""
    return node.to_bytes(4, "big")


class Connections:
    """Creates the sockets of a node, makes connections, and attributes those of others to neighbours.

    With keys, the key that authenticated a neighbour identifies it, or a name that no other peer can have.
    """

    def __init__(
        self, context: Context, node: int, process: int, limits: tuple[Limits, Limits], guard: Guard | None
    ) -> None:  # fmt: skip
        self._context = context
        self._node = node
        self._process = process
        self._limits = limits  # by plane
        self._timing = limits[0].timing
        self._guard = guard
        self._here = ["", ""]  # the address on each plane, if this node listens there
        self._own_key = ""  # if this node listens on TCP and authenticates peers
        self.sockets: list[Socket] = []
        self.monitors: dict[Socket, Socket] = {}  # monitor socket -> the socket that it monitors
        self.doors: dict[Socket, PendingConnections] = {}  # of sockets that listen
        self._links: dict[int, PeerLink] = {}  # of neighbours that may connect to sockets that listen
        self._named: dict[tuple[int, bytes], PlaneLink] = {}  # by plane and name, once they have been identified
        self._makes: dict[str, PlaneLink] = {}  # connections that this side makes, by address
        self._made_by_others: dict[int, PlaneLink] = {}  # connections of others, by descriptor

    # -- sockets

    def listen(self, where: str | Endpoints, *, connects_too: bool) -> Endpoints:
        """Bind a socket for each plane: at any free port of a host, at a name on this host, or exactly there."""
        if isinstance(where, Endpoints):
            addresses = where.planes
        elif is_local(where):
            place = f"{where}-{self._node}-{self._process:08x}"  # an earlier process may still be there, or be probed
            addresses = (f"{place}-control", f"{place}-data")
        else:
            addresses = (f"{where}:*", f"{where}:*")
        self._own_key = self._guard.key if self._guard is not None and not is_local(addresses[0]) else ""
        name = b"" if self._own_key or not connects_too else name_of(self._node)
        for plane, address in enumerate(addresses):
            socket, monitor, listens_at = bound(
                self._context, address, f"rank {self._node}", self._limits[plane], self._guard, name=name,
                hands_over=not self._own_key,
            )  # fmt: skip
            self._here[plane] = listens_at
            self.sockets.append(socket)
            self.monitors[monitor] = socket
            self.doors[socket] = PendingConnections((listens_at,), self._timing)
        return Endpoints(self._here[0], self._here[1], self._own_key)

    def link(self, peer: int, may_say: Kinds, makes: tuple[int, ...] = ()) -> PeerLink:
        """A link to a neighbour over the sockets that listen; on these planes this side makes the connection."""
        name = b"" if self._own_key else name_of(peer)
        link = PeerLink(self._node, peer, self._process, may_say, makes, tuple(self.doors), name, self._timing)
        for connection in link.planes:
            connection.has_seals = self._has_seals(self._here[connection.plane])
        self._links[peer] = link
        return link

    def link_apart(self, peer: int, may_say: Kinds) -> PeerLink:
        """A link to a neighbour over sockets of its own, which connect to it."""
        sockets = []
        for limits in self._limits:
            socket, monitor = connecting(self._context, limits)
            self.monitors[monitor] = socket
            sockets.append(socket)
        self.sockets += sockets
        return PeerLink(self._node, peer, self._process, may_say, PLANES, sockets, None, self._timing)

    def _has_seals(self, address: str) -> bool:
        """Whether frames travel there over unencrypted TCP, where they could be damaged."""
        return self._guard is None and address.startswith("tcp://")

    # -- connections that this side makes

    def admit(self, peer: int, key: str) -> None:
        """A neighbour has this key now, if it has any."""
        if self._guard is not None and key:
            self._guard.name(peer, key)

    def make(self, connection: PlaneLink, address: str) -> bool:
        """Make a connection; ZeroMQ makes it again whenever it is lost. False if the address is invalid."""
        try:
            if self._guard is not None and not is_local(address):
                self._guard.connects(connection.socket, connection.key)
                if connection.called is not None:  # a unique name: the peer there cannot send as another neighbour then
                    self._named.pop((connection.plane, connection.called), None)
                    connection.called = fresh_name()
                    self._named[connection.plane, connection.called] = connection
                    connection.socket.setsockopt(zmq.CONNECT_ROUTING_ID, connection.called)
            else:
                connection.socket.setsockopt(zmq.ROUTING_ID, name_of(self._node))
            connection.socket.connect(address)
        except zmq.ZMQError:
            return False
        connection.leads_to = address
        connection.has_seals = self._has_seals(address)
        self._makes[address] = connection
        return True

    def give_up(self, connection: PlaneLink, address: str) -> None:
        """Do not make the connection to this address any more."""
        _disconnect(connection, address)
        del self._makes[address]
        connection.leads_to = connection.lost_at = None

    def lost_for_long(self) -> Iterator[tuple[PlaneLink, str]]:
        """Connections that have to be made again, and where they lead; cut those that are unidentified too long."""
        for door in self.doors.values():
            door.look()
        now = time.monotonic()
        for address, connection in list(self._makes.items()):
            if connection.lost_at is not None and now > connection.lost_at + self._timing.renew_connection:
                _disconnect(connection, address)
                connection.lost_at = now
                yield connection, address

    # -- what happens to connections

    def watch(self, ready: Container[object]) -> Iterator[tuple[PlaneLink, bool]]:
        """Handle connections that were made or lost; yield those of neighbours, and whether they are there."""
        for monitor, watched in self.monitors.items():
            if monitor not in ready:
                continue
            door = self.doors.get(watched)
            for told in comings_and_goings(monitor):
                if door is not None:
                    door.follow(told)
                if told.has_come:
                    continue
                if told.endpoint in self._makes:
                    watched.get(_EVENTS)  # lets it learn the name of the peer, which arrived before this event
                    connection = self._makes[told.endpoint]
                    connection.lost_at = None if told.is_there else time.monotonic()
                    yield connection, told.is_there
                elif not told.is_there and told.descriptor in self._made_by_others:
                    connection = self._made_by_others.pop(told.descriptor)
                    connection.comes_by = -1
                    yield connection, False

    def sender(self, name: bytes, frame: zmq.Frame, plane: int) -> PlaneLink | None:
        """The neighbour at the other end of the connection by which a frame came."""
        if self._own_key:
            known = self._named.get((plane, name))
            if known is not None:
                return known
            number = int(user_of(frame) or -1)
        else:
            number = int.from_bytes(name, "big") if len(name) == 4 else -1
        link = self._links.get(number)
        return link.planes[plane] if link is not None else None

    def identify(self, connection: PlaneLink, descriptor: int) -> None:
        """Record that a neighbour uses this connection, so that the loss of the connection can be attributed to it.

        A frame left over from a lost connection is not attributed to a newer connection that has the same descriptor.
        """
        if connection.leads_to is not None or connection.comes_by == descriptor:
            return
        for door in self.doors.values():
            if door.has(descriptor):
                door.is_known(descriptor)
                self._made_by_others.pop(connection.comes_by, None)
                connection.comes_by = descriptor
                self._made_by_others[descriptor] = connection

    def take_name(self, connection: PlaneLink, name: bytes) -> None:
        """A neighbour has sent OPEN under this name, which with keys may be another than before."""
        if self._own_key and connection.leads_to is None:
            connection.called = name

    def is_identified(self, descriptor: int) -> bool:
        """Whether a neighbour made this connection."""
        return descriptor in self._made_by_others

    def cut(self, connection: PlaneLink, descriptor: int) -> bool:
        """End a connection by which a message came; whether it is the neighbour's present one.

        Frames that came before may still be read afterwards, and a new connection may have the same descriptor. That
        connection is not cut for them.
        """
        door, connection.link.cut_at = self.doors.get(connection.socket), time.monotonic()
        if door is None:
            return connection.leads_to is not None and cut_to(descriptor, connection.leads_to)
        if connection.leads_to is not None:
            return door.cut_to(descriptor, connection.leads_to, self._timing.recut)
        return door.cut(descriptor, self._timing.recut) and connection.comes_by == descriptor

    def close(self) -> None:
        """Close all sockets; send what was handed over already, but nothing more."""
        for socket in self.sockets:
            socket.disable_monitor()
            socket.close(linger=milliseconds(self._timing.linger))
        self.sockets.clear()
        for monitor in self.monitors:
            monitor.close(linger=0)
        self.monitors.clear()


def _disconnect(connection: PlaneLink, address: str) -> None:
    with contextlib.suppress(zmq.ZMQError):  # ZeroMQ has given up already
        connection.socket.disconnect(address)
