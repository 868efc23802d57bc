"""What a message between neighbours looks like on a socket.

The first frame: a byte that says what it is, the tag of the session, and what belongs to it. A chunk's bytes, or where
they lie in shared memory, follow in a second frame. What is anything else costs its sender the connection. By TCP in
the clear there is a seal ahead of it (`seals`).
"""

from __future__ import annotations

import struct

from codedreduce.errors import WireError
from codedreduce.net.sessions import TAG_BYTES

#: A message of the machines; of a chunk, whether its arrival is to be told, and whether its bytes lie elsewhere.
PLAIN, MARKED, BY_REFERENCE, MARKED_BY_REFERENCE = b"\x00", b"\x01", b"\x02", b"\x03"
MARKS = frozenset((MARKED, MARKED_BY_REFERENCE))
REFERENCES = frozenset((BY_REFERENCE, MARKED_BY_REFERENCE))

#: How many marked messages have come.
ACKNOWLEDGEMENT = b"\x04"

#: OPEN of a session; the second asks for an answer.
OPEN, OPEN_ASKING = b"\x05", b"\x06"
OPENS = frozenset((OPEN, OPEN_ASKING))

#: Where others listen now.
MOVED = b"\x07"

_COUNT = struct.Struct("!Q")
_BEGINS = 1 + TAG_BYTES

#: How many frames each of them has on each plane; what is not here is not said there.
_FRAMES = (
    {PLAIN: 1, ACKNOWLEDGEMENT: 1, OPEN: 1, OPEN_ASKING: 1},
    {PLAIN: 2, MARKED: 2, BY_REFERENCE: 2, MARKED_BY_REFERENCE: 2, OPEN: 1, OPEN_ASKING: 1},
)
_CALLED = ("small", "data")


def chunk_kind(*, marked: bool, by_reference: bool) -> bytes:
    """What a chunk is."""
    if by_reference:
        return MARKED_BY_REFERENCE if marked else BY_REFERENCE
    return MARKED if marked else PLAIN


def split(first: bytes, frames: int, plane: int) -> tuple[bytes, bytes, bytes]:
    """What a message of so many frames is that came on a plane, the tag of its session, and the rest of the first."""
    if len(first) < _BEGINS:
        raise WireError(f"a frame of {len(first)} bytes; the shortest has {_BEGINS}")
    kind = first[:1]
    wanted = _FRAMES[plane].get(kind)
    if wanted is None:
        raise WireError(f"a {_CALLED[plane]} message of kind {kind[0]}, which there is not")
    if frames != wanted:
        raise WireError(f"a {_CALLED[plane]} message of {frames} frames")
    if kind in OPENS and len(first) != _BEGINS:
        raise WireError(f"an opening of {len(first)} bytes; it has {_BEGINS}")
    return kind, first[1:_BEGINS], first[_BEGINS:]


def count_to_bytes(count: int) -> bytes:
    """A count, as an acknowledgement says it."""
    return _COUNT.pack(count)


def count_from_bytes(body: bytes) -> int:
    """The count of an acknowledgement."""
    if len(body) != _COUNT.size:
        raise WireError(f"an acknowledgement of {len(body)} bytes")
    count: int = _COUNT.unpack(body)[0]
    return count
