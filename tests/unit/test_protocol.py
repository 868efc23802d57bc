"""Machines fed by hand: whatever is said to them, they do not fall over."""

import subprocess
import sys

import numpy as np
import pytest

from codedreduce import CodedReduce, LiveCompensation, MasterWorker, RingAllReduce, Tree
from codedreduce.errors import ProtocolError
from codedreduce.protocol import RingNode, Root, Settings, Worker, diagram
from codedreduce.protocol import events as happening
from codedreduce.protocol import messages as said
from codedreduce.protocol.outbox import Outbox
from tests.simulation.diagrams import DOCUMENT, with_diagrams

SETTINGS = Settings(length=10, chunk=4)
PLAN = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)
VECTOR = np.ones(10, np.float32)

MESSAGES = [
    said.Hello(plan=f"{PLAN.scheme}, 60 samples, 10 numbers"),
    said.Hello(plan="something else"),
    said.Welcome(),
    said.Refuse(reason="no"),
    said.Ready(),

    said.Goodbye(reason="bye"),
    *(said.ModelChunk(round=r, index=i) for r in (0, 1, 2) for i in (0, 1, 2)),
    *(said.ShareChunk(round=r, task=t, index=i) for r in (0, 1) for t in (0, 3, 9) for i in (0, 2)),
    *(said.ShareChunk(round=1, task=t, index=i, covered=0.5) for t in (0, 3, 9) for i in (0, 2)),
    *(said.Offer(round=r, task=t) for r in (0, 1) for t in (0, 3, 4, 99)),
    *(said.Send(round=r, task=3, chunks=c) for r in (0, 1) for c in ((), (1,), (50,))),
    *(said.Next(round=r, task=t, push=p) for r in (0, 1) for t in (3, 4) for p in (True, False)),
    *(said.Enough(round=r, task=t) for r in (0, 1) for t in (1, 3)),
    said.Settle(round=1),
    said.Late(round=1, node=4, seconds=0.5),
    said.RingChunk(round=1, segment=0, index=0, finished=False),
    said.RingChunk(round=1, segment=99, index=7, finished=True),
    said.Welcome(generation=5),
]  # fmt: skip


def machines() -> list:
    settled = LiveCompensation(4, wait_for=3, blocks=2).plan(samples=60)
    return [
        lambda: Root(PLAN, SETTINGS),
        lambda: Worker(1, PLAN, SETTINGS),
        lambda: Worker(4, PLAN, SETTINGS),
        lambda: Root(settled, SETTINGS),
        lambda: Worker(2, settled, SETTINGS),
        lambda: RingNode(1, RingAllReduce(3).plan(samples=60), SETTINGS),
    ]


def data_for(message) -> np.ndarray | None:
    if not isinstance(message, said.DATA):
        return None
    if isinstance(message, said.RingChunk):
        return np.ones(3, np.float32)
    return VECTOR[SETTINGS.chunk_slice(message.index)]


@pytest.mark.parametrize("make", machines())
def test_any_message_in_any_state_is_handled_or_dropped(make) -> None:
    states = list(type(make().state))
    for state in states:
        for message in MESSAGES:
            for sender in (0, 1, 3, 4, 77):
                machine = make()
                machine.state = state
                received = happening.Received(sender=sender, message=message, data=data_for(message))
                try:
                    actions = machine.handle(received, 1.0)
                except (AssertionError, KeyError):
                    if state.name in ("WAITING", "JOINING", "IDLE", "STOPPED", "LEFT"):
                        raise
                    continue  # a state set by hand, without what a real machine has in it by then
                assert isinstance(actions, list)


@pytest.mark.parametrize("make", machines())
def test_random_conversations(make) -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        machine = make()
        now = 0.0
        local = [
            lambda: happening.Drained(peer=int(random.integers(0, 5))),
            lambda: happening.PeerLost(peer=int(random.integers(0, 5))),
            lambda: happening.PeerFound(peer=int(random.integers(0, 5))),
            lambda: happening.TimerFired(name=str(random.choice(["redundancy", "patience", "settle", "settled"]))),
        ]
        if isinstance(machine, Worker):
            local.append(lambda: happening.Computed(round=1, task=3, vector=VECTOR.copy()))
        for _ in range(40):
            now += float(random.exponential())
            if random.random() < 0.7:
                message = MESSAGES[int(random.integers(len(MESSAGES)))]
                sender = int(random.choice([0, 1, 3, 4]))
                machine.handle(happening.Received(sender=sender, message=message, data=data_for(message)), now)
            elif machine.state.name == "IDLE" and random.random() < 0.5:
                machine.handle(happening.Begin(round=machine.round + 1, model=VECTOR), now)
            else:
                machine.handle(local[int(random.integers(len(local)))](), now)
            machine.check_invariants()


