"""Every machine in every state it can be in: whatever is said to it from then on, by whom and in what order."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import cache
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from codedreduce.protocol import Machine, Rank, RingNode, Root, TreeWorker
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.machine import LEADER, OWN, PARENT, From, State
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.core.wire import decode, encode
from codedreduce.protocol.rights import beyond
from codedreduce.schemes import TreePlan
from tests.unit.conversation import SETTINGS, led_to, led_to_every_state, worth
from tests.unit.peers import LARGEST, Choices, choices, chunks, draw, messages

EXAMPLES = int(os.environ.get("CODEDREDUCE_EXAMPLES", "8"))
TIMERS = (*Timer, "a timer of nobody's")
STRANGER = 99
ENDS = ("LEFT", "STOPPED")

#: After these nothing more is said.
LAST_WORDS = [(kind, who) for kind in (said.Goodbye, said.Refuse) for who in (PARENT, LEADER)]

#: By state, what is taken from whom.
TAKEN: dict[State, list[tuple[type, From]]] = defaultdict(list)
for _machine in (Root, TreeWorker, RingNode, Rank):
    for _state, _kind, _who in _machine._table:
        if _who is not OWN:
            TAKEN[_state].append((_kind, _who))


def tasks_around(machine: Machine) -> list[int]:
    """The tasks that a node, its parent and its children speak of."""
    plan = machine.plan
    if not isinstance(plan, TreePlan):
        return [1]
    near = [machine.node, *plan.tree.children(machine.node)]
    own = sorted({task for node in near for task in plan.tasks(node)})
    return [*own, *(plan.delegated(task) for task in plan.tasks(machine.node))]


@cache
def what_may_be_said(plan: str, tasks: tuple[int, ...]) -> tuple[Choices, st.SearchStrategy[said.AnyMessage]]:
    """Made once for all examples: it takes longer than what is done with it in one."""
    among = choices(plan, tasks)
    return among, messages(among)


class GoingOn(RuleBasedStateMachine):
    """What can happen to a machine, in any order, from the state it was led to."""

    name: str
    begins_in: State

    def __init__(self) -> None:
        super().__init__()
        self.talk = led_to(self.name, self.begins_in)
        machine = self.machine = self.talk.machine
        self.seen = self.heard = len(self.talk.done)
        self.sums: dict[tuple[int, ...], bytes] = {}
        self.workers = set(machine.plan.computing)
        parents = [machine.plan.previous(machine.node)] if isinstance(machine, RingNode) else []
        if isinstance(machine, Rank):
            parents = self.talk.others or [STRANGER]
        elif not isinstance(machine, RingNode) and machine.node:
            parents = [self.talk.parent]
        friends = self.friends = [*parents, *self.talk.children]
        self.senders = st.sampled_from([*friends, *friends, *friends, machine.node, machine.node + 1, STRANGER])
        self.peers = st.sampled_from([*friends, machine.node, STRANGER])
        plan = "none" if isinstance(machine, RingNode) else run_name(machine.plan, machine.settings)
        self.choices, self.messages = what_may_be_said(plan, tuple(tasks_around(machine)))

    # -- what others say

    @rule(data=st.data())
    def hear_anything(self, data: st.DataObject) -> None:
        message = data.draw(self.messages)
        chunk = None
        if isinstance(message, said.DATA):
            chunk = data.draw(chunks(self.talk.chunk_length(message)))
        self.hear(data.draw(self.senders), message, chunk)

    @rule(seed=st.integers(0, 2**32 - 1))
    def hear_what_it_takes(self, seed: int) -> None:
        """Nonsense is dropped at the door: what is said here is somebody's to say now, and most of it of this round."""
        random, machine = Random(seed), self.machine
        for _ in range(10):
            speakers = [
                (kind, one)
                for kind, who in TAKEN[machine.state]
                for one in self.friends
                if machine._role_of(one) is who and (kind, who) not in LAST_WORDS
            ]
            if not speakers:
                return
            kind, sender = random.choice(speakers)
            fixed = {"generation": machine.generation}
            if random.random() < 0.8:
                fixed["round"] = min(LARGEST, max(0, machine.round + random.choice([0, 0, 0, 0, 1, -1])))
            if "task" in kind.__struct_fields__ and random.random() < 0.3:
                fixed["task"] = getattr(machine, "task", 0)
            message = draw(random, self.choices, kind, **fixed)
            note(f"node {sender} says {message}")
            self.hear(sender, message, 3.0 if kind in said.DATA else None)

    def hear(self, sender: int, message: said.AnyMessage, chunk: object) -> None:
        """A message arrives; transports drop those of rounds and generations that no node can have reached."""
        if beyond(message, self.machine.generation, self.machine.round) is None:
            self.talk.hears(sender, message, chunk)

    # -- what happens at the node itself

    @precondition(lambda self: self.machine.state.name not in ENDS)
    @rule()
    def what_comes_next(self) -> None:
        """Where all is well: so that a conversation also comes to where nonsense matters."""
        if self.machine.round < LARGEST:
            self.talk.goes_on()

    @rule(data=st.data())
    def timer_or_connection(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from([happening.TimerFired] * 3 + [happening.PeerLost, happening.PeerFound]))
        if kind is happening.TimerFired:
            self.talk.timer(data.draw(st.sampled_from(TIMERS)))
        else:
            self.talk.happens(kind(peer=data.draw(self.peers)))

    @rule(data=st.data())
    def what_was_sent_arrives(self, data: st.DataObject) -> None:
        self.talk.happens(happening.Drained(peer=data.draw(self.peers)))

    @precondition(lambda self: self.talk.asked)
    @rule(covered=st.sampled_from([1.0, 0.5, 0.0]), which=st.integers(0, 9))
    def computed(self, covered: float, which: int) -> None:
        which %= len(self.talk.asked)
        self.talk.computes(covered if self.talk.asked[which].salvage else 1.0, which)

    @precondition(lambda self: self.talk.asked)
    @rule(seconds=st.sampled_from([-1.0, 0.0, 2.0]), which=st.integers(0, 9))
    def interrupted(self, seconds: float, which: int) -> None:
        task = self.talk.asked.pop(which % len(self.talk.asked))
        self.talk.happens(happening.ComputationStopped(round=task.round, task=task.task, seconds=seconds))

    @precondition(lambda self: self.machine.state.name not in ENDS)
    @rule(sure=st.integers(0, 19))
    def leave(self, sure: int) -> None:
        if sure == 13:
            self.talk.leave()

    @precondition(lambda self: isinstance(self.machine, Rank))
    @rule(sure=st.integers(0, 9))
    def hand_over(self, sure: int) -> None:
        if sure == 7:
            self.talk.happens(happening.HandOver(reason="somebody wants its machine"))

    # -- what must hold after each of them (Talk also checks the machine's own invariants)

    @invariant()
    def what_it_says_can_be_read_by_a_neighbour(self) -> None:
        for action in self.talk.done[self.seen :]:
            if isinstance(action, happening.Transmit):
                assert action.to in self.talk.neighbours
                payload = 0 if action.data is None else 4 * len(action.data)
                assert decode(encode(action.message), payload, SETTINGS.chunk_bytes) == action.message, action
                assert set(getattr(action.message, "late", ())) <= self.workers
            elif isinstance(action, happening.Aggregated):
                assert len(action.vector) == SETTINGS.length
                assert set(action.late) <= self.workers
                assert 0 <= action.residual < 1
            elif isinstance(action, happening.SetTimer):
                assert 0 <= action.at <= self.talk.now + 10 * said.LONGEST
        self.seen = len(self.talk.done)

    @invariant()
    def what_a_leaf_sends_is_what_it_computed(self) -> None:
        if self.talk.children or not isinstance(self.machine, TreeWorker):
            return
        for action in self.talk.done[self.heard :]:
            if isinstance(action, happening.Transmit) and isinstance(action.message, said.ShareChunk):
                assert set(action.data.tolist()) == {worth(action.message.round, action.message.task)}
        self.heard = len(self.talk.done)

    @invariant()
    def what_a_rank_sends_is_what_it_computed(self) -> None:
        if not isinstance(self.machine, Rank):
            return
        for action in self.talk.done[self.heard :]:
            if isinstance(action, happening.Transmit) and isinstance(action.message, said.PartChunk):
                (value,) = set(action.data.tolist())
                assert any(value == worth(action.message.round, task) for task in range(self.machine.tasks + 1))
        self.heard = len(self.talk.done)

    @invariant()
    def a_sum_is_the_same_whenever_it_is_sent(self) -> None:
        for action in self.talk.done:
            if isinstance(action, happening.Transmit) and isinstance(action.message, said.SumChunk):
                before = self.sums.setdefault(action.message.place, action.data.tobytes())
                assert action.data.tobytes() == before

    @invariant()
    def a_ring_passes_every_chunk_on_once(self) -> None:
        sent = [one.message for one in self.talk.done if isinstance(one, happening.Transmit)]
        chunks = [message.place for message in sent if isinstance(message, said.RingChunk)]
        assert len(chunks) == len(set(chunks))

    @invariant()
    def only_workers_are_said_to_be_late(self) -> None:
        if self.talk.children:
            assert self.machine.below.late <= self.workers

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
            derandomize=True,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
