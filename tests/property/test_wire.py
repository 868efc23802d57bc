"""Bytes from the network: whatever they are, they are a message or a `WireError`."""

import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedreduce.errors import WireError
from codedreduce.protocol import Settings
from codedreduce.protocol.core.messages import (
    DATA,
    AnyMessage,
    Hello,
    ModelChunk,
    Offer,
    PartChunk,
    RingChunk,
    ShareChunk,
    StateChunk,
    SumChunk,
    Welcome,
)
from codedreduce.protocol.core.wire import LARGEST_HEADER, decode, encode
from tests.unit.peers import MESSAGES

LAYOUT = Settings(length=10, chunk=4)


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_round_trip(message: AnyMessage) -> None:
    payload = 0
    if isinstance(message, DATA) and not isinstance(message, RingChunk | StateChunk):
        payload = LAYOUT.chunk_bytes(message.index)
    assert decode(encode(message), payload, LAYOUT.chunk_bytes) == message


@settings(max_examples=2000)
@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes(data: bytes, payload: int) -> None:
    for header in (data, b"\x01" + data, b"\x01" + zlib.crc32(data).to_bytes(4, "big") + data):
        try:
            decode(header, payload, LAYOUT.chunk_bytes)
        except WireError:
            continue


@settings(max_examples=500)
@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=8), max_leaves=12), st.integers(0, 60))  # fmt: skip
def test_any_well_formed_structure(structure: object, payload: int) -> None:
    for body in (msgspec.msgpack.encode(structure), msgspec.msgpack.encode(["ShareChunk", structure, structure])):
        try:
            message = decode(b"\x01" + zlib.crc32(body).to_bytes(4, "big") + body, payload, LAYOUT.chunk_bytes)
        except WireError:
            continue
        assert message.round >= 0


@given(st.sampled_from(MESSAGES), st.data())
def test_any_flipped_bit_is_noticed(message: AnyMessage, data: st.DataObject) -> None:
    header = bytearray(encode(message))
    header[data.draw(st.integers(0, len(header) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(WireError):
        decode(bytes(header))


@pytest.mark.parametrize(
    ("header", "payload", "complaint"),
    [
        (b"", 0, "version nothing"),
        (b"\x02" + encode(Welcome())[1:], 0, "version 2"),
        (b"\x01" * (LARGEST_HEADER + 1), 0, "65537 bytes"),
        (encode(ModelChunk(index=0)), 15, "chunk 0 must have 16 bytes and came with 15"),
        (encode(ModelChunk(index=2)), 16, "chunk 2 must have 8 bytes and came with 16"),
        (encode(ShareChunk(task=1, index=3)), 16, "chunk 3 does not exist"),
        (encode(PartChunk(unit=0, first=0, last=1, index=0)), 15, "chunk 0 must have 16 bytes and came with 15"),
        (encode(PartChunk(unit=0, first=0, last=1, index=3)), 16, "chunk 3 does not exist"),
        (encode(SumChunk(index=2)), 16, "chunk 2 must have 8 bytes and came with 16"),
        (
            encode(StateChunk(index=0, of=1)),
            (1 << 18) + 1,
            "a piece of a state has 262145 bytes; the largest is 262144",
        ),
        (encode(Offer(task=1)), 4, "Offer came with 4 bytes; it carries none"),
        (encode(RingChunk(segment=0, index=0, finished=True)), 7, "a ring chunk has 7 bytes, not a multiple of 4"),
        (encode(Hello(plan="x" * 1001)), 0, "cannot be read"),
    ],
)
def test_complaints(header: bytes, payload: int, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(header, payload, LAYOUT.chunk_bytes)