def test_impossible_local_events_raise_and_change_nothing() -> None:
    worker = Worker(1, PLAN, SETTINGS)
    worker.handle(happening.Started(), 0.0)
    with pytest.raises(ProtocolError, match=r"Begin cannot happen to node 1 in state JOINING; before it: Started at 0"):
        worker.handle(happening.Begin(round=1, model=VECTOR), 1.0)
    assert worker.state.name == "JOINING"
    root = Root(PLAN, SETTINGS)
    with pytest.raises(ProtocolError, match="a model of 3 numbers; the run was set up for 10"):
        root.handle(happening.Begin(round=1, model=VECTOR[:3]), 0.0)
    root.handle(happening.Begin(round=4, model=VECTOR), 0.0)
    root.state = type(root.state).IDLE
    with pytest.raises(ProtocolError, match="round 4 cannot follow round 4"):
        root.handle(happening.Begin(round=4, model=VECTOR), 0.0)


def test_a_node_with_another_plan_is_refused() -> None:
    root = Root(PLAN, SETTINGS)
    hello = said.Hello(plan=str(MasterWorker(6)))
    actions = root.handle(happening.Received(sender=1, message=hello), 0.0)
    refusal = actions[0].message
    assert isinstance(refusal, said.Refuse)
    assert "this run is coded-reduce" in refusal.reason
    assert "master-worker over 6 workers" in refusal.reason
    worker = Worker(1, PLAN, SETTINGS)
    actions = worker.handle(happening.Received(sender=0, message=refusal), 0.0)
    assert isinstance(actions[-1], happening.Finished)


def test_messages_of_another_generation_are_dropped() -> None:
    worker = Worker(1, PLAN, Settings(length=10, generation=2))
    assert worker.handle(happening.Received(sender=0, message=said.Welcome(generation=1)), 0.0) == []
    assert worker.state.name == "JOINING"
    worker.handle(happening.Received(sender=0, message=said.Welcome(generation=2)), 0.0)
    assert worker.state.name == "WAITING"


def test_outbox_keeps_a_window_and_forgets_old_rounds() -> None:
    box = Outbox(7, window=4)
    actions: list = []
    for index in range(10):
        box.put(said.ModelChunk(round=1, index=index), VECTOR, actions)
    assert [action.message.index for action in actions] == [0, 1, 2, 3]
    assert [action.marked for action in actions] == [False, True, False, True]
    box.drained(actions)
    assert [action.message.index for action in actions] == [0, 1, 2, 3, 4, 5]
    box.clear()
    box.put(said.ModelChunk(round=2, index=0), VECTOR, actions)
    assert len(actions) == 6, "the window is still full of the old round"
    box.drained(actions)
    assert actions[-1].message.round == 2
    assert (box.in_flight, box.waiting) == (3, 0)


@pytest.mark.parametrize("machine", [Root, Worker, RingNode])
def test_diagrams_show_every_state(machine) -> None:
    drawn = diagram(machine)
    for row in machine.ROWS:
        for state in row.states:
            assert state.name in drawn


def test_the_protocol_needs_no_sockets_clocks_or_threads() -> None:
    program = """
import sys, numpy, msgspec
blocked = ("socket", "time", "threading", "zmq", "torch", "asyncio", "multiprocessing", "subprocess")
for name in blocked:
    sys.modules[name] = None
import codedreduce.protocol, codedreduce.protocol.wire
print("imported")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "imported\n", run.stderr


def test_the_document_shows_the_tables_as_they_are() -> None:
    text = DOCUMENT.read_text()
    assert text.count("```mermaid") == 3
    assert with_diagrams(text) == text, "run: make docs"


class Hand:
    """Feeds one machine by hand, a second a message."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.now = 0.0
        machine.handle(happening.Started(), 0.0)

    def get(self, sender: int, message, value: float | None = None) -> list:
        self.now += 1
        length = self.machine.settings.length
        data = None if value is None else np.full(length, value, np.float32)
        return self.machine.handle(happening.Received(sender=sender, message=message, data=data), self.now)

    def join(self, *children: int) -> None:
        for child in children:
            self.get(child, said.Hello(plan=self.machine.run_name()))
            self.get(child, said.Ready())


def sent(actions: list, kind: type) -> list:
    return [a for a in actions if isinstance(a, happening.Transmit) and isinstance(a.message, kind)]


