"""Nodes that talk to each other, what happens to chunks between them in the clear, and somebody at their doors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import zmq

from codedreduce import Striped
from codedreduce.net import connections
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Arrived, Gone
from codedreduce.net.connections import name_of
from codedreduce.net.keys import Guard
from codedreduce.net.mesh import Mesh
from codedreduce.net.sessions import CONTROL, DATA
from codedreduce.node.local import LocalCluster
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Transmit
from codedreduce.protocol.core.messages import PartChunk
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Meeting, Run
from codedreduce.schemes import Piece
from codedreduce.timing import TIMING
from tests.proxies import Message, Proxy, flipped
from tests.raw import connect
from tests.waiting import PATIENCE

from .test_wire import ENCRYPTED, meeting

PLAN = Striped(4).plan(samples=60)
SETTINGS = Settings(length=8)


class Member:
    """A process of a run, as far as its sockets go."""

    def __init__(self, rank: int, secret: Secret | None) -> None:
        self.context: zmq.Context = zmq.Context()
        self.guard = Guard(self.context, secret, TIMING) if secret is not None else None
        run = Run(meeting=Meeting(run="x", shared_memory=False), plan=PLAN, settings=SETTINGS)
        rights = rights_at(rank, PLAN)
        self.mesh = Mesh(self.context, rank, SETTINGS, Buffers(run, rank), rights, self.guard)
        self.endpoints = self.mesh.listen("tcp://127.0.0.1")
        self.news: list[object] = []

    def take(self) -> None:
        self.news += self.mesh.take({*self.mesh.sockets, *self.mesh.monitors})

    def chunks(self) -> list[float]:
        """The numbers that came, one of each chunk."""
        arrived = [news for news in self.news if isinstance(news, Arrived) and news.data is not None]
        for one in arrived:
            assert one.data is not None
            assert len(set(one.data.tolist())) == 1, "all its numbers are the same"
        return [float(one.data[0]) for one in arrived if one.data is not None]

    def gone(self) -> int:
        return sum(isinstance(news, Gone) for news in self.news)

    def send(self, to: int, number: float) -> None:
        data = np.full(8, number, dtype=np.float32)
        part = PartChunk(round=1, unit=0, first=0, last=1, index=0)
        self.mesh.send(Transmit(to=to, message=part, data=data))

    def close(self) -> None:
        self.mesh.close()
        if self.guard is not None:
            self.guard.close()
        self.context.destroy(linger=0)


class Members:
    """Some of them; 0 makes the connection for chunks to 1, and so on: it leads through a proxy."""

    def __init__(self, secret: Secret | None, count: int = 2) -> None:
        self.all = [Member(rank, secret) for rank in range(count)]
        self.act: Callable[[bool, list[Message]], list[Message]] = lambda _, messages: messages
        self.seen: list[Message] = []
        self.proxy = Proxy(self.all[1].endpoints.data, self._pass_on)
        for one in self.all:
            others = {other.mesh.node: other.endpoints for other in self.all if other is not one}
            if one.mesh.node == 0:
                others[1] = others[1]._replace(data=self.proxy.address)
            connect(one.mesh, others)
        self.until(self.is_up)

    def _pass_on(self, up: bool, messages: list[Message]) -> list[Message]:
        self.seen += messages if up else ()
        return self.act(up, messages)

    def is_up(self) -> bool:
        return all(link.session.is_up for member in self.all for link in member.mesh._links.values())

    def until(self, done: Callable[[], bool], within: float = PATIENCE) -> None:
        deadline = time.monotonic() + within
        while not done():
            for member in self.all:
                member.take()
                member.mesh.look_at_doors()
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def take_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end)

    def close(self) -> None:
        self.proxy.close()
        for member in self.all:
            member.close()


@pytest.fixture
def members() -> Iterator[Members]:
    them = Members(None)
    yield them
    them.close()


@pytest.fixture
def three() -> Iterator[Members]:
    them = Members(None, 3)
    yield them
    them.close()


def nothing_but(numbers: list[float], them: Members, *, gone: bool) -> None:
    """Nothing else came, and if so the session broke; a new one is good."""
    zero, one = them.all[:2]
    if gone:
        them.until(lambda: one.gone() > 0 and zero.gone() > 0)
        them.act = lambda _, messages: messages
    them.until(them.is_up)
    zero.send(1, 99.0)
    them.until(lambda: 99.0 in one.chunks())
    assert one.chunks() == [*numbers, 99.0]


@pytest.mark.parametrize("seed", range(8))
def test_a_chunk_that_was_changed_is_not_taken(members: Members, seed: int) -> None:
    zero, one = members.all
    zero.send(1, 1.0)
    members.until(lambda: one.chunks() == [1.0])
    random = Random(seed)
    members.act = lambda up, messages: [flipped(message, random) if up else message for message in messages]
    for _ in range(3):  # the first may only change how much is waited for
        zero.send(1, 2.0)
    nothing_but([1.0], members, gone=True)


def test_a_chunk_that_comes_twice_is_taken_once(members: Members) -> None:
    zero, one = members.all
    members.act = lambda up, messages: [*messages, *messages] if up else messages
    zero.send(1, 1.0)
    nothing_but([1.0], members, gone=True)
    assert "message 1 of a session; expected message 2" in one.mesh.unreadable[0][1]


def test_a_chunk_of_an_earlier_session_is_not_taken(members: Members) -> None:
    zero, one = members.all
    zero.send(1, 1.0)
    members.until(lambda: one.chunks() == [1.0])
    old = members.seen[-1]
    for pair in members.proxy.connections:
        pair[0].shutdown(2)
    members.until(lambda: one.gone() > 0 and members.is_up())
    members.act = lambda up, messages: [old, *messages] if up else messages
    zero.send(1, 2.0)
    members.until(lambda: len(one.chunks()) > 1)
    nothing_but([1.0, 2.0], members, gone=False)


def test_chunks_in_another_order_or_with_one_left_out_are_not_taken(members: Members) -> None:
    zero, one = members.all
    held: list[Message] = []

    def swap(up: bool, messages: list[Message]) -> list[Message]:
        if not up:
            return messages
        held.extend(messages)
        return held[1::-1] if len(held) == 2 else []

    members.act = swap
    zero.send(1, 1.0)
    zero.send(1, 2.0)
    nothing_but([], members, gone=True)
    assert "message 2 of a session; expected message 1" in one.mesh.unreadable[0][1]


def test_a_chunk_that_is_led_back_or_to_another_is_not_taken(three: Members) -> None:
    """What 0 sends to 1 is put where 1 sends to 0."""
    zero, one, _ = three.all
    zero.send(1, 1.0)
    three.until(lambda: one.chunks() == [1.0])
    led_back = three.seen[-1]
    three.act = lambda up, messages: messages if up else [led_back, *messages]
    one.send(0, 2.0)
    three.until(lambda: zero.gone() > 0)
    three.act = lambda _, messages: messages
    three.until(three.is_up)
    assert zero.chunks() == []
    assert "digest is wrong" in zero.mesh.unreadable[0][1]


@pytest.mark.parametrize("plane", [CONTROL, DATA])
def test_a_member_cannot_take_over_another_s_connection(plane: int) -> None:
    """It has a key that was named, and calls itself what another is called in the book."""
    them = Members(Secret.fresh(), 3)
    try:
        one = them.all[1]
        assert one.guard is not None
        pair = zmq.curve_keypair()
        one.guard.name(3, pair[0].decode())
        caller: zmq.Context = zmq.Context()
        for name in (name_of(0), name_of(2)):
            talking = caller.socket(zmq.DEALER)
            talking.setsockopt(zmq.LINGER, 0)
            talking.setsockopt(zmq.ROUTING_ID, name)
            talking.curve_serverkey = one.endpoints.key.encode()
            talking.curve_publickey, talking.curve_secretkey = pair
            talking.connect(one.endpoints[plane])
            talking.send(b"short")
        them.until(lambda: bool(one.mesh.unreadable))
        them.take_for(0.3)
        caller.destroy(linger=0)
        assert all(not member.gone() for member in them.all), "nobody's connection broke"
        assert {sender for sender, _ in one.mesh.unreadable} == {None}
    finally:
        them.close()


def test_one_that_others_connect_to_cannot_speak_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it calls itself to those who come."""
    bound = connections.bound

    def called_another(context: zmq.Context, address: str, who: str, *others: Any, name: bytes, **also: Any) -> object:
        return bound(context, address, who, *others, name=name_of(0) if who == "rank 1" else name, **also)

    monkeypatch.setattr(connections, "bound", called_another)
    them = Members(Secret.fresh(), 3)
    try:
        for one in them.all:
            for other in them.all:
                if one is not other:
                    one.send(other.mesh.node, float(one.mesh.node))
        them.until(lambda: all(len(one.chunks()) == 2 for one in them.all))
        for one in them.all:
            arrived = [news for news in one.news if isinstance(news, Arrived) and news.data is not None]
            assert sorted((news.sender, float(news.data[0])) for news in arrived if news.data is not None) == [
                (other.mesh.node, float(other.mesh.node)) for other in them.all if other is not one
            ]
    finally:
        them.close()


def test_many_come_together() -> None:
    """All at once, so that connections are tried again before they are let in."""
    at = meeting(ENCRYPTED)
    run = Run.of(at, Striped(24).plan(samples=24), 1000)
    model = np.ones(1000, dtype=np.float32)

    def ones(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        out[:] = model * sum(len(part) for part in piece)

    with LocalCluster(run, ones, member=lambda world: world.aggregate(model)) as cluster:
        assert cluster.aggregate(model).vector.tobytes() == (24 * model).tobytes()
        assert len(cluster.processes) == 23
