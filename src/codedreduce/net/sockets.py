"""The sockets of a node: the one place that makes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import zmq

from codedreduce.errors import UsageError
from codedreduce.net.limits import Limits, limit
from codedreduce.process.private_folder import place_for

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

#: Milliseconds until a lost connection is tried again, at first and at most; and one that is not there yet.
RECONNECT, RECONNECT_AT_MOST = 20, 500
KNOCK_EVERY, KNOCK_EVERY_AT_MOST = 10, 250

#: Milliseconds until a TCP connection that is not answered is tried anew: the kernel would wait longer each time, and
#: come back a minute after a cable that was out for a minute.
CONNECT_WITHIN = 1500

#: Seconds after which the kernel asks a silent neighbour whether it is there, and again; milliseconds without an
#: answer, to that or to anything sent, after which a connection is gone. The kernel's asking costs no process anything.
ASK_AFTER, GONE_AFTER = 1, 4000

#: What a watched socket tells: that somebody has connected, that a connection is there, or gone.
COMES_AND_GOES = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_ACCEPTED, _THERE = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_EVENT = struct.Struct("=hi")
_NOW = int(zmq.DONTWAIT)

#: A name that makes libzmq turn away who speaks a protocol older than ZMTP 3, or none: what one of those says first
#: would end this process if it came while its socket is being closed (an assertion in zmtp_engine.cpp). Who has keys is
#: asked whether to let others in, and lets in who comes by a file of this machine's (`keys`).
DOMAIN = b"codedreduce"

#: What a knocking socket tells beside that: that it was not let in.
NOT_LET_IN = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_NOT_LET_IN = int(NOT_LET_IN)

#: Milliseconds that what was handed over has to leave when a socket is closed.
LAST_WORDS = 200


class SocketEvent(NamedTuple):
    """A connection is there, or gone: one that this side made by where it leads, another by where this side listens.

    The descriptor is of one that is gone, or that somebody has just made (`has_come`), who has not said a word;
    messages that come by it have the same. Or one that reached somebody was not let in (`is_refused`).
    """

    endpoint: str
    is_there: bool
    descriptor: int
    has_come: bool = False
    is_refused: bool = False


class Keys(Protocol):
    """What is done about keys to a socket before it listens or is connected (`keys.Guard`)."""

    def listens(self, socket: Socket, *, as_book: bool = False) -> None:
        """What is bound from now on is a book's, or a node's."""

    def connects(self, socket: Socket, key: str | None = None) -> None:
        """What is connected from now on leads to whoever has this key, or to a book."""


def is_local(address: str) -> bool:
    """Whether an address is a file of this machine's, which says by itself who may come."""
    return address.startswith("ipc://")


def bound(
    context: Context, address: str, who: str, limits: Limits, keys: Keys | None = None, *, hands_over: bool = True
) -> tuple[Socket, Socket, str]:
    """A socket that others connect to and are told apart by their names, its monitor, and where it listens.

    A neighbour that was started again elsewhere takes over its name, whichever side connects, if it `hands_over`.
    """
    return _listening(_made(context, zmq.ROUTER, limits), address, who, keys, hands_over)


def mutual(
    context: Context, address: str, name: bytes, who: str, limits: Limits, keys: Keys | None = None
) -> tuple[Socket, Socket, str]:
    """A socket that others connect to and that can be connected to others; monitor and place as above.

    Under this name, that is taken over as above; without one connections are called as they come, and nobody can take
    over another's.
    """
    socket = _made(context, zmq.ROUTER, limits)
    if name:
        socket.setsockopt(zmq.ROUTING_ID, name)
    _try_again(socket)
    return _listening(socket, address, who, keys, hands_over=bool(name))


def connecting(context: Context, limits: Limits) -> tuple[Socket, Socket]:
    """A socket to be connected to one other's, and again when the connection is lost; its monitor."""
    socket = _made(context, zmq.DEALER, limits)
    monitor = _monitor_of(socket)
    _try_again(socket)
    return socket, monitor


def knocking(
    context: Context, addresses: Iterable[str], limits: Limits, keys: Keys | None = None
) -> tuple[Socket, Socket]:
    """A socket that is connected to others' as soon as they are there, and again; its monitor.

    They are told apart by their addresses. One socket, since each that is waited at costs time whenever a node waits.
    """
    socket = _made(context, zmq.ROUTER, limits)
    monitor = _monitor_of(socket, COMES_AND_GOES | NOT_LET_IN)
    socket.setsockopt(zmq.RECONNECT_IVL, KNOCK_EVERY)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, KNOCK_EVERY_AT_MOST)
    for address in addresses:
        if keys is not None and not is_local(address):
            keys.connects(socket)
        socket.setsockopt(zmq.CONNECT_ROUTING_ID, address.encode())
        socket.connect(address)
    return socket, monitor


def answering(context: Context, limits: Limits) -> tuple[Socket, Socket]:
    """A socket that others knock at, when it listens somewhere; its monitor."""
    socket = _made(context, zmq.ROUTER, limits)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return socket, _monitor_of(socket)


def listen_at_too(socket: Socket, address: str, keys: Keys | None = None) -> int:
    """Listen at an address, for whoever looks for a book; why not, as the system numbers it, if that cannot be."""
    if keys is not None and not is_local(address):
        keys.listens(socket, as_book=True)
    try:
        _bind(socket, address)
    except zmq.ZMQError as error:
        return error.errno or -1
    return 0


def comings_and_goings(monitor: Socket) -> Iterator[SocketEvent]:
    """What has happened to the connections of a watched socket since it was last asked."""
    while True:
        try:
            what = monitor.recv(_NOW)
        except zmq.Again:
            return
        endpoint = monitor.recv()  # both parts of a message are there
        event, value = _EVENT.unpack(what)
        yield SocketEvent(endpoint.decode(), event == _THERE, value, event == _ACCEPTED, bool(event & _NOT_LET_IN))


def _monitor_of(socket: Socket, events: int = COMES_AND_GOES) -> Socket:
    """A socket's monitor. ZeroMQ's thread waits for room in it: there is always some, and whoever reads it does so
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
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_WITHIN)  # this and what follows is for TCP alone
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, ASK_AFTER)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, ASK_AFTER)
    socket.setsockopt(zmq.TCP_MAXRT, GONE_AFTER)
    return socket


def _listening(
    socket: Socket, address: str, who: str, keys: Keys | None, hands_over: bool
) -> tuple[Socket, Socket, str]:
    monitor = _monitor_of(socket)  # before anybody can connect
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
        raise UsageError(f"{who} cannot listen at {address}: {why}; choose another port") from None
    return socket, monitor, socket.getsockopt_string(zmq.LAST_ENDPOINT) if address.endswith("*") else address


def _bind(socket: Socket, address: str) -> None:
    """Listen; at a file only if nobody does, since ZeroMQ would take it away from whoever listens there."""
    if not is_local(address) or address.startswith("ipc://@"):
        socket.bind(address)
        return
    try:
        with place_for(address.removeprefix("ipc://")):
            socket.bind(address)
    except FileExistsError:
        raise zmq.ZMQError(zmq.EADDRINUSE) from None


def _try_again(socket: Socket) -> None:
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_AT_MOST)
