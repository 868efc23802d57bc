"""The sockets of a node: the one place that creates them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import zmq

from codedreduce.errors import UsageError
from codedreduce.net.limits import Limits, limit
from codedreduce.process.private_folder import place_for
from codedreduce.timing import Timing, milliseconds

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

#: Events of a monitored socket: a peer has connected, a connection is ready, a connection is lost.
COMES_AND_GOES = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_ACCEPTED, _THERE = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_EVENT = struct.Struct("=hi")
_NOW = int(zmq.DONTWAIT)

#: A ZAP domain makes libzmq reject peers with a protocol older than ZMTP 3, or with none. The first bytes of such a
#: peer would end this process if they came while its socket is being closed (an assertion in zmtp_engine.cpp). With
#: keys, `keys` answers libzmq's ZAP requests, and admits peers that connect through a file on this host.
DOMAIN = b"codedreduce"

#: Further events of a knocking socket: the peer rejected it.
NOT_LET_IN = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_NOT_LET_IN = int(NOT_LET_IN)


class SocketEvent(NamedTuple):
    """A connection is ready or lost: `endpoint` is where it leads if this side made it, else where this side listens.

    The descriptor is of a connection that is lost, or that a peer has just made (`has_come`) without sending anything
    yet. Messages that come by a connection have the same descriptor. `is_refused`: a peer was reached and rejected this
    side.
    """

    endpoint: str
    is_there: bool
    descriptor: int
    has_come: bool = False
    is_refused: bool = False


class Keys(Protocol):
    """Sets keys on a socket before it listens or connects (`keys.Guard`)."""

    def listens(self, socket: Socket, *, as_book: bool = False) -> None:
        """The next bind of this socket is a directory's, or a node's."""

    def connects(self, socket: Socket, key: str | None = None) -> None:
        """The next connection leads to the owner of this key, or to a directory."""


def is_local(address: str) -> bool:
    """Whether an address is a file on this host: file permissions decide which processes may connect."""
    return address.startswith("ipc://")


def bound(
    context: Context, address: str, owner: str, limits: Limits, keys: Keys | None = None, *, name: bytes = b"",
    hands_over: bool = True,
) -> tuple[Socket, Socket, str]:  # fmt: skip
    """A socket for connections from others, told apart by their names; its monitor; and where it listens.

    It can connect to others, too, and shows them its `name`. If it `hands_over`, a neighbour that was restarted
    elsewhere takes over its name, whichever side connects. Else no peer can take over the name of another.
    """
    socket = _made(context, zmq.ROUTER, limits)
    if name:
        socket.setsockopt(zmq.ROUTING_ID, name)
    _try_again(socket, limits.timing)
    return _listening(socket, address, owner, keys, hands_over)


def connecting(context: Context, limits: Limits) -> tuple[Socket, Socket]:
    """A socket to connect to one other, and again when the connection is lost; its monitor."""
    socket = _made(context, zmq.DEALER, limits)
    monitor = _monitor_of(socket)
    _try_again(socket, limits.timing)
    return socket, monitor


def knocking(
    context: Context, addresses: Iterable[str], limits: Limits, keys: Keys | None = None
) -> tuple[Socket, Socket]:
    """A socket that connects to others as soon as they listen, and again when a connection is lost; its monitor.

    Their addresses tell them apart. It is one socket, since each further one costs time whenever a node polls.
    """
    socket = _made(context, zmq.ROUTER, limits)
    monitor = _monitor_of(socket, COMES_AND_GOES | NOT_LET_IN)
    socket.setsockopt(zmq.RECONNECT_IVL, milliseconds(limits.timing.rendezvous_retry))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, milliseconds(limits.timing.rendezvous_retry_limit))
    for address in addresses:
        if keys is not None and not is_local(address):
            keys.connects(socket)
        socket.setsockopt(zmq.CONNECT_ROUTING_ID, address.encode())
        socket.connect(address)
    return socket, monitor


def answering(context: Context, limits: Limits) -> tuple[Socket, Socket]:
    """A socket that others knock at, once it listens somewhere; its monitor."""
    socket = _made(context, zmq.ROUTER, limits)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return socket, _monitor_of(socket)


def listen_at_too(socket: Socket, address: str, keys: Keys | None = None) -> int:
    """Listen at an address as a directory. Returns 0, or the error number if the address cannot be bound."""
    if keys is not None and not is_local(address):
        keys.listens(socket, as_book=True)
    try:
        _bind(socket, address)
    except zmq.ZMQError as error:
        return error.errno or -1
    return 0


def comings_and_goings(monitor: Socket) -> Iterator[SocketEvent]:
    """Connection events of a monitored socket since the last call."""
    while True:
        try:
            what = monitor.recv(_NOW)
        except zmq.Again:
            return
        endpoint = monitor.recv()  # both parts of a message are there
        event, value = _EVENT.unpack(what)
        yield SocketEvent(endpoint.decode(), event == _THERE, value, event == _ACCEPTED, bool(event & _NOT_LET_IN))


def _monitor_of(socket: Socket, events: int = COMES_AND_GOES) -> Socket:
    """Create a socket's monitor. ZeroMQ's thread would wait if its queue were full: the queue is unbounded, and is read
    often.
    """
    address = f"inproc://monitor.s-{int(socket.get(zmq.FD))}"
    socket.monitor(address, events)
    monitor: Socket = socket.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor


def _made(context: Context, kind: int, limits: Limits) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.SNDHWM, 0)  # the protocol's windows bound what is in flight
    limit(socket, limits)
    timing, probe = limits.timing, max(1, round(limits.timing.keepalive))  # the kernel counts whole seconds
    socket.setsockopt(zmq.CONNECT_TIMEOUT, milliseconds(timing.connect_timeout))  # from here on: TCP only
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, probe)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, probe)
    socket.setsockopt(zmq.TCP_MAXRT, milliseconds(timing.connection_timeout))
    return socket


def _listening(
    socket: Socket, address: str, owner: str, keys: Keys | None, hands_over: bool
) -> tuple[Socket, Socket, str]:
    monitor = _monitor_of(socket)  # before any peer can connect
    socket.setsockopt(zmq.ROUTER_HANDOVER, int(hands_over))
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if keys is not None and not is_local(address):
        keys.listens(socket)
    try:
        _bind(socket, address)
    except zmq.ZMQError as error:
        monitor.close()
        socket.close()
        why = zmq.strerror(error.errno or 0).lower()
        raise UsageError(f"{owner} cannot listen at {address}: {why}; choose another port") from None
    return socket, monitor, socket.getsockopt_string(zmq.LAST_ENDPOINT) if address.endswith("*") else address


def _bind(socket: Socket, address: str) -> None:
    """Listen. At a file only if no process listens there, since ZeroMQ would take the file away from that process."""
    if not is_local(address) or address.startswith("ipc://@"):
        socket.bind(address)
        return
    try:
        with place_for(address.removeprefix("ipc://")):
            socket.bind(address)
    except FileExistsError:
        raise zmq.ZMQError(zmq.EADDRINUSE) from None


def _try_again(socket: Socket, timing: Timing) -> None:
    socket.setsockopt(zmq.RECONNECT_IVL, milliseconds(timing.reconnect))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, milliseconds(timing.reconnect_limit))
