"""Where a run meets: who listens where, who moved, who is taken, who leads, and when enough have come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
import zmq

from codedreduce import Striped
from codedreduce.errors import JoinRefused, UsageError
from codedreduce.launch.environment import read_membership
from codedreduce.net.buffers import Buffers
from codedreduce.net.connections import Endpoints
from codedreduce.net.mesh import Mesh
from codedreduce.net.rendezvous.directory import Directory
from codedreduce.net.rendezvous.meeting import Met
from codedreduce.net.rendezvous.registration import Opened, Registration, Standing
from codedreduce.net.rendezvous.visiting import Visitor
from codedreduce.node.driver import Driver
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.quorum import Gathering, sufficient
from codedreduce.timing import Timing
from tests.waiting import PATIENCE, wait_until

from .test_mesh import opened, where

Context = zmq.Context[zmq.Socket[bytes]]

#: Who comes late is waited for, and who is rejected asks again, for a moment.
SOON = Timing(latecomer_wait=0.1, serve_retry=0.1, taken_retry=0.05, taken_timeout=0.5)


class Place:
    """A book of addresses and those who visit it, each asked in turn as its driver would."""

    def __init__(self) -> None:
        self.context: Context = zmq.Context()
        self.meeting = Meeting(
            run=f"codedreduce-{os.getpid()}-{time.monotonic_ns()}",
            all_within=PATIENCE,
            root_within=PATIENCE,
            timing=SOON,
        )
        self.directory = opened(self.context, self.meeting, owner=0, process=1)
        self.directory.addresses.add(0, where(0))
        self.contexts: list[Context] = [self.context]

    def visitor(self, node: int, *seeks: int, process: int = 7, listens: Endpoints | None = None) -> Visitor:
        context: Context = zmq.Context()  # its connections end with it, as those of a process do
        self.contexts.append(context)
        registration = Registration(
            self.meeting.run, node, seeks, listens or where(node), self.meeting.subject, process
        )
        return Visitor(context, self.meeting, registration)

    def until(self, done: Callable[[], bool], *visitors: Visitor) -> dict[int, dict[int, Endpoints]]:
        """Everyone is asked in turn until it is enough; what each was told."""
        told: dict[int, dict[int, Endpoints]] = {visitor._registration.node: {} for visitor in visitors}
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, told
            self.directory.serve()
            for visitor in visitors:
                told[visitor._registration.node].update(visitor.take())
            time.sleep(0.002)
        return told

    def close(self) -> None:
        for context in self.contexts:
            context.destroy(linger=0)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def test_whoever_moves_is_told_of_to_those_who_look_for_it_and_to_nobody_else(place: Place) -> None:
    child, other = place.visitor(3, 1), place.visitor(5, 2)
    parent = place.visitor(1, 0)
    uncle = place.visitor(2, 0)
    everyone = (child, other, parent, uncle)
    place.until(lambda: all(visitor.knows for visitor in everyone), *everyone)
    assert (child.knows, other.knows) == ({1: where(1)}, {2: where(2)})
    parent.close()
    again = place.visitor(1, 0, process=8, listens=where(11))
    told = place.until(lambda: child.knows[1] != where(1) and bool(again.knows), child, other, uncle, again)
    assert told == {3: {1: where(11)}, 5: {}, 2: {}, 1: {0: where(0)}}
    assert place.directory.addresses.moved[1] == where(11)


def test_a_new_book_is_filled_by_those_who_are_there(place: Place) -> None:
    """The root is started again: everyone registers, and one whose parent moved meanwhile is told."""
    inner, leaf = place.visitor(1, 0), place.visitor(3, 1)
    place.until(lambda: bool(inner.knows) and bool(leaf.knows), inner, leaf)
    leaf.stands = inner.stands = lambda: Standing(generation=4, leader=1, round=17, is_on=True)
    place.directory.close(is_over=False)
    place.directory = opened(place.context, place.meeting, owner=0, process=2)
    place.directory.addresses.add(0, where(10))
    place.until(lambda: inner.knows == {0: where(10)} and 3 in place.directory.addresses.known, inner, leaf)
    assert place.directory.addresses.known == {0: where(10), 1: where(1), 3: where(3)}
    assert place.directory.addresses.heard == Standing(generation=4, leader=1, round=17, is_on=True)
    assert leaf.over is None


def test_who_comes_to_a_run_that_is_on_does_not_wait_for_all(place: Place) -> None:
    """Rank 0, started again, hears from one rank that the run is on under another, and that is enough."""
    one = place.visitor(1, 0, 2, 3)
    one.stands = lambda: Standing(generation=2, leader=1, round=9, is_on=True)
    gathering = Gathering(lambda missing: not missing, time.monotonic(), SOON)

    def look() -> None:
        one.take()

    found = place.directory.wait_for((1, 2, 3), look, gathering)
    assert found == {1: where(1)}
    assert place.directory.addresses.heard.leader == 1


def test_enough_begin_and_those_who_come_later_are_told_of(place: Place) -> None:
    place.meeting = replace(place.meeting, least=3)
    plan = Striped(4).plan(samples=40)
    one, two = place.visitor(1, 0, 2, 3), place.visitor(2, 0, 1, 3)

    def look() -> None:
        for visitor in (one, two):
            visitor.take()

    gathering = Gathering(sufficient(plan, least=3), time.monotonic(), SOON)
    found = place.directory.wait_for((1, 2, 3), look, gathering)
    assert found == {1: where(1), 2: where(2)}
    assert not one.knows, "nobody begins before enough do"
    place.directory.begin(found)
    place.until(lambda: bool(one.knows) and bool(two.knows), one, two)
    assert one.knows == {0: where(0), 2: where(2)}
    late = place.visitor(3, 0, 1, 2)
    place.until(lambda: 3 in one.knows and 3 in two.knows and len(late.knows) == 3, one, two, late)
    assert place.directory.addresses.moved[3] == where(3)


def test_a_second_process_is_refused_while_the_first_is_there(place: Place) -> None:
    first = place.visitor(3, 0)
    place.until(lambda: bool(first.knows), first)
    for node, process in ((3, 8), (0, 9)):
        with pytest.raises(JoinRefused, match=f"rank {node} is taken"):
            place.visitor(node, 0, process=process).find(place.directory.serve)
    assert place.directory.addresses.known[3] == where(3)
    first.close()
    second = place.visitor(3, 0, process=8, listens=where(33))
    assert second.find(place.directory.serve) == {0: where(0)}
    assert place.directory.addresses.known[3] == where(33)


def test_a_process_that_lost_its_connection_is_not_taken_for_a_second_one(place: Place) -> None:
    visitor = place.visitor(3, 0)
    place.until(lambda: bool(visitor.knows), visitor)
    again = place.visitor(3, 0)  # another connection of the same process
    assert again.find(place.directory.serve) == {0: where(0)}


def test_who_waits_for_somebody_is_told_when_the_run_is_over(place: Place) -> None:
    waiting, told = place.visitor(3, 1), place.visitor(2, 0)
    place.until(lambda: bool(told.knows) and waiting._answer is not None, waiting, told)
    place.directory.close()
    for visitor in (waiting, told):
        assert visitor._socket.poll(1000 * PATIENCE)
        visitor.take()
        assert visitor.over == "the run is over: the root has left"


def test_any_of_several_places_will_do() -> None:
    """Nobody answers at the first; the second is this machine's; the third is another's."""
    context: Context = zmq.Context()
    meeting = Meeting(run="several", host="127.0.0.9", port=29713, also=("127.0.0.8", "127.0.0.9", "192.0.2.1"))
    assert meeting.addresses == ("tcp://127.0.0.9:29713", "tcp://127.0.0.8:29713", "tcp://192.0.2.1:29713")
    directory, other = Directory(context, meeting), Directory(context, meeting)
    try:
        assert directory.listener.open(meeting.addresses[1]) is Opened.HERE
        assert other.listener.open(meeting.addresses[1]) is Opened.TAKEN
        assert other.listener.open(meeting.addresses[2]) is Opened.ELSEWHERE
        directory.addresses.add(0, where(0))
        visitor = Visitor(context, meeting, Registration("several", 3, (0,), None))
        assert visitor.find(directory.serve) == {0: where(0)}
        visitor.close()
    finally:
        context.destroy(linger=0)


def test_who_gets_no_answer_says_where_it_asked() -> None:
    context: Context = zmq.Context()
    meeting = Meeting(run="nobody", host="127.0.0.9", port=29714, also=("127.0.0.8",), root_within=0.1)
    try:
        with pytest.raises(UsageError, match=r"no answer from the root at tcp://127.0.0.9:29714 or tcp://127.0.0.8"):
            Visitor(context, meeting, Registration("nobody", 3, (0,), None)).find()
    finally:
        context.destroy(linger=0)


def test_rubbish_is_not_answered(place: Place) -> None:
    rogue = place.context.socket(zmq.DEALER)
    rogue.connect(place.meeting.address)
    for body in (b"", b"nonsense", msgspec.msgpack.encode([1, 2, 3])):
        rogue.send(body)
    visitor = place.visitor(3, 0)
    assert visitor.find(place.directory.serve) == {0: where(0)}
    assert not rogue.poll(50)


def test_what_a_launcher_says_of_places_and_of_enough() -> None:
    said = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2000"}
    plain = read_membership(said)
    assert plain is not None
    assert (plain.meeting.also, plain.meeting.least) == ((), None)
    member = read_membership({**said, "CODEDREDUCE_ALSO_AT": "10.0.0.2, 10.0.0.3", "CODEDREDUCE_LEAST": "3"})
    assert member is not None
    assert member.meeting.also == ("10.0.0.2", "10.0.0.3")
    assert member.meeting.least == 3
    with pytest.raises(UsageError, match="CODEDREDUCE_LEAST must be a number, got 'many'"):
        read_membership({**said, "CODEDREDUCE_LEAST": "many"})


def test_all_find_each_other_whatever_the_order_also_where_one_is_slow() -> None:
    """Threads instead of turns: nobody hangs, whoever registers while others are answered."""
    place = Place()
    found: dict[int, dict[int, Endpoints]] = {}

    def come(node: int, after: float) -> None:
        time.sleep(after)
        others = tuple(other for other in range(5) if other != node)
        found[node] = place.visitor(node, *others).find()

    threads = [threading.Thread(target=come, args=(node, 0.02 * (5 - node))) for node in range(1, 5)]
    try:
        for thread in threads:
            thread.start()
        place.directory.wait_for((1, 2, 3, 4), lambda: None)
        place.directory.begin({})
        for thread in threads:
            thread.join(timeout=PATIENCE)
        assert {node: sorted(others) for node, others in found.items()} == {
            node: [other for other in range(5) if other != node] for node in range(1, 5)
        }
    finally:
        place.close()


class Machine:
    """One that leads, when it is told to."""

    node, round, generation, leader = 1, 7, 3, 0

    def handle(self, event: happening.Event, now: float) -> list[happening.AnyAction]:
        return [happening.Finished(reason="")] if isinstance(event, happening.Leave) else []


def test_who_leads_answers_where_the_run_meets_as_soon_as_nobody_else_does(place: Place) -> None:
    """Rank 1 comes to lead while rank 0's book is open; when that is gone, rank 1's is found, with all it knows."""
    plan = Striped(3).plan(samples=30)
    run = Run.of(place.meeting, plan, 10)
    meeting, context = run.meeting, place.contexts[0]
    directory = Directory(context, meeting, owner=1, process=5)
    directory.addresses.add(1, where(1))
    visitor = place.visitor(1, 0, 2, process=5)
    visitor.knows = {0: where(0), 2: where(2)}
    mesh = Mesh(context, 1, run.settings, Buffers(run, 1), rights_at(1, run.plan))
    mesh.listen("tcp://127.0.0.1")
    mesh.expect((0, 2))
    machine = Machine()
    met = Met(run=run, directory=directory, visitor=visitor)
    driver = Driver(machine, mesh, lambda action: None, met, timing=SOON)  # type: ignore[arg-type]
    driver.start()
    try:
        machine.leader = 1
        driver._wake()
        time.sleep(0.1)  # it tries, in vain
        place.directory.close(is_over=False)
        context2: Context = zmq.Context()
        place.contexts.append(context2)
        nobody = f"ipc://@codedreduce-{os.getpid()}-nobody"
        listens = Endpoints(f"{nobody}-control", f"{nobody}-data")
        late = Visitor(context2, meeting, Registration(meeting.run, 2, (0, 1), listens, meeting.subject, 9))
        assert late.find() == {0: where(0), 1: where(1)}
        assert late.standing == Standing(generation=3, leader=1, round=7, is_on=True)
        late.close()
        assert wait_until(lambda: mesh._links[2].planes[1].leads_to == listens.data), "and who leads hears where it is"
    finally:
        driver.leave("over")
    assert driver.failure is None
