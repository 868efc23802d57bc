"""Seals: what was changed, left out, repeated or put elsewhere is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedreduce.net.frames import SEAL_BYTES, Damaged, OutOfOrder, Seal, fresh_name

TAG = bytes(range(16))
FIRST = st.binary(min_size=0, max_size=60).map(lambda body: b"\x00" + TAG + body)
PAYLOAD = st.one_of(st.none(), st.binary(max_size=200))


def opened(seal: Seal, sealed: bytes, payload: bytes | None) -> tuple[int, bytes]:
    return seal.take_off(sealed, None if payload is None else memoryview(payload))


@given(first=FIRST, payload=PAYLOAD)
def test_what_was_sent_is_what_comes(first: bytes, payload: bytes | None) -> None:
    here, there = Seal(1, 2, 1), Seal(1, 2, 1)
    for expected in (1, 2, 3):
        place, came = opened(there, here.put(first, payload, counts=True), payload)
        assert (place, came) == (expected, first)
        there.check_place(place, came)
    assert opened(there, here.put(first, payload, counts=False), payload) == (0, first)


@given(first=FIRST, payload=PAYLOAD, data=st.data())
def test_any_bit_that_is_changed_is_found(first: bytes, payload: bytes | None, data: st.DataObject) -> None:
    seal = Seal(1, 2, 1)
    whole = bytearray(seal.put(first, payload, counts=True) + (payload or b""))
    cut = SEAL_BYTES + len(first)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged, match="digest is wrong"):
        opened(seal, bytes(whole[:cut]), None if payload is None else bytes(whole[cut:]))


@given(first=FIRST, payload=st.binary(min_size=1, max_size=50), moved=st.integers(1, 50))
def test_nothing_moves_from_one_frame_to_the_other(first: bytes, payload: bytes, moved: int) -> None:
    seal = Seal(1, 2, 1)
    sealed = seal.put(first, payload, counts=True)
    with pytest.raises(Damaged):
        opened(seal, sealed + payload[:moved], payload[moved:])


@pytest.mark.parametrize("other", [Seal(2, 1, 1), Seal(1, 3, 1), Seal(0, 2, 1), Seal(1, 2, 0)])
def test_what_is_for_another_is_not_taken(other: Seal) -> None:
    """Sent back, to another, under another's name, or on the other plane."""
    with pytest.raises(Damaged):
        opened(other, Seal(1, 2, 1).put(b"\x00" + TAG, b"x", counts=True), b"x")


def test_the_order_of_a_session_is_kept_and_another_begins_anew() -> None:
    here, there = Seal(1, 2, 1), Seal(1, 2, 1)
    first, other = b"\x00" + TAG, b"\x00" + bytes(16)
    one, two, three = (here.put(first, b"x", counts=True) for _ in range(3))
    for wrong in (one, three):  # repeated, and with one left out
        seal = Seal(1, 2, 1)
        seal.check_place(*opened(seal, one, b"x"))
        with pytest.raises(OutOfOrder, match="expected message 2"):
            seal.check_place(*opened(seal, wrong, b"x"))
    there.check_place(*opened(there, one, b"x"))
    there.check_place(*opened(there, two, b"x"))
    anew = here.put(other, b"x", counts=True)
    there.check_place(*opened(there, anew, b"x"))


@pytest.mark.parametrize("size", [0, 1, SEAL_BYTES - 1])
def test_what_is_too_short_for_a_seal_is_found(size: int) -> None:
    with pytest.raises(Damaged, match=f"a frame of {size} bytes"):
        opened(Seal(1, 2, 0), bytes(size), None)


def test_names_are_never_the_same() -> None:
    assert len({fresh_name() for _ in range(100)}) == 100
    assert all(fresh_name()[0] for _ in range(100)), "a zero is for names that ZeroMQ gives"
