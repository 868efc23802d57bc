"""The format of a message between neighbours on a socket.

The first frame contains a byte for the kind, the tag of the session, and the body. A second frame contains a chunk's
bytes, or the reference to them in shared memory. A sender of anything else loses its connection. Over unencrypted TCP
a seal precedes the first frame (`seals`).
"""

from __future__ import annotations

import struct

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

#: Where others listen now.
MOVED = b"\x07"

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
