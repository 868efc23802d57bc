"""What machines do, told by conversations."""

import subprocess
import sys

import numpy as np
import pytest

from codedreduce import CodedReduce, LiveCompensation, MasterWorker, Tree
from codedreduce.errors import ProtocolError
from codedreduce.protocol import Root, Settings, TreeWorker
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.outbox import Outbox
from codedreduce.protocol.core.settings import Excess
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.root import RootState
from codedreduce.protocol.tree.shares import Arrival, Shares
from codedreduce.protocol.tree.tree_worker_table import TreeWorkerState
from tests.unit.conversation import PROGRESSIVE, SETTINGS, Talk, led_to, of_type, sent, state_of, worth

VECTOR = np.ones(10, np.float32)


def test_impossible_local_events_raise_and_change_nothing() -> None:
    worker = TreeWorker(1, PROGRESSIVE, SETTINGS)
    worker.handle(happening.Started(), 0.0)
    before = state_of(worker)
    with pytest.raises(ProtocolError, match=r"Begin cannot happen to node 1 in state JOINING; before it: Started at 0"):
        worker.handle(happening.Begin(round=1, model=VECTOR), 1.0)
    assert state_of(worker) == before
    root = led_to("root", RootState.IDLE).machine
    before = state_of(root)
    with pytest.raises(ProtocolError, match="a model of 3 numbers; the run was set up for 10"):
        root.handle(happening.Begin(round=2, model=VECTOR[:3]), 50.0)
    with pytest.raises(ProtocolError, match="round 1 cannot follow round 1"):
        root.handle(happening.Begin(round=1, model=VECTOR), 50.0)
    assert state_of(root) == before


def test_a_node_with_another_plan_is_refused() -> None:
    root = Talk(Root(PROGRESSIVE, SETTINGS))
    answer, note = root.hears(1, said.Hello(plan=str(MasterWorker(6))))
    assert "this run is coded-reduce" in answer.message.reason
    assert "master-worker over 6 workers" in answer.message.reason
    assert (note.kind, note.nodes) == ("refused", (1,))
    assert root.machine.below.roster.present() == []
    worker = Talk(TreeWorker(1, PROGRESSIVE, SETTINGS))
    assert of_type(worker.hears(0, answer.message), happening.Finished)
    assert worker.machine.refused == answer.message.reason


def test_outbox_keeps_a_window_and_forgets_old_rounds() -> None:
    actions: list = []
    box = Outbox(actions, 7, window=4)
    for index in range(10):
        box.put(said.ModelChunk(round=1, index=index), VECTOR)
    assert [action.message.index for action in actions] == [0, 1, 2, 3]
    assert [action.marked for action in actions] == [False, True, False, True]
    box.drained()
    assert [action.message.index for action in actions] == [0, 1, 2, 3, 4, 5]
    box.clear()
    box.put(said.ModelChunk(round=2, index=0), VECTOR)
    assert len(actions) == 6, "the window is still full of the old round"
    box.drained()
    assert actions[-1].message.round == 2
    assert (box.in_flight, box.waiting) == (3, 0)


def test_a_chunk_that_waits_is_not_queued_twice() -> None:
    actions: list = []
    box = Outbox(actions, 7, window=2)
    for covered in (0.5, 0.5, 0.75):
        for index in range(3):
            box.put(said.ShareChunk(round=1, task=4, index=index, covered=covered), VECTOR)
    assert box.waiting == 3
    for _ in range(9):
        box.drained()
    assert [(action.message.index, action.message.covered) for action in actions] == [
        (0, 0.5), (1, 0.5), (2, 0.75), (0, 0.75), (1, 0.75)
    ]  # fmt: skip