def test_an_old_unit_is_not_taken_for_the_parent_s() -> None:
    plan = CodedReduce(Tree.regular(fanout=2, depth=3), 1).plan(samples=1400)
    hand = Hand(Worker(3, plan, Settings(length=4)))
    hand.get(1, said.Welcome())
    hand.join(7, 8)
    hand.get(1, said.ModelChunk(round=1, index=0), 0.0)
    hand.get(1, said.Enough(round=1, task=3))
    for_parent = plan.delegated(1)
    hand.get(1, said.Next(round=1, task=for_parent, push=False))
    old = hand.get(7, said.ShareChunk(round=1, task=plan.delegated(3), index=0), 777.0)
    assert not sent(old, said.Offer)
    assert not any(isinstance(action, happening.Cancel) for action in old)
    done = happening.Computed(round=1, task=for_parent, vector=np.full(4, 5, np.float32))
    assert sent(hand.machine.handle(done, 9.0), said.Offer)
    (chunk,) = sent(hand.get(1, said.Send(round=1, task=for_parent)), said.ShareChunk)
    assert chunk.data.tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("announce", [True, False])
def test_a_sum_is_announced_where_that_is_agreed(announce: bool) -> None:
    hand = Hand(Worker(3, PLAN, Settings(length=4, announce=announce)))
    hand.get(1, said.Welcome())
    hand.get(1, said.ModelChunk(round=1, index=0), 0.0)
    actions = hand.machine.handle(happening.Computed(round=1, task=3, vector=np.ones(4, np.float32)), 2.0)
    assert len(sent(actions, said.Offer)) == announce
    assert len(sent(actions, said.ShareChunk)) == 1


def test_a_worker_with_a_new_connection_takes_the_model_again() -> None:
    hand = Hand(Worker(1, MasterWorker(2).plan(samples=14), Settings(length=4)))
    hand.get(0, said.Welcome())
    hand.get(0, said.ModelChunk(round=1, index=0), 0.0)
    hand.machine.handle(happening.PeerLost(peer=0), 5.0)
    assert sent(hand.machine.handle(happening.PeerFound(peer=0), 6.0), said.Hello)
    hand.get(0, said.Welcome(round=1))
    actions = hand.get(0, said.ModelChunk(round=1, index=0), 0.0)
    assert any(isinstance(action, happening.Compute) for action in actions)


def test_a_replica_that_dies_and_returns_is_asked_again() -> None:
    plan = CodedReduce(Tree.regular(fanout=2, depth=1), 1).plan(samples=14)
    hand = Hand(Root(plan, Settings(length=4, say_waiting_after=500)))
    hand.join(1, 2)
    root = hand.machine
    root.handle(happening.Begin(round=1, model=np.zeros(4, np.float32)), 5.0)
    root.handle(happening.PeerLost(peer=2), 5.5)
    hand.now = 5.0
    hand.get(1, said.ShareChunk(round=1, task=1, index=0), 1.0)
    assert sent(root.handle(happening.TimerFired(name="redundancy"), 6.5), said.Next)
    root.handle(happening.PeerLost(peer=1), 7.0)
    hand.now = 8.0
    assert sent(hand.get(1, said.Hello(plan=root.run_name())), said.ModelChunk)
    hand.get(1, said.ShareChunk(round=1, task=1, index=0), 1.0)
    asked = [sent(root.handle(happening.TimerFired(name="redundancy"), now), said.Next) for now in (11.0, 20.0)]
    assert any(asked), "it is idle again, and worker 2's share is still missing"


def test_partial_sums_are_not_decoded_as_whole_ones() -> None:
    plan = CodedReduce(Tree.regular(fanout=3, depth=1), 1, code="cyclic", order="eager").plan(samples=60)
    root = Root(plan, Settings(length=1))
    collector = root.collector
    collector.start(0, 0.0)
    parts = plan.allocation
    values = {
        child: float(sum(len(p) * p.weight for piece in parts.pieces(child, child) for p in piece))
        for child in (1, 2, 3)
    }
    assert collector.accept(1, 1, 0, np.array([1000.0], np.float32), covered=0.5)
    assert not collector.ready(0)
    for child in (2, 3):
        collector.accept(child, child, 0, np.array([values[child]], np.float32))
    assert collector.ready(0)
    assert collector.total(0, None)[0] == pytest.approx(60, rel=1e-4)


def test_live_compensation_is_stopped_by_the_next_model_alone() -> None:
    plan = LiveCompensation(3, wait_for=2, blocks=2).plan(samples=60)
    hand = Hand(Worker(1, plan, Settings(length=4)))
    hand.get(0, said.Welcome())
    hand.get(0, said.ModelChunk(round=1, index=0), 0.0)
    assert hand.get(0, said.Enough(round=1, task=1)) == []
    assert any(isinstance(a, happening.Cancel) for a in hand.get(0, said.ModelChunk(round=2, index=0), 0.0))
    late = happening.Computed(round=1, task=1, vector=np.ones(4, np.float32), covered=0.5)
    (chunk,) = sent(hand.machine.handle(late, 9.0), said.ShareChunk)
    assert (chunk.message.round, chunk.message.covered) == (1, 0.5)
