"""Strangers, in a process of their own: they connect to every socket that they are told of, and send what is none.

    python -m tests.fuzz.sender ORDER

The order is JSON; a line is written for every connection: which role, and how many messages it was sent.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from codedreduce.net.connections import name_of
from codedreduce.run.agreement import Meeting
from tests.fuzz.mutations import Mutations
from tests.fuzz.strangers import BOOK, Raw

#: Messages that a stranger sends before it is another.
AT_ONCE = 20


class Place(msgspec.Struct, frozen=True):
    """A socket of a run: whose, which, where, and what that node is."""

    node: int
    plane: str
    address: str
    role: str


class Order(msgspec.Struct, frozen=True):
    """How many messages are to be sent where; `run` and `nodes` are those of the run."""

    places: list[Place]
    run: str
    nodes: int
    chunk_bytes: int
    frames: int
    seed: int


class Visit(msgspec.Struct, frozen=True):
    """A role was sent so many messages."""

    role: str
    frames: int


def send_all(order: Order) -> None:
    """Do it."""
    mutations = Mutations(order.seed, order.chunk_bytes)
    left, turn, who_asked = order.frames, 0, os.getppid()
    while left > 0 and os.getppid() == who_asked:
        place = order.places[turn % len(order.places)]
        turn += 1
        frames = _visit(place, min(AT_ONCE, left), order, mutations)
        if frames:
            print(msgspec.json.encode(Visit(place.role, frames)).decode(), flush=True)
            left -= frames


def _visit(place: Place, frames: int, order: Order, mutations: Mutations) -> int:
    """One connection, under a name of nobody or of that node; how many messages were sent by it."""
    random = mutations.random
    name = random.choice((None, b"\x01" + random.randbytes(8), name_of(2**31), name_of(place.node or 77)))
    try:
        one = Raw(place.address, name)
    except OSError:  # a socket that has as many as it bears of those of which nothing is known
        time.sleep(0.01)
        return 0
    if place.plane == BOOK:
        said = [mutations.registration(Meeting(run=order.run), order.nodes) for _ in range(frames)]
    else:
        said = [mutations.frames() for _ in range(frames)]
    try:
        one.send(said)
    except OSError:  # it was cut, when most of it was there
        pass
    else:
        one.was_cut(within=0.05)
    one.close()
    return frames


if __name__ == "__main__":
    send_all(msgspec.json.decode(sys.argv[1], type=Order))
