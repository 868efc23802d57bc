"""Somebody who is not of a run sends it things, over real sockets: the run goes on, with the same bits."""

from __future__ import annotations

import socket
import threading
import time

import msgspec
import numpy as np
import pytest
import zmq

from codedreduce import RingAllReduce
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Arrived, Carrier, Gone, News, Reached
from codedreduce.net.connections import Endpoints, name_of
from codedreduce.net.frames import MARKED, OPEN, OPEN_ASKING, PLAIN
from codedreduce.net.limits import MOST_NAMELESS
from codedreduce.net.pending_connections import PendingConnections
from codedreduce.net.rendezvous.registration import AT_ONCE, Answer, Registration, Standing
from codedreduce.protocol import Settings
from codedreduce.protocol.core.messages import Goodbye, Hello, ModelChunk, RingChunk, ShareChunk
from codedreduce.protocol.core.wire import LARGEST_HEADER, encode
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Meeting, Run
from codedreduce.timing import TIMING, Timing
from tests.fuzz.runs import PLANS, Checked, memory_of
from tests.fuzz.strangers import BOOK, CONTROL, DATA, Stranger, doors, plain_connection, stranger
from tests.raw import connect, put
from tests.waiting import PATIENCE, wait_until

from .test_mesh import opened, where
from .test_transport import Context, context, family, until

__all__ = ["context", "family"]  # fixtures

#: Numbers that open a session, if anybody believes them.
TAG = (7 << 32 | 1).to_bytes(8, "big") + bytes(8)

UNTRUE = bytes(1600)


def frames_of(message: object) -> tuple[bytes, ...]:
    header = encode(message)  # type: ignore[arg-type]
    return (PLAIN + TAG + header,)


#: What ended runs, or would: on which plane, under which name, and what is said.
SAID: list[tuple[str, bytes | None, tuple[bytes, ...]]] = [
    (CONTROL, None, frames_of(ShareChunk(round=1, task=1, index=0))),
    (CONTROL, name_of(77), (OPEN_ASKING + TAG,)),
    (CONTROL, name_of(2**32 - 1), frames_of(Goodbye(reason="it is over"))),
    (CONTROL, b"longer than four", frames_of(Hello(plan="x"))),
    (DATA, b"longer than four", (MARKED + TAG + encode(ShareChunk(round=1, task=1, index=0)), UNTRUE)),
    (DATA, name_of(77), (MARKED + TAG + encode(ModelChunk(round=2**53, index=0)), UNTRUE)),
    (DATA, None, (b"",)),
    (CONTROL, None, (b"\x00" * 17, b"more", b"more")),
    (CONTROL, None, (bytes(LARGEST_HEADER * 2),)),
    (DATA, None, (bytes(1 << 20),)),
]  # fmt: skip


@pytest.mark.parametrize("kind", PLANS)
def test_a_run_goes_on_whatever_strangers_say(kind: str) -> None:
    """At every socket of every node that has one; each is cut, and a person is told of some."""
    run = Checked(kind)
    context: Context = zmq.Context()
    try:
        with run.cluster() as cluster:
            run.round(cluster)
            strangers = [
                (Stranger(context, address, name), frames)
                for (_, plane), address in doors(run.run).items()
                for said_on, name, frames in SAID
                if said_on == plane
            ]
            for one, frames in strangers:
                one.send(*frames)
            for _ in range(20):
                run.round(cluster)
            for one, _ in strangers:
                assert one.was_cut(within=PATIENCE)
                one.close()
            run.round(cluster)
            assert run.journal.of_kind("stranger"), "it is told"
            assert len(run.journal.of_kind("stranger")) <= 10, "but not every time"
    finally:
        context.destroy(linger=0)


def test_a_child_s_socket_is_not_a_parent_s() -> None:
    """Who comes from below an inner worker is no parent: neither its goodbye nor its model, of a round that nobody
    ever comes to, is heard.
    """
    run = Checked("tree")
    with run.cluster() as cluster:
        run.round(cluster)
        places = doors(run.run)
        with (
            stranger(places[1, CONTROL], name_of(0)) as control,
            stranger(places[1, DATA], name_of(0)) as data,
        ):
            for one in (control, data):
                one.send(OPEN_ASKING + TAG)
                one.send(OPEN + TAG)
            control.send(*frames_of(Goodbye(reason="it is over")))
            data.send(MARKED + TAG + encode(ModelChunk(round=2**53, index=0)), UNTRUE)
            for _ in range(20):
                run.round(cluster)
            assert control.was_cut(within=PATIENCE)
            assert data.was_cut(within=PATIENCE)
            assert control.hear() is None, "nobody opens a session with it"
        for _ in range(5):
            run.round(cluster)
        assert not run.journal.of_kind("left")


