"""Machines of a tree whose computations fail: who is asked instead, who is told, and when it is over."""

from __future__ import annotations

import pytest

from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.root import RootState
from codedreduce.protocol.tree.tree_worker_table import TreeWorkerState
from codedreduce.run.failures import error_of
from tests.unit.conversation import PROGRESSIVE, Talk, led_to, of_type, sent


def fails(talk: Talk) -> list[object]:
    task = talk.asked.pop()
    return talk.happens(happening.Failed(round=task.round, task=task.task, reason="no"))


def asked(actions: list[object]) -> list[tuple[int, int]]:
    return [(one.to, one.message.task) for one in sent(actions, said.Next)]


def test_a_leaf_tells_its_parent_and_the_root() -> None:
    talk = led_to("leaf", TreeWorkerState.WORKING)
    actions = fails(talk)
    assert [one.message for one in of_type(actions, happening.Transmit)] == [
        said.Failure(round=1, troubles=((3, "no"),)),
        said.Unable(round=1, task=3, troubles=((3, "no"),)),
    ]
    assert talk.machine.state is TreeWorkerState.RESTING


def test_a_replica_is_asked_as_soon_as_it_is_idle() -> None:
    talk = led_to("root", RootState.COLLECTING)
    talk.hears(1, said.Unable(round=1, task=1, troubles=((1, "no"),)))
    talk.delivers(2, 2)
    assert asked(talk.timer(Timer.REDUNDANCY)) == [(2, 1)]


def test_who_failed_is_asked_for_something_else_if_nobody_is_idle() -> None:
    talk = led_to("root", RootState.COLLECTING)
    for child in (1, 2):
        talk.hears(child, said.Unable(round=1, task=child, troubles=((child, "no"),)))
    assert sorted(asked(talk.timer(Timer.REDUNDANCY))) == [(1, 2), (2, 1)]
    (finished,) = of_type(
        talk.hears(2, said.Unable(round=1, task=1, troubles=((2, "neither"),))), happening.Finished
    )  # fmt: skip
    assert finished.troubles == ((1, "no"), (2, "neither"))
    assert str(error_of(1, finished.troubles)) == "worker 1 failed: no; worker 2, asked instead: neither"
    assert talk.machine.state is RootState.STOPPED


def test_a_parent_that_fails_asks_a_child_for_its_unit() -> None:
    talk = led_to("inner worker", TreeWorkerState.WORKING)
    talk.delivers(3, 3)
    assert sent(fails(talk), said.Failure)
    own = PROGRESSIVE.delegated(1)
    assert asked(talk.timer(Timer.REDUNDANCY)) == [(3, own)]
    talk.delivers(3, own)
    talk.delivers(4, 4)
    assert talk.machine.state is TreeWorkerState.RESTING
    assert not sent(talk.done, said.Unable)


def test_a_parent_s_unit_that_fails_at_a_child_too_ends_the_run() -> None:
    talk = led_to("inner worker", TreeWorkerState.WORKING)
    talk.delivers(3, 3)
    fails(talk)
    talk.timer(Timer.REDUNDANCY)
    actions = talk.hears(3, said.Unable(round=1, task=PROGRESSIVE.delegated(1), troubles=((3, "nor here"),)))
    (last,) = sent(actions, said.Failure)
    assert last.message == said.Failure(round=1, troubles=((1, "no"), (3, "nor here")), ends=True)


@pytest.mark.parametrize("state", [RootState.COLLECTING, RootState.IDLE], ids=lambda state: state.name)
def test_a_failure_of_a_past_round_ends_nothing(state: RootState) -> None:
    talk = led_to("root", state)
    talk.hears(1, said.Failure(round=0, troubles=((3, "no"), (4, "no")), ends=True))
    assert talk.machine.state is state


def test_a_code_bears_as_many_failures_as_stragglers() -> None:
    talk = led_to("cyclic root", RootState.COLLECTING)
    (one, first), (other, second) = talk.machine.below.ledger.assignments()[:2]
    assert not of_type(talk.hears(one, said.Unable(round=1, task=first)), happening.Finished)
    assert of_type(talk.hears(other, said.Unable(round=1, task=second)), happening.Finished)


def test_live_compensation_bears_as_many_as_it_does_not_wait_for() -> None:
    talk = led_to("live root", RootState.COLLECTING)
    for child in (1, 2):
        assert not of_type(talk.hears(child, said.Unable(round=1, task=child)), happening.Finished)
    assert of_type(talk.hears(3, said.Unable(round=1, task=3)), happening.Finished)
