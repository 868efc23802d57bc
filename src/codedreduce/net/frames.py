"""The format of a message between neighbours on a socket.

The first frame contains a byte for the kind, the tag of the session, and the body. A second frame contains a chunk's
bytes, or the reference to them in shared memory. A sender of anything else loses its connection. Over unencrypted TCP
a seal precedes the first frame: it reveals frames that were damaged, lost, moved or reordered.

    digest | place | the first frame | and in a second one a chunk's bytes

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

#: A message of the sans-IO machines. For a chunk: whether its arrival is acknowledged, and whether it is a reference.
PLAIN, MARKED, BY_REFERENCE, MARKED_BY_REFERENCE = b"\x00", b"\x01", b"\x02", b"\x03"
MARKS = frozenset((MARKED, MARKED_BY_REFERENCE))
REFERENCES = frozenset((BY_REFERENCE, MARKED_BY_REFERENCE))

#: The number of marked messages that have arrived.
ACKNOWLEDGEMENT = b"\x04"

#: OPEN of a session; the second kind asks for an answer.
OPEN, OPEN_ASKING = b"\x05", b"\x06"
OPENS = frozenset((OPEN, OPEN_ASKING))

_COUNT = struct.Struct("!Q")
_BEGINS = 1 + TAG_BYTES

#: The number of frames of each kind on each plane; a kind that is not listed is invalid there.
_FRAMES = (
    {PLAIN: 1, ACKNOWLEDGEMENT: 1, OPEN: 1, OPEN_ASKING: 1},
    {PLAIN: 2, MARKED: 2, BY_REFERENCE: 2, MARKED_BY_REFERENCE: 2, OPEN: 1, OPEN_ASKING: 1},
)
_CALLED = ("small", "data")


def chunk_kind(*, marked: bool, by_reference: bool) -> bytes:
    """The kind of a chunk."""
    if by_reference:
        return MARKED_BY_REFERENCE if marked else BY_REFERENCE
    return MARKED if marked else PLAIN


def split(first: bytes, frames: int, plane: int) -> tuple[bytes, bytes, bytes]:
    """Split a message with this many frames on a plane into its kind, its session's tag, and the rest of its first
    frame.
    """
    if len(first) < _BEGINS:
        raise WireError(f"a frame of {len(first)} bytes; the shortest has {_BEGINS}")
    kind = first[:1]
    wanted = _FRAMES[plane].get(kind)
    if wanted is None:
        raise WireError(f"a {_CALLED[plane]} message of the invalid kind {kind[0]}")
    if frames != wanted:
        raise WireError(f"a {_CALLED[plane]} message of {frames} frames")
    if kind in OPENS and len(first) != _BEGINS:
        raise WireError(f"an OPEN of {len(first)} bytes; expected {_BEGINS}")
    return kind, first[1:_BEGINS], first[_BEGINS:]


def count_to_bytes(count: int) -> bytes:
    """A count, as an acknowledgement contains it."""
    return _COUNT.pack(count)


def count_from_bytes(body: bytes) -> int:
    """The count in an acknowledgement."""
    if len(body) != _COUNT.size:
        raise WireError(f"an acknowledgement of {len(body)} bytes")
    count: int = _COUNT.unpack(body)[0]
    return count


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
