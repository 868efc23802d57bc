"""Every machine in every state it can be in: whatever is said to it from then on, by whom and in what order."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from codedreduce.protocol import Machine, RingNode, Root
from codedreduce.protocol import events as happening
from codedreduce.protocol import messages as said
from codedreduce.protocol.machine import State
from codedreduce.protocol.membership import run_name
from codedreduce.protocol.wire import decode, encode
from codedreduce.schemes import TreePlan
from tests.unit.conversation import SETTINGS, led_to, led_to_every_state
from tests.unit.peers import chunks, messages

EXAMPLES = int(os.environ.get("CODEDREDUCE_EXAMPLES", "8"))
TIMERS = ("redundancy", "waiting", "settled", "settle", "a timer of nobody's")
STRANGER = 99


def tasks_around(machine: Machine) -> list[int]:
    """The tasks that a node, its parent and its children speak of."""
    plan = machine.plan
    if not isinstance(plan, TreePlan):
        return [1]
    near = [machine.node, *plan.tree.children(machine.node)]
    own = sorted({task for node in near for task in plan.tasks(node)})
    return [*own, *(plan.delegated(task) for task in plan.tasks(machine.node))]


class GoingOn(RuleBasedStateMachine):
    """What can happen to a machine, in any order, from the state it was led to."""

    name: str
    begins_in: State

    def __init__(self) -> None:
        super().__init__()
        self.talk = led_to(self.name, self.begins_in)
        machine = self.machine = self.talk.machine
        self.seen = len(self.talk.done)
        self.workers = set(range(1, machine.plan.workers + 1))
        parents = [machine.plan.ring.previous(machine.node)] if isinstance(machine, RingNode) else []
        if not isinstance(machine, RingNode) and machine.node:
            parents = [self.talk.parent]
        friends = [*parents, *self.talk.children]
        self.senders = st.sampled_from([*friends, *friends, *friends, machine.node, machine.node + 1, STRANGER])
        self.peers = st.sampled_from([*friends, machine.node, STRANGER])
        plan = "none" if isinstance(machine, RingNode) else run_name(machine.plan, machine.settings)
        self.messages = messages(plan, tasks_around(machine))

    # -- what others say

    @rule(data=st.data())
    def hear_anything(self, data: st.DataObject) -> None:
        message = data.draw(self.messages)
        chunk = None
        if isinstance(message, said.DATA):
            chunk = data.draw(chunks(self.talk.chunk_length(message)))
        self.talk.hears(data.draw(self.senders), message, chunk)

    @rule(data=st.data())
    def hear_of_this_round(self, data: st.DataObject) -> None:
        """Nonsense is dropped at the door: most of what is said here is of the round, right in itself, and of use."""
        message: Any = data.draw(self.messages)
        nearby = data.draw(st.sampled_from([0, 0, 0, 1, -1]))
        changes = {"round": max(0, self.machine.round + nearby), "generation": self.machine.generation}
        message = type(message)(**{**{f: getattr(message, f) for f in message.__struct_fields__}, **changes})
        chunk = 3.0 if isinstance(message, said.DATA) else None
        self.talk.hears(data.draw(self.senders), message, chunk)

    # -- what happens at the node itself

    @rule(name=st.sampled_from(TIMERS))
    def timer(self, name: str) -> None:
        self.talk.timer(name)

    @rule(data=st.data(), kind=st.sampled_from([happening.PeerLost, happening.PeerFound, happening.Drained]))
    def connection(self, data: st.DataObject, kind: Any) -> None:
        self.talk.happens(kind(peer=data.draw(self.peers)))

    @precondition(lambda self: self.talk.asked)
    @rule(covered=st.sampled_from([1.0, 0.5, 0.0]), which=st.integers(0, 9))
    def computed(self, covered: float, which: int) -> None:
        task = self.talk.asked.pop(which % len(self.talk.asked))
        vector = np.ones(SETTINGS.length, np.float32)
        part = covered if task.salvage else 1.0
        self.talk.happens(happening.Computed(round=task.round, task=task.task, vector=vector, covered=part))

    @precondition(lambda self: self.talk.asked)
    @rule(seconds=st.sampled_from([-1.0, 0.0, 2.0]), which=st.integers(0, 9))
    def interrupted(self, seconds: float, which: int) -> None:
        task = self.talk.asked.pop(which % len(self.talk.asked))
        self.talk.happens(happening.Interrupted(round=task.round, task=task.task, seconds=seconds))

    @precondition(lambda self: self.machine.state.name == ("IDLE" if isinstance(self.machine, Root) else "WAITING"))
    @rule()
    def begin(self) -> None:
        if isinstance(self.machine, Root | RingNode):
            self.talk.begin()

    @precondition(lambda self: self.machine.state.name not in ("LEFT", "STOPPED"))
    @rule(sure=st.integers(0, 9))
    def leave(self, sure: int) -> None:
        if sure == 9:
            self.talk.leave()

    # -- what must hold after each of them (Talk also checks the machine's own invariants)

    @invariant()
    def what_it_says_can_be_read_by_a_neighbour(self) -> None:
        for action in self.talk.done[self.seen :]:
            if isinstance(action, happening.Transmit):
                assert action.to in self.talk.neighbours
                payload = 0 if action.data is None else 4 * len(action.data)
                assert decode(encode(action.message), payload, SETTINGS.chunk_bytes) == action.message
                assert set(getattr(action.message, "late", ())) <= self.workers
            elif isinstance(action, happening.Aggregated):
                assert len(action.vector) == SETTINGS.length
                assert set(action.late) <= self.workers
                assert 0 <= action.residual < 1
            elif isinstance(action, happening.SetTimer):
                assert self.talk.now <= action.at <= self.talk.now + 10 * said.LONGEST
        self.seen = len(self.talk.done)

    @invariant()
    def who_has_left_wants_nothing_more(self) -> None:
        finished = [i for i, action in enumerate(self.talk.done) if isinstance(action, happening.Finished)]
        if finished:
            after = self.talk.done[finished[0] + 1 :]
            assert all(isinstance(action, happening.Note) for action in after)


@pytest.mark.parametrize(("name", "state"), led_to_every_state(), ids=lambda one: getattr(one, "name", one))
def test_whatever_happens_from_any_state_on(name: str, state: State) -> None:
    machine = type("GoingOnFrom", (GoingOn,), {"name": name, "begins_in": state})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
