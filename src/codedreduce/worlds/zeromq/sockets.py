"""The sockets of a node: the one place that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from codedreduce.errors import UsageError

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

#: Milliseconds until a lost connection is tried again, at first and at most; and one that is not there yet.
RECONNECT, RECONNECT_AT_MOST = 20, 500
KNOCK_EVERY = 10

#: What a watched socket tells: that its connection is there, or gone.
COMES_AND_GOES = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED

#: Milliseconds that what was handed over has to leave when a socket is closed.
LAST_WORDS = 200


def bound(context: Context, address: str, who: str) -> tuple[Socket, str]:
    """A socket that others connect to and are told apart by their names, and where it listens."""
    socket = _made(context, zmq.ROUTER)
    return socket, _bind(socket, address, who)


def mutual(context: Context, address: str, name: bytes, who: str) -> tuple[Socket, Socket, str]:
    """A socket under this name that others connect to and that can be connected to others (`reach`).

    With it, one that tells when connections of either kind come and go, and where it listens.
    """
    socket = _made(context, zmq.ROUTER)
    socket.setsockopt(zmq.ROUTING_ID, name)
    _try_again(socket)
    monitor = socket.get_monitor_socket(COMES_AND_GOES)  # before anybody can connect
    return socket, monitor, _bind(socket, address, who)


def reach(socket: Socket, address: str, name: bytes) -> None:
    """Connect such a socket to another's, whose name is this."""
    socket.setsockopt(zmq.CONNECT_ROUTING_ID, name)
    socket.connect(address)


def connections(monitors: Iterable[Socket]) -> Iterator[tuple[str, bool]]:
    """What watched sockets have to tell: which connection has come (True) or gone (False).

    A connection that this side made is called by where it leads, one that others made by where this side listens.
    """
    for monitor in monitors:
        while monitor.poll(0):
            told = recv_monitor_message(monitor)
            yield told["endpoint"].decode(), told["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED


def knocking(context: Context, address: str) -> Socket:
    """A socket that is connected to another's as soon as that one is there."""
    socket = _made(context, zmq.DEALER)
    socket.setsockopt(zmq.RECONNECT_IVL, KNOCK_EVERY)
    socket.connect(address)
    return socket


def connected(context: Context, address: str, name: bytes, *, watched: bool) -> tuple[Socket, Socket | None]:
    """A socket that is connected to another's under this name, and again when the connection is lost.

    With it, if it is watched, one that tells when the connection comes and goes.
    """
    socket = _made(context, zmq.DEALER)
    monitor = socket.get_monitor_socket(COMES_AND_GOES) if watched else None
    socket.setsockopt(zmq.ROUTING_ID, name)
    _try_again(socket)
    socket.connect(address)
    return socket, monitor


def _made(context: Context, kind: int) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)  # the protocol's windows bound what is in flight
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket


def _bind(socket: Socket, address: str, who: str) -> str:
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        why = zmq.strerror(error.errno or 0).lower()
        raise UsageError(f"{who} cannot listen at {address}: {why}; choose another port") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT) if address.endswith("*") else address


def _try_again(socket: Socket) -> None:
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_AT_MOST)
