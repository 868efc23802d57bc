"""What a socket takes from anybody, whoever it is: how large a frame, how many that nobody has read yet, how long a
greeting, how many connections of which it is not known whose they are.

They are set on the sockets themselves, so that what is beyond them never takes memory here.
"""

from __future__ import annotations

from typing import NamedTuple

import zmq

from codedreduce.protocol import Settings
from codedreduce.protocol.core.settings import STATE_CHUNK
from codedreduce.protocol.core.wire import LARGEST_HEADER

#: Milliseconds that a connection has to say what it is, in ZeroMQ's own words.
GREETED_WITHIN = 10_000

#: Seconds that one which has done so has to say whose it is, in ours.
NAMED_WITHIN = 10.0

#: Connections of which that is not known yet: when there are more, the oldest is cut.
MOST_NAMELESS = 64

#: Connections that the kernel holds until they are looked at.
MOST_AT_THE_DOOR = 256

#: Bytes that a frame has more when it is encrypted: what it is, a number used once, what it is checked by.
_SEALED = 64

#: Bytes before a message in its first frame, at most.
_BEGINS = 64

#: Bytes that a node can need to say where another listens.
_PLACE = 512

#: A reference into shared memory is smaller than this, whatever it refers to.
_REFERENCE = 256


class Limits(NamedTuple):
    """Of one socket: bytes in a frame, and messages of one neighbour that wait to be read."""

    frame: int
    waiting: int


def of_control() -> Limits:
    """For small messages."""
    return Limits(LARGEST_HEADER + _BEGINS, waiting=256)


def of_data(settings: Settings) -> Limits:
    """For chunks of this run's vectors, and pieces of states."""
    return Limits(
        max(settings.largest_chunk, STATE_CHUNK, LARGEST_HEADER + _BEGINS, _REFERENCE),
        waiting=4 * max(16, settings.window),
    )


def of_books(nodes: int) -> Limits:
    """For who says where it listens, and is told where so many others do."""
    return Limits(LARGEST_HEADER + _PLACE * nodes, waiting=16)


def limit(socket: zmq.Socket[bytes], limits: Limits) -> None:
    """Let a socket that is not connected yet take no more."""
    socket.setsockopt(zmq.MAXMSGSIZE, limits.frame + _SEALED)
    socket.setsockopt(zmq.RCVHWM, limits.waiting)
    socket.setsockopt(zmq.HANDSHAKE_IVL, GREETED_WITHIN)
    socket.setsockopt(zmq.BACKLOG, MOST_AT_THE_DOOR)
