"""Seals: a header on each frame over unencrypted TCP that reveals frames which were damaged, lost, moved or reordered.

    digest | place | the frame, as `frames` has it | and in a second one a chunk's bytes

The digest covers all that follows, and the sender, the receiver and the plane. The place counts the messages of a
session on that plane, from one; an OPEN has none. A seal finds accidental damage only: an attacker can make one.
Where that matters, connections are encrypted (`keys`).
"""

from __future__ import annotations

import os
import struct

from codedreduce.digests import SIZE, checksum
from codedreduce.errors import WireError
from codedreduce.net.sessions import TAG_BYTES

#: The number of a message in its session.
_PLACE = struct.Struct("!Q")

#: Bytes of a seal.
SEAL_BYTES = SIZE + _PLACE.size

#: What the digest covers besides the bytes: sender, receiver and plane; and the length of the first frame, so that no
#: bytes can move from one frame to the other.
_ENDS, _LONG = struct.Struct("!IIB"), struct.Struct("!I")

#: Bytes of a name that cannot be guessed.
_NAME_BYTES = 16


class Damaged(WireError):
    """A frame differs from what was sent, or an earlier message is missing."""


class OutOfOrder(Damaged):
    """A frame arrived as it was sent, but is not the next one."""


def fresh_name() -> bytes:
    """A unique name for a connection on this socket; the names that ZeroMQ generates begin with a zero byte."""
    return b"\x01" + os.urandom(_NAME_BYTES - 1)


class Seal:
    """The seals of frames from one node to another on one plane; both nodes have this object."""

    def __init__(self, sender: int, receiver: int, plane: int) -> None:
        self._ends = _ENDS.pack(sender, receiver, plane)
        self._tag = b""
        self._count = 0

    def put(self, first: bytes, payload: bytes | memoryview | None, *, counts: bool) -> bytes:
        """The first frame of the session's next message, or of an OPEN, with its seal."""
        said = _PLACE.pack(self._next(_tag_of(first)) if counts else 0) + first
        return self._digest(said, payload) + said

    def take_off(self, sealed: bytes, payload: memoryview | None) -> tuple[int, bytes]:
        """The place in the seal of a message, and the message's first frame."""
        if len(sealed) < SEAL_BYTES:
            raise Damaged(f"a frame of {len(sealed)} bytes; its seal alone has {SEAL_BYTES}")
        if sealed[:SIZE] != self._digest(sealed[SIZE:], payload):
            raise Damaged("a frame that was damaged on the way: its digest is wrong")
        return _PLACE.unpack_from(sealed, SIZE)[0], sealed[SEAL_BYTES:]

    def check_place(self, place: int, first: bytes) -> None:
        """Check that this is the next message of its session."""
        expected = self._next(_tag_of(first))
        if place != expected:
            raise OutOfOrder(f"message {place} of a session; expected message {expected}")

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
