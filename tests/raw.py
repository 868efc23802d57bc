"""What a node does at its sockets: it connects, asks for addresses, and sends frames, whatever they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import zmq

from codedreduce.net.carrier import Carrier
from codedreduce.net.connections import Endpoints, PeerLink
from codedreduce.net.frames import OPENS
from codedreduce.net.keys import Guard
from codedreduce.net.rendezvous.registration import Registration
from codedreduce.net.rendezvous.visiting import Visitor
from codedreduce.net.sockets import Context
from codedreduce.run.agreement import Meeting


def find(context: Context, meeting: Meeting, registration: Registration) -> dict[int, Endpoints]:
    """Ask once for the addresses of other nodes."""
    guard = Guard(context, meeting.secret, meeting.timing) if meeting.secret is not None else None
    visitor = Visitor(context, meeting, registration, guard=guard)
    try:
        return visitor.find()
    finally:
        visitor.close()
        if guard is not None:
            guard.close()


def connect(carrier: Carrier, neighbours: Mapping[int, Endpoints]) -> None:
    """Connect to neighbours that listen there."""
    carrier.expect(neighbours)
    for peer, endpoints in neighbours.items():
        carrier.move(peer, endpoints)


def sealed(link: PeerLink, plane: int, frames: Sequence[bytes]) -> list[bytes]:
    """With the seal of whoever sends them; what is of its session counts as one of its messages."""
    if not frames or not link.planes[plane].has_seals:
        return list(frames)
    first, *others = frames
    counts = first[1:17] == link.session.outgoing and first[:1] not in OPENS
    return [link.planes[plane].seal.put(first, others[0] if others else None, counts=counts), *others]


def put(link: PeerLink, plane: int, frames: Sequence[bytes], *, seals: bool = True) -> None:
    """Let a node send them; without a seal, if that is what shall be wrong with them."""
    connection = link.planes[plane]
    said = sealed(link, plane, frames) if seals else list(frames)
    named = [connection.called] if connection.called is not None else []
    connection.socket.send_multipart([*named, *said], zmq.DONTWAIT)
