"""A machine keeps what its task needs, and no more: however often it is told, and however many rounds go by."""

from __future__ import annotations

import pytest

from codedreduce.protocol import Rank, Root, TreeWorker
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.machine import State
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.ring_node import RingNode
from tests.unit.conversation import MACHINES, Talk, led_to, led_to_every_state, size_of
from tests.unit.peers import MESSAGES

TIMES = 8


def neighbours_of(talk: Talk) -> list[int]:
    """Those that a machine listens to, one of each kind."""
    machine = talk.machine
    if isinstance(machine, RingNode):
        return [machine.plan.previous(machine.node)]
    if isinstance(machine, Rank):
        return talk.others[:2]
    return [*talk.children[:1], *([talk.parent] if machine.node else [])]


@pytest.mark.parametrize(("name", "state"), led_to_every_state(), ids=lambda one: getattr(one, "name", one))
def test_what_is_said_again_and_again_takes_no_more_room(name: str, state: State) -> None:
    talk = led_to(name, state)
    tasks = (1, 3, talk.machine.node)
    own = [said.Next(round=1, task=task, push=True) for task in tasks] + [said.Send(round=1, task=t) for t in tasks]
    for sender in neighbours_of(talk):
        for message in (*MESSAGES, *own):
            data = 1.0 if isinstance(message, said.DATA) else None
            talk = led_to(name, state)
            sizes = []
            for _ in range(2):
                for _ in range(TIMES):
                    talk.hears(sender, message, data)
                    talk.timer(Timer.SETTLE)
                sizes.append(size_of(talk.machine))
            assert sizes[0] == sizes[1], f"{message} from node {sender}"


@pytest.mark.parametrize("name", MACHINES)
def test_rounds_that_are_over_are_forgotten(name: str) -> None:
    machine = MACHINES[name]()
    first = RankState.RESTING if isinstance(machine, Rank) else next(iter(type(machine.state)))
    talk = led_to(name, first)
    machine = talk.machine
    if isinstance(machine, TreeWorker):
        talk.hears(talk.parent, said.Welcome())
        talk.join(*talk.children)
    for _ in range(140):  # histories grow at first
        _one_round(talk)
    sizes = []  # at the ends of rounds
    for _ in range(60):
        _one_round(talk)
        sizes.append(size_of(machine))
    assert machine.round >= 200
    if isinstance(machine, Rank) and not machine.node and machine.plan.workers > 1:
        # Who is late, and what was asked of whom, is a coordinator's to find out in each round, and is in its books
        # until the next one begins: rounds differ, though what is said in them does not. What must not be is that
        # they grow: the largest of 30 are as large as the largest of the next 30.
        assert max(sizes[:30]) == max(sizes[30:])
    else:
        assert len(set(sizes)) == 1, "all rounds are the same"


def _one_round(talk: Talk) -> None:
    """A round in which everybody delivers, and one result of the round before comes late."""
    machine = talk.machine
    if isinstance(machine, TreeWorker):
        talk.model(machine.round + 1)
    else:
        talk.begin()
    if isinstance(machine, Rank):
        if machine.node:
            talk.go()
        late = said.PartChunk(round=machine.round - 1, unit=1, first=0, last=1, index=0)
        for rank in talk.others:
            talk.hears(rank, late, 1.0)
            talk.hears(rank, said.Status(round=machine.round - 1))
        while talk.asked:  # a coordinator may give itself more than its own unit, or less
            talk.computes()
        talk.parts_come(all_units=True)
        talk.sums_come()
        assert machine.state is RankState.RESTING
    if isinstance(machine, Root | TreeWorker) and talk.children:
        late = talk.children[-1]
        talk.delivers(late, late, machine.round - 1)
        talk.hears(late, said.Offer(round=machine.round - 1, task=late))
        talk.all_deliver()
    if talk.asked:
        talk.computes()
    if isinstance(machine, RingNode) and machine.workers > 1:
        for finished in (False, True):
            for segment in range(machine.workers):
                talk.hears(1, said.RingChunk(round=machine.round, segment=segment, index=0, finished=finished), 1.0)
    for neighbour in talk.neighbours:
        for _ in range(4):
            talk.happens(happening.Drained(peer=neighbour))
