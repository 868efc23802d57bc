"""Seals: what is put ahead of a frame that travels by TCP in the clear, so that it is found out if it is not what was
sent, or not where and when it was sent.

    digest | place | the frame, as `frames` has it | and in a second one a chunk's bytes

The digest is of all that follows, and of who sends it to whom and on which plane. The place counts the messages of a
session on that plane, from one; an OPEN has none. It finds what happened by chance: whoever wants to can make one.
Where that matters connections are encrypted (`keys`).
"""

from __future__ import annotations

import os
import struct

from codedreduce.digests import SIZE, checksum
from codedreduce.errors import WireError
from codedreduce.net.sessions import TAG_BYTES

#: Which message of its session this is.
_PLACE = struct.Struct("!Q")

#: What a seal takes of a frame.
SEAL_BYTES = SIZE + _PLACE.size

#: What is said beside the bytes: sender, receiver, plane; and how long the first frame is, so that nothing can be moved
#: from one to the other.
_ENDS, _LONG = struct.Struct("!IIB"), struct.Struct("!I")

#: Bytes of a name that nobody can guess.
_NAME_BYTES = 16


class Damaged(WireError):
    """What came is not what was sent, or something else is missing before it."""


class OutOfOrder(Damaged):
    """It is what was sent, and not what was to come next."""


def fresh_name() -> bytes:
    """What a connection is called here, if nobody else can be called so; ZeroMQ's own names begin with a zero."""
    return b"\x01" + os.urandom(_NAME_BYTES - 1)


class Seal:
    """Of what goes from one node to another on one plane; each of the two has it."""

    def __init__(self, sender: int, receiver: int, plane: int) -> None:
        self._ends = _ENDS.pack(sender, receiver, plane)
        self._tag = b""
        self._count = 0

    def put(self, first: bytes, payload: bytes | memoryview | None, *, counts: bool) -> bytes:
        """The first frame of the session's next message, or of an OPEN, with its seal."""
        said = _PLACE.pack(self._next(_tag_of(first)) if counts else 0) + first
        return self._digest(said, payload) + said

    def take_off(self, sealed: bytes, payload: memoryview | None) -> tuple[int, bytes]:
        """The place that a message says to have, and its first frame."""
        if len(sealed) < SEAL_BYTES:
            raise Damaged(f"a frame of {len(sealed)} bytes; its seal alone has {SEAL_BYTES}")
        if sealed[:SIZE] != self._digest(sealed[SIZE:], payload):
            raise Damaged("something whose digest is wrong: it is not what was sent")
        return _PLACE.unpack_from(sealed, SIZE)[0], sealed[SEAL_BYTES:]

    def check_place(self, place: int, first: bytes) -> None:
        """Whether this is the message of its session that comes next."""
        expected = self._next(_tag_of(first))
        if place != expected:
            raise OutOfOrder(f"message {place} of a session where {expected} was to come")

    def _next(self, tag: bytes) -> int:
        if tag != self._tag:
            self._tag, self._count = tag, 0
        self._count += 1
        return self._count

    def _digest(self, said: bytes, payload: bytes | memoryview | None) -> bytes:
        small = self._ends + _LONG.pack(len(said)) + said
        parts = (small,) if payload is None else (small, payload)
        return checksum(parts)


def _tag_of(first: bytes) -> bytes:
    return first[1 : 1 + TAG_BYTES]
