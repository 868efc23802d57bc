"""Nodes of which each talks to each, over real sockets: what comes through, who is gone, how they meet."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq

from codedreduce import MasterWorker
from codedreduce.errors import CodedReduceError
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Arrived, Gone, News, Reached
from codedreduce.net.connections import Endpoints, name_of
from codedreduce.net.frames import MARKED, MARKED_BY_REFERENCE, PLAIN
from codedreduce.net.mesh import Mesh
from codedreduce.net.rendezvous.directory import Directory
from codedreduce.net.rendezvous.registration import Opened, Registration
from codedreduce.node.driver import Driver
from codedreduce.protocol import Settings
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core.events import Transmit
from codedreduce.protocol.core.messages import Offer, ShareChunk
from codedreduce.protocol.core.wire import encode
from codedreduce.protocol.rights import Rights
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.quorum import Gathering
from codedreduce.timing import TIMING, Timing
from tests.raw import connect, find, put
from tests.waiting import PATIENCE

from .test_transport import after_a_cut, until

SETTINGS = Settings(length=6)
RUN = Run(meeting=Meeting(run="x", shared_memory=False), plan=MasterWorker(3).plan(samples=6), settings=SETTINGS)
RIGHTS = Rights(below={rank: frozenset((Offer, ShareChunk)) for rank in range(8)})
SHARE = encode(ShareChunk(round=2, task=3, index=0))

Context = zmq.Context[zmq.Socket[bytes]]


class Ranks:
    """Some nodes, each with a context of its own: when that is destroyed, all its connections end as by its death."""

    def __init__(self, count: int, where: str) -> None:
        self.contexts: dict[int, Context] = {}
        self.meshes: dict[int, Mesh] = {}
        self.endpoints: dict[int, Endpoints] = {}
        for rank in range(count):
            self.endpoints[rank] = self.start(rank, where)
        for rank in range(count):
            self.connect(rank)
        self.wait()

    def start(self, rank: int, where: str | Endpoints) -> Endpoints:
        self.contexts[rank] = zmq.Context()
        self.meshes[rank] = Mesh(self.contexts[rank], rank, SETTINGS, Buffers(RUN, rank), RIGHTS)
        return self.meshes[rank].listen(where)

    def connect(self, rank: int) -> None:
        connect(self.meshes[rank], {peer: where for peer, where in self.endpoints.items() if peer != rank})

    def wait(self) -> None:
        """As each process does by itself: until it has a session with all others."""
        threads = [
            threading.Thread(target=mesh.wait_until_connected, args=(10.0, lambda: None))
            for mesh in self.meshes.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for me, mesh in self.meshes.items():
            reached = [one.peer for one in mesh.take(())]
            assert sorted(reached) == sorted(self.meshes.keys() - {me})

    def until(self, done: Callable[[dict[int, list[News]]], bool]) -> dict[int, list[News]]:
        """What all nodes take, in turns, until it is enough."""
        return until(done, *self.meshes.values())

    def end(self, rank: int) -> None:
        self.contexts.pop(rank).destroy(linger=0)
        del self.meshes[rank]

    def pairs(self) -> list[tuple[int, int]]:
        return [(one, other) for one in self.meshes for other in self.meshes if one != other]


@pytest.fixture(params=["tcp", "ipc"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Ranks]]:
    made: list[Ranks] = []
    where = "tcp://127.0.0.1" if request.param == "tcp" else f"ipc://@codedreduce-{os.getpid()}-{time.monotonic_ns()}"

    def of(count: int) -> Ranks:
        made.append(Ranks(count, where))
        return made[-1]

    yield of
    for one in made:
        for context in one.contexts.values():
            context.destroy(linger=0)


def messages(news: list[News]) -> list[Arrived]:
    return [one for one in news if isinstance(one, Arrived)]


def vector(one: int, other: int) -> np.ndarray:
    return np.arange(6, dtype=np.float32) + 10 * one + 100 * other


def test_everyone_talks_to_everyone(ranks: Callable[[int], Ranks]) -> None:
    them = ranks(4)
    for one, other in them.pairs():
        share = ShareChunk(round=2, task=one, index=0)
        them.meshes[one].send(Transmit(to=other, message=share, data=vector(one, other), marked=True))
        them.meshes[one].send(Transmit(to=other, message=Offer(round=2, task=one)))
    found = them.until(lambda found: all(len(messages(news)) == 9 for news in found.values()))
    for me, news in found.items():
        arrived = [one for one in messages(news) if one.message is not None]
        others = sorted(them.meshes.keys() - {me})
        offers = sorted((one.sender, one.message) for one in arrived if one.data is None)
        assert offers == [(peer, Offer(round=2, task=peer)) for peer in others]
        shares = {one.sender: one for one in arrived if one.data is not None}
        assert sorted(shares) == others
        for peer, share in shares.items():
            assert share.message == ShareChunk(round=2, task=peer, index=0)
            assert share.data is not None
            assert share.data.tobytes() == vector(peer, me).tobytes()
        assert sorted(one.sender for one in messages(news) if one.message is None) == others, "acknowledged"


def test_what_one_sends_another_keeps_its_order(ranks: Callable[[int], Ranks]) -> None:
    them = ranks(3)
    for task in range(200):
        for one, other in them.pairs():
            them.meshes[one].send(Transmit(to=other, message=Offer(round=2, task=task)))
            share = ShareChunk(round=2, task=task, index=0)
            them.meshes[one].send(Transmit(to=other, message=share, data=vector(one, other)))
    found = them.until(lambda found: all(len(messages(news)) == 2 * 2 * 200 for news in found.values()))
    for me, news in found.items():
        for peer in them.meshes.keys() - {me}:
            for kind in (Offer, ShareChunk):
                of_kind = [one.message for one in messages(news) if one.sender == peer]
                assert [one.task for one in of_kind if isinstance(one, kind)] == list(range(200))


def changes(found: dict[int, list[News]], peer: int) -> dict[int, list[News]]:
    """Of each node, what it was told of another's coming and going."""
    return {
        node: [one for one in news if isinstance(one, Gone | Reached) and one.peer == peer]
        for node, news in found.items()
    }


