"""What is not a neighbour's to say is answered by a note or a refusal, and changes nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from codedreduce.errors import WireError
from codedreduce.protocol import Settings, TreeWorker
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.core.wire import decode, encode
from codedreduce.protocol.tree.ring_node import RingState
from codedreduce.protocol.tree.root import RootState
from codedreduce.protocol.tree.tree_worker_table import TreeWorkerState
from tests.unit.conversation import DEEP, PROGRESSIVE, SETTINGS, Talk, led_to, of_type, sent, state_of

STRANGER = 99


def changes_nothing(talk: Talk, sender: int, message: said.AnyMessage, data: Any = None) -> list[Any]:
    """Let a message arrive that must leave the machine as it is; what it answers."""
    before = state_of(talk.machine)
    actions = talk.hears(sender, message, data)
    assert state_of(talk.machine) == before
    assert not of_type(actions, happening.Finished)
    return actions


def is_noted(talk: Talk, sender: int, message: said.AnyMessage, data: Any = None, kind: str = "stranger") -> None:
    (note,) = changes_nothing(talk, sender, message, data)
    assert (note.kind, note.nodes) == (kind, (sender,))
    assert f"node {sender} sent node {talk.machine.node} " in note.reason


@pytest.mark.parametrize("state", [TreeWorkerState.WORKING, TreeWorkerState.RESTING], ids=lambda state: state.name)
@pytest.mark.parametrize("task", [0, 999, 2**53, PROGRESSIVE.delegated(999)])
@pytest.mark.parametrize("name", ["inner worker", "leaf", "eager leaf", "cyclic inner worker", "live worker"])
def test_a_task_that_does_not_exist(name: str, task: int, state: TreeWorkerState) -> None:
    talk = led_to(name, state)
    is_noted(talk, talk.parent, said.Next(round=1, task=task, push=True), kind="unreadable")


def test_a_task_of_another_s() -> None:
    """Leaf 3 stands in for 4, and if its parent does for 2, for 5 and 6; or it does its parent's one unit."""
    talk = led_to("leaf", TreeWorkerState.RESTING)
    for task in (1, 2, PROGRESSIVE.delegated(3), PROGRESSIVE.delegated(6)):
        is_noted(talk, 1, said.Next(round=1, task=task, push=True), kind="unreadable")
    for task in (4, 5, 6, PROGRESSIVE.delegated(1), PROGRESSIVE.delegated(2)):
        assert of_type(talk.hears(1, said.Next(round=1, task=task, push=True)), happening.Compute)
        talk.computes()


COMMANDS = [
    said.Send(round=1, task=1),
    said.Settle(round=1),
    said.Enough(round=1, task=1),
    said.Next(round=1, task=2, push=True),
    said.Welcome(),
    said.Welcome(generation=7),
    said.Refuse(reason="go away"),
]


