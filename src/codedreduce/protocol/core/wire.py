"""Messages as bytes: a version, a checksum, a msgpack header, and beside it the raw bytes of a chunk.

Nothing here trusts its input. It checks sizes before it allocates anything, every field against its bounds, and a chunk
against its required length. Wrong input raises `WireError` and changes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec

from codedreduce.errors import WireError
from codedreduce.protocol.core.messages import DATA, AnyChunk, AnyMessage, RingChunk, StateChunk
from codedreduce.protocol.core.settings import STATE_CHUNK

VERSION = 1

#: The largest header. The longest one lists missing chunks; a rank requests a longer list in several messages.
LARGEST_HEADER = 64 * 1024

_encode: Callable[[AnyMessage], bytes] = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_PREFIX = bytes([VERSION])


def encode(message: AnyMessage) -> bytes:
    """The header of a message.

    >>> from codedreduce.protocol.core.messages import Offer
    >>> decode(encode(Offer(round=3, task=7))) == Offer(round=3, task=7)
    True
    """
    body = _encode(message)
    return _PREFIX + zlib.crc32(body).to_bytes(4, "big") + body


def decode(
    header: bytes | memoryview, payload_bytes: int = 0, chunk_bytes: Callable[[int], int] | None = None
) -> AnyMessage:
    """Decode the message of a header, checked against the size of the chunk that came with it.

    `chunk_bytes(index)` is the required size of chunk `index` of the vector, or negative if there is no such chunk.
    """
    if len(header) > LARGEST_HEADER:
        raise WireError(f"a header has {len(header)} bytes; the largest is {LARGEST_HEADER}")
    if len(header) < 6 or header[0] != VERSION:
        found = header[0] if len(header) else "nothing"
        raise WireError(f"wire version {found}; this side supports version {VERSION}")
    body = header[5:]
    if zlib.crc32(body) != int.from_bytes(header[1:5], "big"):
        raise WireError("the checksum of a header does not match")
    try:
        message = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a header cannot be read: {error}") from None
    if not isinstance(message, DATA):
        if payload_bytes:
            raise WireError(f"{type(message).__name__} came with {payload_bytes} bytes; it carries none")
    elif isinstance(message, RingChunk):
        if payload_bytes % 4:
            raise WireError(f"a ring chunk has {payload_bytes} bytes, not a multiple of 4")
    elif isinstance(message, StateChunk):
        if payload_bytes > STATE_CHUNK:
            raise WireError(f"a piece of a state has {payload_bytes} bytes; the largest is {STATE_CHUNK}")
    elif chunk_bytes is not None:
        _check_chunk(message, payload_bytes, chunk_bytes(message.index))
    return message


def _check_chunk(message: AnyChunk, payload_bytes: int, expected: int) -> None:
    if expected < 0:
        raise WireError(f"chunk {message.index} does not exist in this vector")
    if payload_bytes != expected:
        raise WireError(f"chunk {message.index} must have {expected} bytes and came with {payload_bytes}")