# -- a neighbour that errs


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 10**4])
def test_a_ring_chunk_that_is_not_whole_numbers(count: int) -> None:
    """4 bytes of a chunk of float64 ended a run; more than a chunk has would take memory."""
    plan, settings = RingAllReduce(3).plan(samples=6), Settings(length=12, dtype=np.dtype(np.float64), chunk=4)
    run = Run(
        meeting=Meeting(run="x", shared_memory=False), plan=plan, settings=settings
    )  # fmt: skip
    context: Context = zmq.Context()
    try:
        one, two = (Carrier(context, node, settings, Buffers(run, node), rights_at(node, plan)) for node in (1, 2))
        connect(one, {2: two.listen("tcp://127.0.0.1")})
        until(lambda found: all(found.values()), one, two)
        header = encode(RingChunk(round=1, segment=0, index=0, finished=False))
        put(one._links[2], 1, [MARKED + one._links[2].session.outgoing + header, bytes(4 * count)])
        found = until(lambda found: bool(found[2]), one, two)
        assert not [news for news in found[2] if isinstance(news, Arrived)] or count in (2,)
        assert bool(two.unreadable) == (count != 2)
    finally:
        context.destroy(linger=0)


# -- where the run meets


GOOD = Registration("x", 1, (0,), where(1), "right")
WRONG = [
    b"",
    b"nonsense",
    msgspec.msgpack.encode([1, 2, 3]),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, node=7)),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, node=-1)),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, seeks=(0,) * 100)),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, seeks=(2**40,))),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, listens=Endpoints("tcp://1.2.3.4:x", "nowhere"))),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, listens=Endpoints("tcp://" + "x" * 999 + ":1", "tcp://a:1"))),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, knows={9: where(9)})),
    msgspec.msgpack.encode(msgspec.structs.replace(GOOD, standing=Standing(2**60, 0, 2**60, True))),
    msgspec.msgpack.encode(GOOD) + bytes(1 << 20),
]


@pytest.mark.parametrize("said", WRONG, ids=lambda said: said[:30].hex())
def test_a_book_of_addresses_cuts_who_says_what_cannot_be(said: bytes) -> None:
    context: Context = zmq.Context()
    meeting = Meeting(run="x", subject="right", host="127.0.0.1", port=29731)
    directory = opened(context, meeting, nodes=range(3))
    one = Stranger(context, meeting.address)
    try:
        one.send(said)
        assert wait_until(lambda: directory.serve() or one.was_cut())  # type: ignore[func-returns-value]
        assert one.hear() is None
        assert not directory.addresses.moved
    finally:
        one.close()
        context.destroy(linger=0)


def test_a_flood_of_registrations_is_answered_a_few_at_a_time() -> None:
    """Whoever has the book hears others meanwhile; and keeps one visit for a node, however many say they are it."""
    context: Context = zmq.Context()
    meeting = Meeting(run="x", subject="right", host="127.0.0.1", port=29732)
    directory = opened(context, meeting, nodes=range(3))
    flood = [Stranger(context, meeting.address) for _ in range(40)]
    said = msgspec.msgpack.encode(GOOD)
    try:
        for _ in range(500):
            for one in flood:
                one.send(said)
        assert directory.listener.socket.poll(1000 * PATIENCE)
        time.sleep(0.2)
        for _ in range(20):
            before = time.monotonic()
            directory.serve()
            assert directory.listener.rests_until >= before + TIMING.directory_rest, "there is more, and it waits"
        heard: list[object] = []

        def hear() -> bool:
            heard.extend(answer for one in flood for answer in iter(one.hear, None))
            return bool(heard)

        assert wait_until(hear)
        time.sleep(0.2)
        hear()
        assert len(heard) <= 20 * AT_ONCE
        assert len(directory.addresses.processes) <= 1
    finally:
        for one in flood:
            one.close()
        context.destroy(linger=0)


