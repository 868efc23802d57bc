"""Limits of a socket for any sender: frame size, queued messages, handshake time, and number of unidentified
connections.

They are set on the sockets themselves, so that what exceeds them never takes memory here.
"""

from __future__ import annotations

from typing import NamedTuple

import zmq

from codedreduce.protocol import Settings
from codedreduce.protocol.core.settings import STATE_CHUNK
from codedreduce.protocol.core.wire import LARGEST_HEADER
from codedreduce.timing import Timing, milliseconds

#: Unidentified connections: if there are more, the oldest is cut.
MOST_NAMELESS = 64

#: Connections that the kernel queues until they are accepted.
MOST_AT_THE_DOOR = 256

#: Bytes that encryption adds to a frame: type, nonce and authenticator.
_SEALED = 64

#: Bytes before a message in its first frame, at most.
_BEGINS = 64

#: Bytes that the addresses of one node need, at most.
_PLACE = 512

#: A reference into shared memory is smaller than this.
_REFERENCE = 256


class Limits(NamedTuple):
    """Limits of one socket: bytes in a frame, messages of one neighbour that wait to be read, and all durations."""

    frame: int
    waiting: int
    timing: Timing


def of_control(timing: Timing) -> Limits:
    """For small messages."""
    return Limits(LARGEST_HEADER + _BEGINS, 256, timing)


def of_data(settings: Settings) -> Limits:
    """For chunks of this run's vectors, and chunks of states."""
    return Limits(
        max(settings.largest_chunk, STATE_CHUNK, LARGEST_HEADER + _BEGINS, _REFERENCE),
        4 * max(16, settings.window),
        settings.timing,
    )


def of_books(nodes: int, timing: Timing) -> Limits:
    """For registrations, and for answers with the addresses of this many nodes."""
    return Limits(LARGEST_HEADER + _PLACE * nodes, 16, timing)


def limit(socket: zmq.Socket[bytes], limits: Limits) -> None:
    """Apply limits to a socket that is not connected yet."""
    socket.setsockopt(zmq.MAXMSGSIZE, limits.frame + _SEALED)
    socket.setsockopt(zmq.RCVHWM, limits.waiting)
    socket.setsockopt(zmq.HANDSHAKE_IVL, milliseconds(limits.timing.handshake_timeout))
    socket.setsockopt(zmq.BACKLOG, MOST_AT_THE_DOOR)
