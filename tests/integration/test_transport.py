"""What comes through a node's sockets: neighbours' messages, and what is none."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import zmq

from codedreduce import MasterWorker
from codedreduce.memory.arena import Reference
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Arrived, Carrier, Gone, News, Reached
from codedreduce.net.connections import Endpoints
from codedreduce.net.frames import ACKNOWLEDGEMENT, MARKED, MARKED_BY_REFERENCE, OPEN, PLAIN
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Transmit
from codedreduce.protocol.core.messages import Goodbye, Hello, ModelChunk, Offer, Settle, ShareChunk
from codedreduce.protocol.core.wire import encode
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Meeting, Run
from codedreduce.timing import Timing
from tests.raw import connect, put
from tests.waiting import PATIENCE

SETTINGS = Settings(length=6, timing=Timing(renew_connection=0.2))
RUN = Run(meeting=Meeting(run="x", shared_memory=False), plan=MasterWorker(3).plan(samples=6), settings=SETTINGS)

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def listening(context: Context) -> tuple[Carrier, Endpoints]:
    parent = Carrier(context, 0, SETTINGS, Buffers(RUN, 0), rights_at(0, RUN.plan))
    return parent, parent.listen("tcp://127.0.0.1")


def turn(*nodes: Carrier, wait: int = 20) -> dict[int, list[News]]:
    """Every node takes once what is there, as its driver does."""
    found: dict[int, list[News]] = {}
    for node in nodes:
        poller = zmq.Poller()
        for readable in (*node.sockets, *node.monitors):
            poller.register(readable, zmq.POLLIN)
        ready = dict(poller.poll(0 if node.has_news else wait))
        found[node.node] = list(node.take(ready))
    return found


def until(done: Callable[[dict[int, list[News]]], bool], *nodes: Carrier) -> dict[int, list[News]]:
    """All that nodes take until it is enough."""
    found: dict[int, list[News]] = {node.node: [] for node in nodes}
    deadline = time.monotonic() + PATIENCE
    while not done(found):
        assert time.monotonic() < deadline, f"only {found}"
        for node, news in turn(*nodes).items():
            found[node] += news
    return found


def after_a_cut(*nodes: Carrier) -> dict[int, list[News]]:
    """All that nodes take until both ends of a connection that is cut have a session again, and nothing follows."""
    found = until(lambda found: sum(Reached in map(type, news) for news in found.values()) == 2, *nodes)
    quiet = 0
    while quiet < 10:
        more = turn(*nodes)
        quiet = 0 if any(more.values()) else quiet + 1
        for node, news in more.items():
            found[node] += news
    changes = [[type(one) for one in news if not isinstance(one, Arrived)] for news in found.values()]
    assert [one for one in changes if one] == [[Gone, Reached]] * 2, "one session has ended, and one begun"
    return found


def of_kind(news: list[News], kind: type) -> list[News]:
    return [one for one in news if isinstance(one, kind)]


@pytest.fixture
def family(context: Context) -> tuple[Carrier, Carrier]:
    """A parent and a child that have a session."""
    parent, endpoints = listening(context)
    child = Carrier(context, 3, SETTINGS, Buffers(RUN, 3), rights_at(3, RUN.plan))
    connect(child, {0: endpoints})
    found = until(lambda found: all(found.values()), parent, child)
    assert found == {0: [Reached(3)], 3: [Reached(0)]}
    return parent, child


def test_vectors_and_small_messages_come_through_both_ways(family: tuple[Carrier, Carrier]) -> None:
    parent, child = family
    vector = np.arange(6, dtype=np.float32)
    share, offer = ShareChunk(round=2, task=3, index=0), Offer(round=2, task=3)
    child.send(Transmit(to=0, message=share, data=vector, marked=True))
    child.send(Transmit(to=0, message=offer))
    found = until(lambda found: len(found[0]) == 2 and len(found[3]) == 1, parent, child)
    arrived = {type(one.message): one for one in found[0]}
    assert arrived[Offer] == Arrived(sender=3, message=offer)
    assert arrived[ShareChunk].message == share
    assert arrived[ShareChunk].data is not None
    assert arrived[ShareChunk].data.tobytes() == vector.tobytes()
    assert found[3] == [Arrived(sender=0, message=None)], "the marked one is here"
    parent.send(Transmit(to=3, message=ModelChunk(round=3, index=0), data=vector))
    (model,) = until(lambda found: len(found[3]) == 1, parent, child)[3]
    assert (model.sender, model.message) == (0, ModelChunk(round=3, index=0))
    assert not any(turn(parent, child).values()), "what is not marked is not acknowledged"


def test_every_marked_message_is_acknowledged_once(family: tuple[Carrier, Carrier]) -> None:
    parent, child = family
    for task in range(40):
        share = ShareChunk(round=2, task=task, index=0)
        child.send(Transmit(to=0, message=share, data=np.zeros(6, dtype=np.float32), marked=task % 2 == 1))
    found = until(lambda found: len(found[0]) == 40 and len(found[3]) >= 20, parent, child)
    assert found[3] == 20 * [Arrived(sender=0, message=None)]
    assert not any(turn(parent, child).values())


def test_what_is_sent_before_the_first_session_waits(context: Context) -> None:
    """However long the connections take: nobody counts as gone who has not been there."""
    parent, endpoints = listening(context)
    child = Carrier(context, 3, SETTINGS, Buffers(RUN, 3), rights_at(3, RUN.plan))
    connect(child, {0: endpoints._replace(data="ipc://@codedreduce-nobody")})
    child.send(Transmit(to=0, message=Offer(round=1, task=3)))
    deadline = time.monotonic() + 1.5  # more than a second late
    while time.monotonic() < deadline:
        assert not any(turn(parent, child).values()), "one plane is not enough"
    child.send(Transmit(to=0, message=Offer(round=2, task=3)))
    child.move(0, endpoints)
    assert child._links[0].planes[1].leads_to == endpoints.data
    found = until(lambda found: len(found[0]) == 3, parent, child)
    assert found[0] == [Reached(3), *(Arrived(3, Offer(round=round_, task=3)) for round_ in (1, 2))]


def test_a_socket_that_is_not_named_is_not_asked(family: tuple[Carrier, Carrier]) -> None:
    parent, child = family
    child.send(Transmit(to=0, message=Offer(round=1, task=3)))
    control, data = parent.sockets
    assert control.poll(1000 * PATIENCE)
    assert list(parent.take({data: zmq.POLLIN})) == []
    assert list(parent.take({control: zmq.POLLIN})) == [Arrived(3, Offer(round=1, task=3))]


@pytest.mark.parametrize("plane", [0, 1])
def test_one_connection_that_breaks_is_a_new_session_on_both(family: tuple[Carrier, Carrier], plane: int) -> None:
    """Both ends are told once; what was under way is not heard; a window that was closed is open again."""
    parent, child = family
    share = Transmit(
        to=0, message=ShareChunk(round=1, task=3, index=0), data=np.zeros(6, dtype=np.float32), marked=True
    )
    child.send(share)
    assert parent.sockets[1].poll(1000 * PATIENCE)
    shut(parent, plane)
    found = until(lambda found: all(Reached in map(type, news) for news in found.values()), parent, child)
    changes = {node: [one for one in news if not isinstance(one, Arrived)] for node, news in found.items()}
    assert changes == {0: [Gone(3), Reached(3)], 3: [Gone(0), Reached(0)]}
    child.send(share)
    found = until(lambda found: len(of_kind(found[3], Arrived)) == 1, parent, child)
    assert [one.message for one in of_kind(found[0], Arrived)] == [share.message]
    assert not any(turn(parent, child).values())


def shut(node: Carrier, plane: int) -> None:
    """End the connection by which a neighbour of this node speaks on a plane, as the kernel would."""
    (descriptor,) = [one for link in node._links.values() if (one := link.planes[plane].comes_by) >= 0]
    connection = socket.socket(fileno=os.dup(descriptor))
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def test_a_goodbye_is_heard_though_another_connection_went_first(family: tuple[Carrier, Carrier]) -> None:
    parent, child = family
    child.send(Transmit(to=0, message=Goodbye(reason="enough")))
    assert parent.sockets[0].poll(1000 * PATIENCE)
    shut(parent, 1)
    monitor = parent.monitors[1]
    assert monitor.poll(1000 * PATIENCE)
    assert list(parent.take([monitor])) == [Gone(3)]
    found = until(lambda found: bool(of_kind(found[0], Arrived)), parent)
    assert of_kind(found[0], Arrived) == [Arrived(3, Goodbye(reason="enough"))]


def test_who_is_gone_is_not_written_to(context: Context) -> None:
    parent, endpoints = listening(context)
    other: Context = zmq.Context()
    child = Carrier(other, 3, SETTINGS, Buffers(RUN, 3), rights_at(3, RUN.plan))
    connect(child, {0: endpoints})
    until(lambda found: all(found.values()), parent, child)
    other.destroy(linger=0)
    assert until(lambda found: bool(found[0]), parent)[0] == [Gone(3)]
    for _ in range(3):
        parent.send(Transmit(to=3, message=Offer(round=1, task=3)))
    assert not parent.has_news
    again: Context = zmq.Context()
    child = Carrier(again, 3, SETTINGS, Buffers(RUN, 3), rights_at(3, RUN.plan))
    connect(child, {0: endpoints})
    found = until(lambda found: all(found.values()), parent, child)
    assert found == {0: [Reached(3)], 3: [Reached(0)]}
    assert not any(turn(parent, child).values()), "what was for the one that went does not reach the one that came"
    again.destroy(linger=0)


GOOD = encode(ShareChunk(round=2, task=3, index=0))


@pytest.mark.parametrize(
    ("plane", "kind", "frames", "why"),
    [
        (0, PLAIN, [b"nonsense"], "wire version"),
        (0, PLAIN, [encode(Offer(round=1, task=3)), b"more"], "a small message of 2 frames"),
        (0, PLAIN, [GOOD], "ShareChunk on the control plane"),
        (0, MARKED, [GOOD], "a small message of the invalid kind 1"),
        (0, b"\x63", [b""], "a small message of the invalid kind 99"),
        (0, OPEN, [b"more"], "an OPEN of 21 bytes"),
        (0, ACKNOWLEDGEMENT, [b"many"], "an acknowledgement of 4 bytes"),
        (0, ACKNOWLEDGEMENT, [b"\xff" * 8], "an acknowledgement of 18446744073709551615 messages; 0 were sent"),
        (0, PLAIN, [encode(Settle(round=1))], "Settle, which it has no right to send"),
        (1, PLAIN, [encode(Offer(round=1, task=3)), b""], "Offer on the data plane"),
        (1, PLAIN, [encode(ModelChunk(round=1, index=0)), bytes(24)], "ModelChunk, which it has no right to send"),
        (1, ACKNOWLEDGEMENT, [bytes(8)], "a data message of the invalid kind 4"),
        (1, MARKED, [GOOD], "a data message of 1 frames"),
        (1, MARKED, [GOOD, bytes(24), b"more"], "a data message of 3 frames"),
        (1, MARKED, [GOOD, *[b"more"] * 100], "a data message of 4 frames"),
        (1, MARKED, [GOOD, bytes(20)], "must have 24 bytes and came with 20"),
        (1, MARKED_BY_REFERENCE, [GOOD, b"anywhere"], "does not share"),
    ],
)
def test_what_is_no_message_costs_its_sender_the_connection(
    family: tuple[Carrier, Carrier], plane: int, kind: bytes, frames: list[bytes], why: str
) -> None:
    """It is told once; what follows by that connection is not heard; over a new one everything is."""
    parent, child = family
    first, *others = frames
    tag = child._links[0].session.outgoing
    for _ in range(5):
        put(child._links[0], plane, [kind + tag + first, *others])
    put(child._links[0], 0, [PLAIN + tag + encode(Offer(round=1, task=3))])
    found = after_a_cut(parent, child)
    if plane == 0:
        assert not of_kind(found[0], Arrived), "it came after what was none"
    ((sender, told),) = parent.unreadable
    assert sender == 3
    assert why in told
    child.send(Transmit(to=0, message=ShareChunk(round=2, task=3, index=0), data=np.zeros(6, dtype=np.float32)))
    (arrived,) = until(lambda found: bool(found[0]), parent, child)[0]
    assert isinstance(arrived, Arrived)
    assert arrived.message == ShareChunk(round=2, task=3, index=0)


def test_a_child_cuts_a_parent_that_sends_what_is_none(family: tuple[Carrier, Carrier]) -> None:
    parent, child = family
    link = parent._links[3]
    put(link, 0, [PLAIN + link.session.outgoing + encode(Hello(plan="x"))])
    after_a_cut(parent, child)
    assert child.unreadable == [(0, "rank 0 sent Hello, which it has no right to send")]


def test_memory_that_is_gone_is_nobody_s_fault(context: Context) -> None:
    """Who had it may have been killed: its neighbour who told of it keeps its connection, and its window."""
    run = replace(RUN, meeting=Meeting(run="shares", shared_memory=True))
    parent = Carrier(context, 0, SETTINGS, Buffers(run, 0), rights_at(0, run.plan))
    child = Carrier(context, 3, SETTINGS, Buffers(run, 3), rights_at(3, run.plan))
    connect(child, {0: parent.listen("tcp://127.0.0.1")})
    until(lambda found: all(found.values()), parent, child)
    child._links[0].session.marked_went()
    nowhere = msgspec.msgpack.encode(Reference(2, 2**22 + 1, 3, 4, 0, 24))
    put(child._links[0], 1, [MARKED_BY_REFERENCE + child._links[0].session.outgoing + GOOD, nowhere])
    found = until(lambda found: bool(found[3]), parent, child)
    assert found == {0: [], 3: [Arrived(0, None)]}
    assert "the shared memory of rank 2 is not available" in parent.unreadable[0][1]


def test_a_frame_too_short_for_a_session_is_told(family: tuple[Carrier, Carrier]) -> None:
    parent, child = family
    put(child._links[0], 0, [b"\x00short"])
    assert parent.sockets[0].poll(1000 * PATIENCE)
    assert turn(parent) == {0: [Gone(3)]}
    assert parent.unreadable == [(3, "rank 3 sent a frame of 6 bytes; the shortest has 17")]
