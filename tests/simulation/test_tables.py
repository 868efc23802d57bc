"""Tables that tell the truth: every arrow they draw happens, and every row names what handles it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from itertools import product

import pytest

from codedreduce import MasterWorker, Striped
from codedreduce.protocol import Machine, Rank, RingNode, Root, Settings, TreeWorker
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.events import Action, Event, Failed, HandOver, PeerFound, PeerLost
from codedreduce.protocol.core.machine import OWN, Row, State, diagram
from codedreduce.protocol.core.messages import DATA, Message
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.root import RootState
from codedreduce.protocol.tree.tree_worker_table import TreeWorkerState
from codedreduce.simulator import Fault
from codedreduce.simulator.scenario import ENDLESS, Scenario
from codedreduce.simulator.wrong import Wrong
from codedreduce.vectors import Vector
from tests.simulation.diagrams import DOCUMENT, with_diagrams
from tests.simulation.random_scenarios import random_audits, random_scenario, random_striped
from tests.unit.conversation import MACHINES as MACHINES_BY_HAND
from tests.unit.conversation import Step, Talk, led_to, led_to_every_state, note_step, who_sent

MACHINES = (Root, TreeWorker, RingNode, Rank)

SMALL = Scenario(tree="2x2", samples=60, parameters=10, chunk=4, compute=6.0, rounds=3, say_waiting_after=20.0)


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(SMALL, field) for field in SMALL.__struct_fields__}, **changes})


def scenarios() -> Iterator[Scenario]:
    """Runs of every kind: random faults over every scheme; rings; rounds that settle; small vectors and large."""
    for seed in range(60):
        yield random_scenario(seed)
    for seed in range(200):
        yield random_striped(seed)
    for seed in (*range(60), 233):
        yield random_audits(seed)
    yield changed(scheme="striped", tree="2x1", stragglers=0, audit=1.0, wrongs=(Wrong(node=1),))  # nobody can decide
    for tree in ("3x1", "1x1"):
        for chunk in (2, 100):
            yield changed(scheme="ring", tree=tree, stragglers=0, chunk=chunk)
    for seconds in (30.0, ENDLESS):
        faults = tuple(Fault(kind="pause", node=node, round=2, seconds=seconds) for node in (3, 4))
        yield changed(faults=faults, on_excess="approximate")
    gone = tuple(Fault(kind="crash", node=node, round=2) for node in (1, 2))
    yield changed(tree="2x1", compute=2.0, faults=gone, on_excess="approximate", replan_after=19.9)
    yield changed(scheme="live-compensation", tree="4x1", delays="exponential", rounds=6)


@pytest.fixture(scope="module")
def happened() -> set[Step]:
    """Every step that any machine took: in simulated runs, and in the conversations of the other tests."""
    steps: set[Step] = set()
    handle = Machine.handle

    def noting(machine: Machine, event: Event, now: float) -> list[Action]:
        before, who = machine.state, who_sent(machine, event)
        actions = handle(machine, event, now)
        note_step(steps, machine, event, before, who)
        return actions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "handle", noting)
        for scenario in scenarios():
            latest = 3000.0 if scenario.scheme == "striped" else ENDLESS / 2
            scenario.cluster().run(scenario.rounds, latest=latest)
        for name, state in led_to_every_state():
            led_to(name, state)
        by_hand()
    return steps


def by_hand() -> None:
    """What happens too seldom to wait for: somebody leaves, is refused, or finds its parent again."""
    left = led_to("coordinator", RankState.RENEWING)
    for rank in (1, 2):
        left.happens(PeerLost(peer=rank))
    left.timer(Timer.CATCH_UP)
    led_to("coordinator", RankState.RENEWING).goes_on()
    for name, state in led_to_every_state():
        if state.name in ("LEFT", "STOPPED"):
            continue
        led_to(name, state).leave()
        if isinstance(state, RankState):
            led_to(name, state).leave(at_once=True)
            hands_over(led_to(name, state))
            if MACHINES_BY_HAND[name]().node:
                led_to(name, state).hears(0, said.Goodbye(reason="it is over"))
                led_to(name, state).hears(0, said.Refuse(reason="another plan"))
        if isinstance(state, TreeWorkerState):
            talk = led_to(name, state)
            talk.hears(talk.parent, said.Goodbye(reason="it is over"))
            talk = led_to(name, state)
            talk.happens(PeerFound(peer=talk.parent))
            talk.model(2, [0])
            talk = led_to(name, state)
            talk.hears(talk.parent, said.Welcome(generation=3))
            led_to(name, state).leave(at_once=True)
            talk = led_to(name, state)
            talk.leave()
            if talk.machine.state is not TreeWorkerState.LEFT:
                talk.happens(PeerLost(peer=talk.parent))
            talk = led_to(name, TreeWorkerState.RESTING)
            talk.leave()
            talk.happens(PeerFound(peer=talk.parent))
            talk.happens(PeerLost(peer=talk.parent))
    by_hand_with_ranks()
    by_hand_with_leaders()
    led_to("leaf", TreeWorkerState.JOINING).hears(1, said.Refuse(reason="another plan"))
    talk = led_to("leaf", TreeWorkerState.RESTING)
    talk.happens(PeerFound(peer=1))
    talk.hears(1, said.Refuse(reason="another plan"))
    assert talk.machine.state is TreeWorkerState.JOINING, "who was in is sent away by the root alone"
    led_to("root", RootState.SETTLING).all_deliver()
    for state in (RootState.COLLECTING, RootState.SETTLING):
        led_to("root", state).hears(1, said.Failure(round=1, troubles=((3, "no"), (4, "no")), ends=True))
        led_to("root of a star", state).hears(1, said.Unable(round=1, task=1, troubles=((1, "no"),)))
    talk = led_to("eager inner worker", TreeWorkerState.WORKING)
    for child in (5, 6):
        talk.hears(child, said.Unable(round=1, task=talk.machine.below.ledger.assignments()[0][1]))
    Talk(TreeWorker(1, MasterWorker(2).plan(samples=14), Settings(length=4))).model(1)  # quicker than the welcome


def hands_over(talk: Talk) -> None:
    """A rank is told to leave while the run goes on, and looks whether it may."""
    talk.happens(HandOver(reason="somebody wants its machine"))
    talk.timer(Timer.HANDOVER)
    if talk.machine.node and talk.machine.state is RankState.WORKING:
        talk.hears(0, said.Go(round=talk.machine.round + 1, reducers=tuple((rank, int(not rank)) for rank in range(4))))
        talk.timer(Timer.HANDOVER)


def by_hand_with_leaders() -> None:
    """What takes a coordinator that is lost, deposed, or without the others."""
    for sender, generation in ((0, 3), (1, 1)):
        led_to("rank", RankState.READY).hears(sender, said.Welcome(generation=generation, round=1))
    cut_off = led_to("coordinator", RankState.RESTING)
    cut_off.happens(PeerLost(peer=1))
    cut_off.happens(PeerLost(peer=2))
    cut_off.begin()
    cut_off.hears(1, said.Welcome(generation=1, round=1))
    back = led_to("coordinator", RankState.RESTING)
    back.happens(PeerLost(peer=1))
    back.happens(PeerLost(peer=2))
    back.begin()
    for index in range(3):
        back.hears(1, said.SumChunk(round=1, index=index), 1.0)
    back.happens(PeerLost(peer=1, dead=True))
    back.happens(PeerLost(peer=2, dead=True))
    back.timer(Timer.GO_ON)


def by_hand_with_ranks() -> None:
    """What takes messages that overtake each other, or scripts that leave early; and ranks that fail."""
    for name, state in led_to_every_state():
        if isinstance(state, RankState) and state is not RankState.LEFT and MACHINES_BY_HAND[name]().node:
            led_to(name, state).hears(0, said.Failure(round=1, troubles=((1, "no"),), ends=True))
    talk = led_to("coordinator", RankState.WORKING)
    for rank in (1, 2):
        talk.hears(rank, said.Unable(round=1, task=1, troubles=((rank, "no"),)))
    talk = led_to("coordinator", RankState.WORKING)
    talk.hears(1, said.Unable(round=1, task=0, troubles=((1, "no"),)))
    task = talk.asked[-1]
    talk.happens(Failed(round=task.round, task=task.task, reason="no"))
    led_to("rank", RankState.READY).sums_come()
    talk = led_to("rank", RankState.READY)
    for index in range(3):
        talk.hears(1, said.SumChunk(round=1, index=index), 1.0)
    led_to("rank", RankState.READY).go(round_=3)
    led_to("rank", RankState.READY).hears(0, said.End(round=1))
    led_to("rank", RankState.READY).hears(0, said.Renew(round=1))
    led_to("rank", RankState.ENDING).go(round_=7)
    talk = led_to("rank", RankState.WORKING)
    talk.go(round_=3)
    talk.hears(0, said.Past(round=1))
    talk = led_to("rank of a group", RankState.READY)
    for unit, index in product(range(4), range(3)):
        talk.hears(1, said.PartChunk(round=1, unit=unit, first=0, last=4, index=index), 1.0)
    talk.hears(0, said.Go(round=1, reducers=((0, 0),)))
    talk = led_to("rank", RankState.WORKING)
    for unit, index in product(range(3), range(3)):
        talk.hears(1, said.PartChunk(round=1, unit=unit, first=0, last=2, index=index), 1.0)
    talk.hears(1, said.SumChunk(round=1, index=1), 1.0)
    talk.hears(0, said.NewReducer(round=1, stripe=0, reducer=2))
    for last_words in (said.Have(), said.Goodbye(reason="bye")):
        talk = led_to("coordinator", RankState.ENDING)
        for rank in (1, 2):
            talk.hears(rank, last_words)
    talk = led_to("coordinator", RankState.ENDING)
    talk.happens(PeerLost(peer=1))
    talk.happens(PeerLost(peer=2))
    led_to("coordinator", RankState.ENDING).timer(Timer.END)
    for loses in (
        lambda talk: talk.happens(PeerLost(peer=1)),
        lambda talk: talk.hears(1, said.Goodbye(reason="bye")),
        lambda talk: [talk.timer(Timer.SUM_LATE) for _ in range(12)],
    ):
        talk = Talk(Rank(0, Striped(2, blocks=1, stripes=2).plan(samples=14), Settings(length=4, chunk=2)))
        talk.follow()
        talk.begin()
        talk.computes()
        for _ in range(9):
            talk.timer(Timer.LATE)
            talk.hears(1, said.Status(round=1))  # it answers, and does nothing
        talk.computes()
        loses(talk)  # it kept a stripe, and that was all it was needed for


def arrows(machine: type[Machine]) -> Iterator[tuple[Row, State, State]]:
    """What `diagram` draws."""
    for row in machine.ROWS:
        for state in row.states:
            for then in row.then:
                if isinstance(then, State) and then is not state:
                    yield row, state, then


@pytest.mark.parametrize("machine", MACHINES)
def test_every_arrow_happens(machine: type[Machine], happened: set[Step]) -> None:
    never = [
        f"{state.name} --{row.trigger.__name__} from {sender.name}--> {then.name}"
        for row, state, then in arrows(machine)
        for sender in row.senders
        if (machine, state, row.trigger, sender.name, then) not in happened
    ]
    assert never == []


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_is_on_the_way_from_the_first(machine: type[Machine]) -> None:
    """Along drawn arrows alone; and the drawing has all of them."""
    states = list(type(next(row.states[0] for row in machine.ROWS)))
    reached = {states[0]}
    for _ in states:
        reached |= {then for _, state, then in arrows(machine) if state in reached}
    assert reached == set(states)
    drawn = diagram(machine)
    for row, state, then in arrows(machine):
        (line,) = [one for one in drawn.splitlines() if one.startswith(f"    {state.name} --> {then.name}: ")]
        assert row.trigger.__name__ in line


@pytest.mark.parametrize("machine", MACHINES)
def test_no_row_hides_another(machine: type[Machine]) -> None:
    keys = [(state, row.trigger, sender) for row in machine.ROWS for state in row.states for sender in row.senders]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("machine", "row"),
    [(machine, row) for machine in MACHINES for row in machine.ROWS if row.method],
    ids=lambda one: f"{one.method}" if isinstance(one, Row) else one.__name__,
)
def test_every_row_names_a_method_that_takes_what_it_is_given(machine: type[Machine], row: Row) -> None:
    assert row.method is not None
    part, _, name = row.method.rpartition(".")
    one = next(one for one in (make() for make in MACHINES_BY_HAND.values()) if type(one) is machine)
    owner = type(getattr(one, part)) if part else machine
    method = getattr(owner, name)
    hints = typing.get_type_hints(method)
    given = [hints[name] for name in list(inspect.signature(method).parameters)[1:]]
    assert hints["return"] is type(None)
    assert issubclass(row.trigger, given[0])
    if row.senders == (OWN,):
        assert issubclass(row.trigger, Event)
        assert given[1:] == [float]
    else:
        assert issubclass(row.trigger, Message)
        chunk = [Vector] if issubclass(row.trigger, DATA) else []
        assert given[1:] == [int, *chunk, float]


def test_the_document_shows_the_tables_as_they_are() -> None:
    text = DOCUMENT.read_text()
    assert text.count("```mermaid") == 4
    assert with_diagrams(text) == text, "run: make docs"