@pytest.mark.parametrize("state", list(TreeWorkerState)[:-1], ids=lambda state: state.name)
@pytest.mark.parametrize("message", COMMANDS, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("sender", [3, 2, 1, STRANGER], ids=["child", "sibling", "itself", "stranger"])
def test_only_a_parent_commands(sender: int, message: said.AnyMessage, state: TreeWorkerState) -> None:
    is_noted(led_to("inner worker", state), sender, message)


@pytest.mark.parametrize("state", list(TreeWorkerState)[:-1], ids=lambda state: state.name)
def test_a_parent_s_goodbye_and_model_are_its_own(state: TreeWorkerState) -> None:
    talk = led_to("inner worker", state)
    is_noted(talk, STRANGER, said.Goodbye(reason="it is over"))
    for sender in (3, STRANGER):
        is_noted(talk, sender, said.ModelChunk(round=9, index=0), 1.0)


@pytest.mark.parametrize("state", [RootState.IDLE, RootState.COLLECTING, RootState.SETTLING], ids=lambda s: s.name)
def test_only_children_deliver(state: RootState) -> None:
    talk = led_to("root", state)
    for sender in (3, STRANGER):  # a grandchild is a stranger too
        for message in (said.Offer(round=1, task=1), said.Ready(), said.Late(round=1, node=1, seconds=1.0)):
            is_noted(talk, sender, message)
        is_noted(talk, sender, said.ShareChunk(round=1, task=1, index=0), 1.0)


WRONG = [(0, 3), (0, 5), (0, 0), (2, 4), (3, 4), (3, 2), (2**53, 4), (0, None)]


@pytest.mark.parametrize(("index", "length"), WRONG)
def test_a_chunk_of_a_wrong_index_or_length(index: int, length: int | None) -> None:
    data = None if length is None else np.ones(length, np.float32)
    root, worker, ring = (
        led_to("root", RootState.COLLECTING),
        led_to("inner worker", TreeWorkerState.WORKING),
        led_to("ring node", RingState.EXCHANGING),
    )
    is_noted(root, 1, said.ShareChunk(round=1, task=1, index=index), data, kind="unreadable")
    is_noted(worker, 0, said.ModelChunk(round=2, index=index), data, kind="unreadable")
    is_noted(worker, 3, said.ShareChunk(round=1, task=3, index=index), data, kind="unreadable")
    for segment in (0, 3, 2**53):
        if (segment, index, length) != (0, 0, 3):  # segments of 10 numbers for three have three or four
            chunk = said.RingChunk(round=1, segment=segment, index=index, finished=False)
            is_noted(ring, 1, chunk, data, kind="unreadable")


# -- ranks

ORDERS = [
    said.Go(round=9),
    said.Do(round=1, parts=((2, 0, 2),)),
    said.Cut(round=1, unit=2, end=0),
    said.Tell(round=1),
    said.NewReducer(round=1, stripe=0, reducer=2),
    said.Give(round=1, to=1),
    said.Renew(round=1),
    said.End(round=1),
    said.Refuse(reason="go away"),
]
RANK_STATES = [state for state in RankState if state is not RankState.LEFT]


@pytest.mark.parametrize("state", RANK_STATES, ids=lambda state: state.name)
@pytest.mark.parametrize("message", ORDERS, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("sender", [1, 2, STRANGER], ids=["peer", "itself", "stranger"])
def test_only_the_coordinator_commands(sender: int, message: said.AnyMessage, state: RankState) -> None:
    is_noted(led_to("rank", state), sender, message)


@pytest.mark.parametrize("state", RANK_STATES, ids=lambda state: state.name)
def test_a_stranger_neither_leads_nor_ends_a_run(state: RankState) -> None:
    for message in (said.Welcome(generation=8), said.Goodbye(reason="it is over"), said.Lead(generation=7, round=9)):
        is_noted(led_to("rank", state), STRANGER, message)


@pytest.mark.parametrize("state", RANK_STATES, ids=lambda state: state.name)
def test_a_generation_is_led_by_its_own_rank(state: RankState) -> None:
    """7 is rank 1's of three, 8 is rank 2's, which is this one."""
    for generation in (0, 6, 8):
        actions = changes_nothing(led_to("rank", state), 1, said.Welcome(generation=generation))
        assert actions == []
    talk = led_to("rank", state)
    talk.hears(1, said.Welcome(generation=7))
    assert (talk.machine.generation, talk.machine.leader) == (7, 1)
    changes_nothing(talk, 0, said.Go(round=9))
    changes_nothing(talk, 0, said.End(round=1))


@pytest.mark.parametrize("message", ORDERS[:6], ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("state", [RankState.RESTING, RankState.WORKING, RankState.ENDING], ids=lambda s: s.name)
def test_nobody_commands_rank_0(message: said.AnyMessage, state: RankState) -> None:
    is_noted(led_to("coordinator", state), 1, message)


@pytest.mark.parametrize(("index", "length"), WRONG)
def test_a_chunk_of_a_rank_of_a_wrong_index_or_length(index: int, length: int | None) -> None:
    data = None if length is None else np.ones(length, np.float32)
    rank = led_to("rank", RankState.WORKING)
    is_noted(rank, 1, said.PartChunk(round=1, unit=1, first=0, last=2, index=index), data, kind="unreadable")
    is_noted(rank, 1, said.SumChunk(round=1, index=index), data, kind="unreadable")


@pytest.mark.parametrize(
    "place", [(3, 0, 2), (99, 0, 1), (1, 0, 3), (1, 1, 1), (1, 0, 0), (1, 2, 1), (2**53, 0, 1), (1, 1, 3)]
)
def test_parts_that_do_not_exist(place: tuple[int, int, int]) -> None:
    unit, first, last = place
    chunk = said.PartChunk(round=1, unit=unit, first=first, last=last, index=2)
    is_noted(led_to("rank", RankState.WORKING), 1, chunk, 1.0, kind="unreadable")
    talk = led_to("rank", RankState.READY)
    assert not of_type(talk.go(parts=[place]), happening.Compute)
    assert not of_type(talk.hears(0, said.Do(round=1, parts=(place,))), happening.Compute)
    leader = led_to("coordinator", RankState.WORKING)
    assert changes_nothing(leader, 1, said.Done(round=1, unit=unit, first=first, last=last)) == []


def test_what_a_rank_cannot_read_it_does_not_compute() -> None:
    talk = led_to("rank of a group", RankState.READY)
    assert not of_type(talk.go(parts=[(0, 0, 4)]), happening.Compute)
    assert of_type(talk.hears(0, said.Do(round=1, parts=((3, 0, 4),))), happening.Compute)


@pytest.mark.parametrize("chunk", [said.StateChunk(index=2, of=2), said.StateChunk(index=0, of=2)])
def test_pieces_of_a_state(chunk: said.StateChunk) -> None:
    """There is no third piece of two, no empty one, none that is too large, nor a short one that is not the last."""
    talk = led_to("rank", RankState.RENEWING)
    length = 2 if chunk.index else 3
    is_noted(talk, 1, chunk, np.ones(length, np.float32), kind="unreadable")
    for short in (0, 1):
        is_noted(talk, 1, said.StateChunk(index=0, of=2), np.ones(short, np.float32), kind="unreadable")


@pytest.mark.parametrize(
    "chunk",
    [
        said.StateChunk(index=0, of=2),  # that was not asked for, since nobody has offered it
        said.StateChunk(round=1, index=0, of=1),
    ],
    ids=repr,
)
def test_a_state_that_nobody_offered_is_not_taken(chunk: said.StateChunk) -> None:
    talk = led_to("rank", RankState.RENEWING)
    assert changes_nothing(talk, 1, chunk, 1.0) == []


def test_a_state_of_a_round_that_was_not_is_not_taken() -> None:
    talk = led_to("rank", RankState.RENEWING)
    (no,) = sent(talk.hears(1, said.StateOffer(round=9, of=1, digest="x")), said.Take)
    assert no.message.pieces == ()
    assert changes_nothing(talk, 1, said.StateChunk(round=9, index=0, of=1), 1.0) == []


def test_an_end_is_said_once() -> None:
    talk = led_to("rank", RankState.READY)
    assert of_type(talk.hears(0, said.End(round=0)), happening.Ended)
    assert changes_nothing(talk, 0, said.End(round=9)) == []


def test_units_that_do_not_exist_are_not_done_again() -> None:
    talk = led_to("coordinator", RankState.WORKING)
    talk.computes()
    talk.parts_come()
    talk.timer(Timer.SUM_LATE)
    for rank in (1, 2):
        talk.hears(rank, said.Status(round=1, lacks=(99, 2**53)))
    assert not sent(talk.timer(Timer.SUM_LATE), said.Do)


# -- generations


@pytest.mark.parametrize("generation", [0, 3, 8])
def test_a_hello_of_any_generation_is_answered_with_the_current_one(generation: int) -> None:
    settings = Settings(length=10, chunk=4, generation=3)
    parent = Talk(TreeWorker(1, DEEP, settings))
    child = Talk(TreeWorker(3, DEEP, Settings(length=10, chunk=4, generation=generation)))
    (hello,) = sent(child.done, said.Hello)
    assert hello.message.generation == generation
    (welcome,) = sent(parent.hears(3, hello.message), said.Welcome)
    assert welcome.message.generation == 3
    child.hears(1, welcome.message)
    assert (child.machine.state, child.machine.generation) == (TreeWorkerState.WAITING, 3)
    child.hears(1, said.ModelChunk(round=1, index=0, generation=3), 1.0)
    assert child.machine.state is TreeWorkerState.LOADING


def test_a_new_generation_goes_down_the_tree() -> None:
    talk = led_to("inner worker below another", TreeWorkerState.RESTING)
    told = sent(talk.hears(1, said.Welcome(generation=4)), said.Welcome)
    assert [(one.to, one.message.generation) for one in told] == [(7, 4), (8, 4)]
    (hello,) = talk.hears(1, said.ModelChunk(round=2, index=0, generation=0), 1.0)
    assert (hello.to, type(hello.message), hello.message.generation) == (1, said.Hello, 4), (
        "it is told once, if it errs"
    )
    assert changes_nothing(talk, 1, said.ModelChunk(round=2, index=0, generation=0), 1.0) == []
    for child in (7, 8, 7, 8):
        talk.happens(happening.Drained(peer=child))
    passed_on = sent(talk.hears(1, said.ModelChunk(round=2, index=0, generation=4), 1.0), said.ModelChunk)
    assert {one.message.generation for one in passed_on} == {4}


@pytest.mark.parametrize("message", [said.Enough(round=1, task=1, generation=1), said.Settle(round=1, generation=1)])
def test_other_messages_of_another_generation_are_dropped(message: said.AnyMessage) -> None:
    assert changes_nothing(led_to("inner worker", TreeWorkerState.WORKING), 0, message) == []


# -- a ring


def ring_chunk(segment: int, *, finished: bool, round_: int = 1) -> said.RingChunk:
    return said.RingChunk(round=round_, segment=segment, index=0, finished=finished)


def test_a_ring_takes_every_chunk_once() -> None:
    """Node 2 of three begins with segment 1, adds to 0, and is the last to add to 2."""
    talk = led_to("ring node", RingState.EXCHANGING)
    assert len(sent(talk.hears(1, ring_chunk(0, finished=False), 1.0), said.RingChunk)) == 1
    assert changes_nothing(talk, 1, ring_chunk(0, finished=False), 1.0) == []
    talk.hears(1, ring_chunk(0, finished=True), 9.0)
    assert changes_nothing(talk, 1, ring_chunk(0, finished=True), 1.0) == []


def test_a_ring_takes_nothing_finished_before_it_has_added_to_it() -> None:
    talk = led_to("ring node", RingState.EXCHANGING)
    assert changes_nothing(talk, 1, ring_chunk(0, finished=True), 9.0) == []
    assert changes_nothing(talk, 1, ring_chunk(1, finished=False), 9.0) == [], "it began here"
    assert changes_nothing(talk, 1, ring_chunk(2, finished=True), 9.0) == [], "it ends here"


def test_only_the_one_before_speaks_in_a_ring() -> None:
    for state in (RingState.WAITING, RingState.COMPUTING, RingState.EXCHANGING):
        talk = led_to("ring node", state)
        for sender in (3, 2, 0, STRANGER):
            is_noted(talk, sender, ring_chunk(0, finished=False), 1.0)
        is_noted(talk, 1, said.Goodbye(reason="it is over"))


def test_a_ring_forgets_what_came_early_for_a_round_that_never_was() -> None:
    talk = led_to("ring node", RingState.WAITING)
    talk.hears(1, ring_chunk(0, finished=False, round_=1), 1.0)
    talk.happens(happening.Begin(round=2, model=np.zeros(10, np.float32)))
    talk.hears(1, ring_chunk(0, finished=False, round_=2), 1.0)
    assert {key[0] for key in talk.machine._early} == {2}


# -- what cannot be read at all


@pytest.mark.parametrize(
    "message",
    [
        said.ShareChunk(task=1, index=0, covered=0.0),
        said.ShareChunk(task=1, index=0, worked=float("inf")),
        said.Offer(task=1, worked=float("inf")),
        said.Offer(task=1, worked=float("nan")),
        said.Offer(task=1, worked=-1.0),
        said.Late(node=1, seconds=1e300),
        said.Send(task=1, chunks=(0,) * 4097),
        said.Done(unit=1, first=0, last=1, worked=float("inf")),
        said.Done(unit=1, first=0, last=1, block=float("nan")),
        said.Done(unit=1, first=0, last=4097),
        said.Done(unit=1, first=0, last=1, digest="x" * 1001),
        said.Go(parts=((0, 0, 1),) * 4097),
        said.Go(reducers=((0, 4097),)),
        said.Go(reducers=((0, 1),) * 4097),
        said.Do(parts=((-1, 0, 1),)),
        said.Cut(unit=1, end=4097),
        said.Status(done=-1),
        said.Status(lacks=(0,) * 4097),
        said.NewReducer(stripe=0, reducer=2**53 + 1),
        said.PartChunk(unit=0, first=-1, last=1, index=0),
        said.Want(chunks=(0,) * 4097),
        said.StateOffer(of=0),
        said.Take(pieces=(0,) * 4097),
        said.StateChunk(index=0, of=0),
        said.StateChunk(index=0, of=2**24 + 1),
    ],
    ids=repr,
)
def test_numbers_that_mean_nothing(message: said.AnyMessage) -> None:
    """Nothing was done, or it took for ever: a machine would divide by it, or set a timer to it."""
    with pytest.raises(WireError):
        decode(encode(message), 16, SETTINGS.chunk_bytes)


def test_only_workers_can_be_late() -> None:
    talk = led_to("root of a star", RootState.COLLECTING)
    for child in talk.children:
        talk.delivers(child, child, late=(0, 2, 4, 2**53))
    (result,) = of_type(talk.done, happening.Aggregated)
    assert result.late == (2,)
    late = said.Late(round=1, node=4, seconds=1.0)
    assert changes_nothing(talk, 1, late) == []
    assert changes_nothing(led_to("inner worker", TreeWorkerState.WORKING), 3, said.Late(node=99, seconds=1.0)) == []


# -- a parent's own unit, done by a child


def test_half_a_unit_is_not_taken_for_it() -> None:
    talk = led_to("inner worker", TreeWorkerState.WORKING)
    own = PROGRESSIVE.delegated(1)
    talk.delivers(3, own, covered=0.5)
    assert talk.machine.delivering.total is None
    assert not of_type(talk.done, happening.Cancel)
    talk.computes()
    talk.hears(4, said.ShareChunk(round=1, task=own, index=0, covered=0.25), 1.0)
    assert list(talk.machine.below.ledger.shares.wanted()) == [talk.machine.below.ledger.shares.find(t) for t in (3, 4)]
