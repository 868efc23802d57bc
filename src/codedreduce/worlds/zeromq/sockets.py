"""The sockets of a node: the one place that makes them."""

from __future__ import annotations

import zmq

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
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        why = zmq.strerror(error.errno or 0).lower()
        raise UsageError(f"{who} cannot listen at {address}: {why}; choose another port") from None
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT) if address.endswith("*") else address


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
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_AT_MOST)
    socket.connect(address)
    return socket, monitor


def _made(context: Context, kind: int) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)  # the protocol's windows bound what is in flight
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