@pytest.mark.parametrize("elsewhere", [False, True])
def test_who_is_gone_is_missed_by_all_and_found_again(ranks: Callable[[int], Ranks], elsewhere: bool) -> None:
    """By those with a lower number and by those with a higher one, whoever makes which connection; also elsewhere."""
    them = ranks(4)
    them.end(2)
    found = them.until(lambda found: all(changes(found, 2).values()))
    assert changes(found, 2) == {node: [Gone(2)] for node in (0, 1, 3)}
    for mesh in them.meshes.values():
        mesh.send(Transmit(to=2, message=Offer(round=2, task=3)))
        mesh.send(Transmit(to=2, message=ShareChunk(round=2, task=3, index=0), data=vector(mesh.node, 2)))
    if elsewhere:
        them.endpoints[2] = them.start(2, f"ipc://@codedreduce-{os.getpid()}-{time.monotonic_ns()}")
        for rank in (0, 1, 3):
            them.meshes[rank].move(2, them.endpoints[2])
            assert them.meshes[rank].address_of(2) in them.endpoints[2]
    else:
        them.start(2, them.endpoints[2])
    them.connect(2)
    found = them.until(lambda found: all(changes(found, 2)[rank] for rank in (0, 1, 3)) and len(found[2]) == 3)
    assert changes(found, 2) == {0: [Reached(2)], 1: [Reached(2)], 3: [Reached(2)], 2: []}
    for me in (0, 1, 3):
        for one, other in ((me, 2), (2, me)):
            them.meshes[one].send(Transmit(to=other, message=Offer(round=5, task=one)))
            share = ShareChunk(round=5, task=one, index=0)
            them.meshes[one].send(Transmit(to=other, message=share, data=vector(one, other)))
    found = them.until(lambda found: len(found[2]) == 6 and all(len(found[rank]) == 2 for rank in (0, 1, 3)))
    both = [(2, Offer), (2, ShareChunk)]
    for me in (0, 1, 3):
        assert sorted(((one.sender, type(one.message)) for one in found[me]), key=str) == both
    assert {(one.sender, one.message.round) for one in found[2]} == {(rank, 5) for rank in (0, 1, 3)}, (
        "nothing of before"
    )


class Machine:
    """Remembers what happened to it, and leaves when it is told to."""

    generation = 0
    round = 1

    def __init__(self, node: int) -> None:
        self.node = node
        self.happened: queue.SimpleQueue[happening.Event] = queue.SimpleQueue()

    def handle(self, event: happening.Event, now: float) -> list[happening.AnyAction]:
        self.happened.put(event)
        return [happening.Finished(reason=event.reason)] if isinstance(event, happening.Leave) else []


