"""Frames as a node itself would put them on a socket, whatever they say: with a seal, where there is one."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from codedreduce.net.carrier import Carrier, PeerLink
from codedreduce.net.frames import OPENS


def sealed(carrier: Carrier, link: PeerLink, plane: int, frames: Sequence[bytes]) -> list[bytes]:
    """With the seal of whoever sends them; what is of its session counts as one of its messages."""
    if not frames or not carrier._has_seals(link, plane):
        return list(frames)
    first, *others = frames
    counts = first[1:17] == link.session.outgoing and first[:1] not in OPENS
    return [link.seals[plane].put(first, others[0] if others else None, counts=counts), *others]


def put(carrier: Carrier, link: PeerLink, plane: int, frames: Sequence[bytes], *, seals: bool = True) -> None:
    """Let a node send them; without a seal, if that is what shall be wrong with them."""
    socket, name = carrier._way(link, plane)
    assert socket is not None
    said = sealed(carrier, link, plane, frames) if seals else list(frames)
    socket.send_multipart([*([name] if name is not None else []), *said], zmq.DONTWAIT)