@pytest.mark.parametrize("kind", PLANS)
def test_a_flood_of_hellos_does_not_hold_a_run_up(kind: str) -> None:
    """At every socket, and where the run meets, as fast as they are taken: no memory is taken for them."""
    run = Checked(kind)
    over = threading.Event()
    registration = msgspec.msgpack.encode(Registration(run.run.meeting.run, 2, (0,), where(1), "other"))
    hellos = ((OPEN_ASKING + TAG,), frames_of(Hello(plan="x")))

    def flood() -> None:
        context: Context = zmq.Context()
        strangers = {door: Stranger(context, address, name_of(2**31)) for door, address in doors(run.run).items()}
        while not over.is_set():
            for (_, plane), one in strangers.items():
                for frames in ((registration,),) if plane == BOOK else hellos:
                    for _ in range(20):
                        one.send(*frames)
                while one.hear() is not None:
                    pass
            time.sleep(0.001)
        for one in strangers.values():
            one.close()
        context.destroy(linger=0)

    with run.cluster() as cluster:
        for _ in range(5):
            run.round(cluster)
        before = memory_of(cluster)
        thread = threading.Thread(target=flood)
        thread.start()
        try:
            until_then = time.monotonic() + 3.0
            while time.monotonic() < until_then or run.done <= 20:
                run.round(cluster)
        finally:
            over.set()
            thread.join()
        after = memory_of(cluster)
        assert all(after[node] < before[node] + (16 << 20) for node in after if node), (before, after)


def test_a_wrong_digest_at_the_start_does_not_end_the_root() -> None:
    """Somebody says that it is node 1, and has another plan; then node 1 comes."""
    run = Checked("tree")
    context: Context = zmq.Context()
    said = msgspec.msgpack.encode(Registration(run.run.meeting.run, 1, (0,), where(1), "another plan"))
    cluster = run.cluster()
    one = Stranger(context, run.run.meeting.address)
    for _ in range(5):
        one.send(said)
    try:
        with cluster:
            for _ in range(5):
                run.round(cluster)
            heard = [msgspec.msgpack.decode(answer[0], type=Answer) for answer in iter(one.hear, None)]
            assert heard
            assert all("has another plan" in answer.refusal for answer in heard)
            assert len(run.journal.of_kind("refused")) == 1
    finally:
        one.close()
        context.destroy(linger=0)


def test_a_frame_that_is_too_large_costs_a_connection_and_no_more(family: tuple[Carrier, Carrier]) -> None:
    """Whoever made it: ZeroMQ does not make one again whose other side did that, so the node does."""
    parent, child = family
    parent.sockets[0].send_multipart([name_of(3), bytes(LARGEST_HEADER + 1000)])
    until(lambda found: any(isinstance(news, Gone) for news in found[3]), parent, child)

    def is_back(found: dict[int, list[News]]) -> bool:
        child.look_at_doors()
        return all(any(isinstance(one, Reached) for one in news) for news in found.values())

    until(is_back, parent, child)


# -- connections of nobody


@pytest.mark.parametrize("kind", PLANS)
def test_idle_connections_do_not_hold_a_run_up(kind: str) -> None:
    """More than are kept of those of which nothing is known, at every socket; one sends a byte now and then."""
    run = Checked(kind)
    with run.cluster() as cluster:
        run.round(cluster)
        slow = {}
        idle = []
        for door, address in doors(run.run).items():
            slow[door] = plain_connection(address)
            idle += [plain_connection(address) for _ in range(MOST_NAMELESS + 10)]
        for byte in b"\xff\x00\x00\x00":
            for connection in slow.values():
                try:
                    connection.send(bytes([byte]))
                except OSError:  # it was cut
                    continue
            for _ in range(5):
                run.round(cluster)
        ended = 0
        for connection in idle:
            connection.settimeout(0.01)
            try:
                while connection.recv(64):  # ZeroMQ's greeting, and then the end
                    pass
                ended += 1
            except TimeoutError:
                pass
            except OSError:
                ended += 1
            connection.close()
        assert ended >= 9 * len(slow), "the oldest had to go"
        for connection in slow.values():
            connection.close()
        for _ in range(5):
            run.round(cluster)


def test_who_has_not_said_who_it_is_has_to_go() -> None:
    door = PendingConnections(("tcp://127.0.0.1:1",), Timing(identify_timeout=0.05), most=3)
    for descriptor in (100001, 100002, 100003, 100004):
        door.came(descriptor)
    assert len(door) == 3
    door.is_known(100003)
    door.went(100004)
    assert len(door) == 1
    time.sleep(0.06)
    door.look()
    assert len(door) == 0


def test_another_file_is_not_shut() -> None:
    """A descriptor that was a connection to a door once may be anything now."""
    first, second = socket.socketpair()
    try:
        door = PendingConnections(("tcp://127.0.0.1:1", "ipc://@elsewhere"), TIMING)
        assert not door.cut(first.fileno())
        first.send(b"still there")
        assert second.recv(20) == b"still there"
        with open(__file__) as file:
            assert not door.cut(file.fileno())
        assert not door.cut(10**6)
    finally:
        first.close()
        second.close()
