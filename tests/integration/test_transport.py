"""What comes through a node's sockets: neighbours' messages, and what is none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from codedreduce import MasterWorker
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Transmit
from codedreduce.protocol.messages import ModelChunk, Offer, ShareChunk
from codedreduce.protocol.wire import encode
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.run import Meeting, Run
from codedreduce.worlds.zeromq.carrier import Arrived, Endpoints
from codedreduce.worlds.zeromq.transport import Transport

SETTINGS = Settings(length=6)
RUN = Run(meeting=Meeting(run="x", shared_memory=False), plan=MasterWorker(3).plan(samples=6), settings=SETTINGS)

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def listening(context: Context) -> tuple[Transport, Endpoints]:
    parent = Transport(context, 0, SETTINGS, Buffers(RUN, 0))
    return parent, parent.listen("tcp://127.0.0.1")


def taken(node: Transport, count: int) -> list[Arrived]:
    """The next messages of a node, taken as its driver does."""
    poller = zmq.Poller()
    for socket in node.sockets:
        poller.register(socket, zmq.POLLIN)
    found: list[Arrived] = []
    while len(found) + len(node.unreadable) < count:
        ready = dict(poller.poll(5000))
        assert ready, f"only {len(found)} of {count} messages came"
        found += node.receive(ready)
    return found


def test_vectors_and_small_messages_come_through_both_ways(context: Context) -> None:
    parent, endpoints = listening(context)
    child = Transport(context, 3, SETTINGS, Buffers(RUN, 3))
    child.connect({0: endpoints})
    vector = np.arange(6, dtype=np.float32)
    share, offer = ShareChunk(round=2, task=3, index=0), Offer(round=2, task=3)
    assert child.send(Transmit(to=0, message=share, data=vector, marked=True))
    assert child.send(Transmit(to=0, message=offer))
    arrived = {type(one.message): one for one in taken(parent, 2)}
    assert arrived[Offer] == Arrived(sender=3, message=offer)
    assert arrived[ShareChunk].message == share
    assert arrived[ShareChunk].marked
    assert arrived[ShareChunk].data is not None
    assert arrived[ShareChunk].data.tobytes() == vector.tobytes()
    assert parent.send(Transmit(to=3, message=ModelChunk(round=3, index=0), data=vector))
    assert parent.acknowledge(3)
    model, acknowledgement = sorted(taken(child, 2), key=lambda one: one.message is None)
    assert (model.sender, model.message, model.marked) == (0, ModelChunk(round=3, index=0), False)
    assert acknowledgement == Arrived(sender=0, message=None)


def test_a_socket_that_is_not_named_is_not_asked(context: Context) -> None:
    parent, endpoints = listening(context)
    child = Transport(context, 3, SETTINGS, Buffers(RUN, 3))
    child.connect({0: endpoints})
    child.send(Transmit(to=0, message=Offer(round=1, task=3)))
    control, data = parent.sockets
    assert control.poll(5000)
    assert list(parent.receive({data: zmq.POLLIN})) == []
    assert [one.sender for one in parent.receive({control: zmq.POLLIN, data: zmq.POLLIN})] == [3]


GOOD = b"\x01" + encode(ShareChunk(round=2, task=3, index=0))


@pytest.mark.parametrize(
    ("plane", "frames", "why"),
    [
        (0, [b"nonsense"], "wire version"),
        (0, [encode(Offer(round=1, task=3)), b"more"], "a small message of 2 frames"),
        (1, [GOOD], "a data message of 1 frames"),
        (1, [GOOD, bytes(24), b"more"], "a data message of 3 frames"),
        (1, [GOOD, bytes(20)], "must have 24 bytes and came with 20"),
        (1, [b"\x03" + GOOD[1:], b"anywhere"], "does not share"),
    ],
)
def test_what_cannot_be_read_is_told_and_holds_nobody_up(
    context: Context, plane: int, frames: list[bytes], why: str
) -> None:
    """Whatever a neighbour sends, the next message comes through, and its window is opened if it waits for that."""
    parent, endpoints = listening(context)
    rogue = [context.socket(zmq.DEALER), context.socket(zmq.DEALER)]
    for socket, where in zip(rogue, endpoints, strict=True):
        socket.setsockopt(zmq.ROUTING_ID, (3).to_bytes(4, "big"))
        socket.connect(where)
    rogue[0].send(encode(Offer(round=1, task=3)))  # so that its control connection is there to be answered on
    assert len(taken(parent, 1)) == 1
    rogue[plane].send_multipart(frames)
    assert taken(parent, 1) == []
    ((sender, told),) = parent.unreadable
    assert sender == 3
    assert why in told
    if plane == 1:
        assert rogue[0].recv() == b""
    parent.unreadable.clear()
    rogue[1].send_multipart([GOOD, bytes(24)])
    assert [one.sender for one in taken(parent, 1)] == [3]