def test_a_machine_hears_who_is_gone_and_back_and_leaves_without_the_first(ranks: Callable[[int], Ranks]) -> None:
    them = ranks(3)
    machine = Machine(2)
    notes: list[happening.AnyAction] = []
    driver = Driver(machine, them.meshes.pop(2), notes.append, timing=TIMING, orphaned_after=0.2)  # type: ignore[arg-type]
    driver._met |= {0, 1}
    driver.start()
    assert machine.happened.get(timeout=PATIENCE) == happening.Started()
    them.end(1)
    assert machine.happened.get(timeout=PATIENCE) == happening.PeerLost(peer=1)
    them.start(1, them.endpoints[1])
    them.connect(1)
    them.until(lambda found: Reached(2) in found[1])
    assert machine.happened.get(timeout=PATIENCE) == happening.PeerFound(peer=1)
    them.meshes[1].send(Transmit(to=2, message=Offer(round=2, task=3)))
    assert machine.happened.get(timeout=PATIENCE) == happening.Received(
        sender=1, message=Offer(round=2, task=3), data=None
    )
    them.end(0)
    assert machine.happened.get(timeout=PATIENCE) == happening.PeerLost(peer=0)
    assert machine.happened.get(timeout=PATIENCE) == happening.Leave(
        reason="rank 0 was unreachable for 0.2 s", at_once=True
    )
    driver.join(timeout=PATIENCE)
    assert not driver.is_alive()
    assert driver.failure is None
    (note,) = [note for note in notes if isinstance(note, happening.Note)]
    assert note.reason == "rank 0 cannot be reached; waiting for it for up to 0.2 s"


def test_who_does_not_come_is_named() -> None:
    context: Context = zmq.Context()
    looked: list[int] = []
    try:
        mesh = Mesh(context, 1, SETTINGS, Buffers(RUN, 1), RIGHTS)
        mesh.listen("tcp://127.0.0.1")
        nobody = f"ipc://@codedreduce-{os.getpid()}-nobody"
        connect(mesh, {peer: Endpoints(f"{nobody}-{peer}-c", f"{nobody}-{peer}-d") for peer in (0, 2)})
        with pytest.raises(CodedReduceError, match=r"rank 1 could not reach ranks \[0, 2\] within 0.1 s"):
            mesh.wait_until_connected(0.1, lambda: looked.append(1))
        assert looked
    finally:
        context.destroy(linger=0)


def test_only_the_first_is_needed_by_the_others() -> None:
    context: Context = zmq.Context()
    meshes = [Mesh(context, rank, SETTINGS, Buffers(RUN, rank), RIGHTS) for rank in range(3)]
    assert [mesh.needs for mesh in meshes] == [None, 0, 0]
    context.destroy(linger=0)


@pytest.mark.parametrize("name", [b"x", b"longer than a number", name_of(9), name_of(1), None])
@pytest.mark.parametrize("plane", [0, 1])
def test_strangers_are_told_of_and_hold_nobody_up(
    ranks: Callable[[int], Ranks], plane: int, name: bytes | None
) -> None:
    """Names that are no number, a number of nobody, the node's own, and none at all."""
    them = ranks(3)
    stranger = them.contexts[0].socket(zmq.DEALER)
    if name is not None:
        stranger.setsockopt(zmq.ROUTING_ID, name)
    stranger.connect(them.endpoints[1][plane])
    stranger.send_multipart([PLAIN + bytes(16) + encode(Offer(round=2, task=3))])
    them.meshes[2].send(Transmit(to=1, message=Offer(round=2, task=3)))
    found = them.until(lambda found: bool(found[1]) and bool(them.meshes[1].unreadable))
    ((sender, why),) = them.meshes[1].unreadable
    assert sender is None
    assert "a process that is not in this run" in why
    assert (name or b"").hex()[:32] in why
    assert found[1] == [Arrived(sender=2, message=Offer(round=2, task=3))]


@pytest.mark.parametrize(
    ("plane", "kind", "frames", "why"),
    [
        (0, PLAIN, [b"nonsense"], "wire version"),
        (0, PLAIN, [encode(Offer(round=1, task=3)), b"more"], "a small message of 2 frames"),
        (1, MARKED, [SHARE], "a data message of 1 frames"),
        (1, MARKED, [SHARE, bytes(20)], "must have 24 bytes and came with 20"),
        (1, MARKED_BY_REFERENCE, [SHARE, b"anywhere"], "does not share"),
    ],
)
def test_garbage_costs_its_sender_the_connection_and_holds_nobody_up(
    ranks: Callable[[int], Ranks], plane: int, kind: bytes, frames: list[bytes], why: str
) -> None:
    """Whoever made that connection; it is told once, and all is well over a new one."""
    them = ranks(3)
    rogue = them.meshes[2]
    tag = rogue._links[1].session.outgoing
    put(rogue._links[1], plane, [kind + tag + frames[0], *frames[1:]])
    found = after_a_cut(*them.meshes.values())
    assert not found[0], "nobody else notices"
    ((sender, told_of),) = them.meshes[1].unreadable
    assert sender == 2
    assert why in told_of
    rogue.send(Transmit(to=1, message=Offer(round=2, task=3)))
    found = them.until(lambda found: bool(found[1]))
    assert found[1] == [Arrived(sender=2, message=Offer(round=2, task=3))]