def test_the_protocol_needs_no_sockets_clocks_or_threads() -> None:
    program = """
import sys, numpy, msgspec
blocked = ("socket", "time", "threading", "zmq", "torch", "asyncio", "multiprocessing", "subprocess")
for name in blocked:
    sys.modules[name] = None
import codedreduce.protocol, codedreduce.protocol.core.wire
print("imported")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "imported\n", run.stderr


def test_an_old_unit_is_not_taken_for_the_parent_s() -> None:
    plan = CodedReduce(Tree.regular(fanout=2, depth=3), 1).plan(samples=1400)
    talk = Talk(TreeWorker(3, plan, Settings(length=4)))
    talk.hears(1, said.Welcome())
    talk.join(7, 8)
    talk.model(1)
    talk.hears(1, said.Enough(round=1, task=3))
    for_parent = plan.delegated(1)
    talk.hears(1, said.Next(round=1, task=for_parent, push=False))
    old = talk.hears(7, said.ShareChunk(round=1, task=plan.delegated(3), index=0), 777.0)
    assert not sent(old, said.Offer)
    assert not of_type(old, happening.Cancel)
    assert sent(talk.computes(), said.Offer)
    (chunk,) = sent(talk.hears(1, said.Send(round=1, task=for_parent)), said.ShareChunk)
    assert chunk.data.tolist() == [worth(1, for_parent)] * 4


@pytest.mark.parametrize("chunk", [4, 2])
def test_a_unit_done_by_a_child_is_added_to_in_a_place_of_the_parent_s_own(chunk: int) -> None:
    """What a child sends may lie in its memory, where it or another neighbour still reads it."""
    talk = Talk(TreeWorker(1, PROGRESSIVE, Settings(length=4, chunk=chunk)))
    talk.hears(0, said.Welcome())
    talk.join(3, 4)
    talk.model(1)
    talk.delivers(3, 3)
    talk.delivers(3, PROGRESSIVE.delegated(1))
    talk.delivers(4, 4)
    assert {number for one in sent(talk.done, said.ShareChunk) for number in one.data.tolist()} == {6.0}
    assert talk.machine.state is TreeWorkerState.RESTING


@pytest.mark.parametrize("announce", [True, False])
def test_a_sum_is_announced_where_that_is_agreed(announce: bool) -> None:
    talk = Talk(TreeWorker(3, PROGRESSIVE, Settings(length=4, announce=announce)))
    talk.hears(1, said.Welcome())
    talk.model(1)
    actions = talk.computes()
    assert len(sent(actions, said.Offer)) == announce
    assert len(sent(actions, said.ShareChunk)) == 1


def test_a_worker_with_a_new_connection_takes_the_model_again() -> None:
    talk = led_to("worker of a star", TreeWorkerState.WORKING)
    talk.happens(happening.PeerLost(peer=0))
    assert sent(talk.happens(happening.PeerFound(peer=0)), said.Hello)
    talk.hears(0, said.Welcome(round=1))
    assert of_type(talk.model(1), happening.Compute)


def test_a_replica_that_dies_and_returns_is_asked_again() -> None:
    plan = CodedReduce(Tree.regular(fanout=2, depth=1), 1).plan(samples=14)
    talk = Talk(Root(plan, Settings(length=4, excess=Excess(say_waiting_after=500))))
    talk.join(1, 2)
    talk.begin()
    talk.happens(happening.PeerLost(peer=2))
    talk.delivers(1, 1)
    assert sent(talk.timer(Timer.REDUNDANCY), said.Next)
    talk.happens(happening.PeerLost(peer=1))
    assert sent(talk.hears(1, said.Hello(plan=run_name(plan, talk.machine.settings))), said.ModelChunk)
    talk.delivers(1, 1)
    asked = [sent(talk.timer(Timer.REDUNDANCY), said.Next) for _ in range(5)]
    assert any(asked), "it is idle again, and worker 2's share is still missing"


def test_partial_sums_are_not_decoded_as_whole_ones() -> None:
    plan = CodedReduce(Tree.regular(fanout=3, depth=1), 1, code="cyclic", order="eager").plan(samples=60)
    shares = Shares(plan, 0, Settings(length=1))
    shares.start(0)
    values = {
        child: float(sum(len(p) * p.weight for piece in plan.pieces(child, child) for p in piece))
        for child in (1, 2, 3)
    }
    share = shares.find(1)
    assert share is not None
    assert share.take(0, np.array([1000.0], np.float32), 0.5) is Arrival.KEPT
    assert not shares.can_sum(0)
    for child in (2, 3):
        share = shares.find(child)
        assert share is not None
        assert share.take(0, np.array([values[child]], np.float32), 1.0) is Arrival.COMPLETED
    assert shares.can_sum(0)
    assert shares.total(0, None)[0] == pytest.approx(60, rel=1e-4)


def test_live_compensation_is_stopped_by_the_next_model_alone() -> None:
    plan = LiveCompensation(3, wait_for=2, blocks=2).plan(samples=60)
    talk = Talk(TreeWorker(1, plan, Settings(length=4)))
    talk.hears(0, said.Welcome())
    talk.model(1)
    assert talk.hears(0, said.Enough(round=1, task=1)) == []
    assert of_type(talk.model(2), happening.Cancel)
    talk.asked.pop()
    (chunk,) = sent(talk.computes(covered=0.5), said.ShareChunk)
    assert (chunk.message.round, chunk.message.covered) == (1, 0.5)


def test_a_share_no_longer_needed_is_not_begun() -> None:
    """A worker that still sums is asked for another share; while that waits for its turn, somebody delivers it."""
    talk = led_to("inner worker", TreeWorkerState.WORKING)
    assert talk.hears(0, said.Next(round=1, task=2, push=False)) == []
    assert talk.hears(0, said.Enough(round=1, task=2)) == []
    talk.computes()
    talk.all_deliver()
    assert talk.machine.state is TreeWorkerState.RESTING
    assert talk.asked == []


def test_a_worker_settles_only_in_the_round_it_was_asked_to() -> None:
    talk = led_to("inner worker", TreeWorkerState.WORKING)
    (timer,) = of_type(talk.hears(0, said.Settle(round=1)), happening.SetTimer)
    talk.model(2)
    talk.computes()
    assert not sent(talk.timer(timer.name), said.ShareChunk)
    talk.hears(0, said.Settle(round=2))
    assert {one.message.covered for one in sent(talk.timer(timer.name), said.ShareChunk)} == {1 / 3}


def test_who_returns_while_a_root_settles_is_given_the_model() -> None:
    talk = led_to("root of a star", RootState.COLLECTING)
    for child in talk.children:
        talk.happens(happening.PeerLost(peer=child))
    talk.timer(Timer.WAITING)
    assert talk.machine.state is RootState.SETTLING
    hello = said.Hello(plan=run_name(talk.machine.plan, SETTINGS))
    for child in talk.children:
        assert sent(talk.hears(child, hello), said.ModelChunk)
    talk.all_deliver()
    (result,) = of_type(talk.done, happening.Aggregated)
    assert result.residual == 0
