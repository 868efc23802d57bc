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
    said.Hello(plan=str(PLAN.scheme)),
    said.Hello(plan="something else"),
    said.Welcome(),
    said.Refuse(reason="no"),
    said.Ready(),
    said.Heartbeat(),
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
    return VECTOR[SETTINGS.part(message.index)]


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