def opened(context: Context, meeting: Meeting, **of: int) -> Directory:
    """A book of addresses that is open where its run meets."""
    directory = Directory(context, meeting, **of)
    deadline = time.monotonic() + PATIENCE
    while directory.listener.open(meeting.address) is not Opened.HERE:  # one that was closed takes a moment to go
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return directory


def where(rank: int) -> Endpoints:
    return Endpoints(f"tcp://10.0.0.{rank}:1", f"tcp://10.0.0.{rank}:2")


@pytest.mark.parametrize("seed", range(3))
def test_everyone_is_told_where_everyone_listens(seed: int) -> None:
    """Whatever the order in which they come."""
    meeting = Meeting(run=f"codedreduce-{os.getpid()}-{seed}", all_within=PATIENCE, root_within=PATIENCE)
    context: Context = zmq.Context()
    directory = opened(context, meeting)
    directory.addresses.add(0, where(0))
    found: dict[int, dict[int, Endpoints]] = {}

    def others_of(rank: int) -> tuple[int, ...]:
        return tuple(peer for peer in range(5) if peer != rank)

    def come(rank: int) -> None:
        found[rank] = find(context, meeting, Registration(meeting.run, rank, others_of(rank), where(rank)))

    order = random.Random(seed).sample(range(1, 5), 4)
    threads = [threading.Thread(target=come, args=(rank,)) for rank in order]
    try:
        for thread in threads:
            thread.start()
            assert directory.listener.socket.poll(1000 * PATIENCE)
            directory.serve()
        found[0] = directory.wait_for(others_of(0), lambda: None)
        for thread in threads:
            thread.join(timeout=PATIENCE)
        assert found == {rank: {peer: where(peer) for peer in others_of(rank)} for rank in range(5)}
    finally:
        directory.close()
        context.destroy(linger=0)


def test_who_waits_in_vain_is_told_for_whom() -> None:
    """The root answers: it is not the root that is missing, and others have longer than it to come up."""
    meeting = Meeting(run=f"codedreduce-{os.getpid()}-vain", root_within=0.05, all_within=0.3)
    context: Context = zmq.Context()
    directory = opened(context, meeting)
    directory.addresses.add(0, where(0))
    failures: list[CodedReduceError] = []

    def come() -> None:
        try:
            find(context, meeting, Registration(meeting.run, 1, (0, 2, 3), where(1)))
        except CodedReduceError as error:
            failures.append(error)

    thread = threading.Thread(target=come)
    thread.start()
    try:
        with pytest.raises(CodedReduceError, match=r"nodes 2, 3 did not come up within 0.3 s"):
            directory.wait_for((1, 2, 3), lambda: None)
        thread.join(timeout=PATIENCE)
        assert [str(error) for error in failures] == ["nodes 2, 3 did not come up within 0.3 s"]
    finally:
        directory.close()
        context.destroy(linger=0)


def test_enough_begin_and_a_late_one_is_found(ranks: Callable[[int], Ranks]) -> None:
    """Whoever is away when a node begins counts as gone: nothing waits for it, and it is found when it comes."""
    them = ranks(3)
    late = 3
    for rank, mesh in them.meshes.items():
        mesh.expect([late])
        began = time.monotonic()
        enough = Gathering(lambda missing: list(missing) == [late], began, Timing(latecomer_wait=0.1))
        mesh.wait_until_connected(PATIENCE, lambda: None, enough)
        assert list(mesh.take(())) == [Gone(late)]
        mesh.send(Transmit(to=late, message=Offer(round=1, task=rank)))
    them.endpoints[late] = them.start(late, f"ipc://@codedreduce-{os.getpid()}-{time.monotonic_ns()}")
    them.connect(late)
    for rank in range(3):
        them.meshes[rank].move(late, them.endpoints[late])
        assert them.meshes[rank].address_of(late) in them.endpoints[late]
    found = them.until(lambda found: all(found.values()) and len(found[late]) == 3)
    assert found == {0: [Reached(3)], 1: [Reached(3)], 2: [Reached(3)], 3: found[late]}
    assert sorted(found[late]) == [Reached(0), Reached(1), Reached(2)], "what was for it before is not kept"
