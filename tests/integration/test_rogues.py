"""A member that is not the root, and does not lead, says all that can be said: the run goes on, with the same bits.

It has its place in the run, its connections and its session; it computes what it should, and beside that says whatever
comes to its mind, to everyone that it is connected to. What it may not claim of numbers is another matter (audits).
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from codedreduce.errors import CodedReduceError, WireError
from codedreduce.net.rendezvous.meeting import neighbours
from codedreduce.node.driver import Driver
from codedreduce.protocol import Machine
from codedreduce.protocol.core.events import AnyAction, Event, Transmit
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.messages import (
    DATA,
    AnyMessage,
    Failure,
    Follow,
    Goodbye,
    Hello,
    Lead,
    ModelChunk,
    Refuse,
    Stand,
    Status,
    Unable,
    Voters,
    Welcome,
)
from codedreduce.protocol.rights import rights_at
from codedreduce.run.world import World
from codedreduce.schemes import Piece
from tests.fuzz.members import ROLES, carrier_of
from tests.fuzz.runs import BARE, PLANS, Checked
from tests.unit.conversation import SETTINGS
from tests.unit.peers import MESSAGES

Said = Callable[["Rogue", Machine], Iterator[AnyMessage]]

#: What can be read, and nobody comes to.
ABSURD = 2**53


@dataclass
class Rogue(Checked):
    """A run of which one process says more than it should, a message whenever anything happens to it."""

    who: int = 1
    says: Said | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_rogue = False
        self._spoken = mmap.mmap(-1, 8)  # how often, where all processes see it

    @property
    def said(self) -> int:
        """How many things it has said that it should not."""
        return int.from_bytes(self._spoken[:8], "big")

    def _gradient(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        super()._gradient(piece, model, round_, out, node)
        if node == self.who and not self._is_rogue and round_ > 2:
            self._is_rogue = True
            (driver,) = (thread for thread in threading.enumerate() if isinstance(thread, Driver))
            self._go_wrong(driver.machine)

    def _member(self, world: World) -> None:
        try:
            super()._member(world)
        except CodedReduceError:  # it was refused, for what it said of itself
            if not self._is_rogue:
                raise

    def _go_wrong(self, machine: Any) -> None:
        assert self.says is not None
        handle, said = machine.handle, self.says(self, machine)
        rights = rights_at(self.who, self.plan)
        others = (*rights.above, *rights.below)

        def handle_and_say(event: Event, now: float) -> list[AnyAction]:
            actions: list[AnyAction] = handle(event, now)
            for message in islice(said, 1):
                self._spoken[:8] = (self.said + 1).to_bytes(8, "big")
                data = np.zeros(self.run.settings.chunk, np.float32) if isinstance(message, DATA) else None
                actions += [Transmit(to=other, message=message, data=data) for other in others]
            return actions

        machine.handle = handle_and_say


def what_ends_runs(run: Rogue, machine: Machine) -> Iterator[AnyMessage]:
    """Goodbyes, refusals, failures of everyone at everything.

    But for what a child of a tree is believed: that two below it have failed at the same task.
    """
    nodes = run.plan.nodes
    troubles = tuple((node, "it cannot be done") for node in nodes)[:16]
    for turn in count():
        now = {"round": machine.round, "generation": machine.generation}
        for task in (*nodes, 0, 99):
            yield Unable(task=task, troubles=troubles, **now)
            yield Failure(troubles=troubles, ends=run.kind == "stripes", **now)
        yield Refuse(reason="there is no run", **now)
        yield Goodbye(reason="it is over", **now)
        if turn == 5:
            yield Hello(plan="another plan", **now)


def everything(run: Rogue, machine: Machine) -> Iterator[AnyMessage]:
    """All that is no vector, of this round, of others, and of what nobody comes to.

    But for what makes one rank lead in another's place: who leads ends a run, and who lies about votes can come to. And
    in a tree for failures, of which a child is believed that nobody can do what failed.
    """
    of_votes = (Stand, Lead, Follow, Welcome)
    small = [
        message
        for message in MESSAGES
        if not isinstance(message, (*DATA, *of_votes) if run.kind == "stripes" else (*DATA, Failure))
    ]
    numbers = cycle(((0, 0), (0, 1), (0, 2), (1, 0), (0, ABSURD), (ABSURD, 0), (ABSURD, ABSURD)))
    while True:
        for message in small:
            generation, round_ = next(numbers)
            changed = {
                "generation": min(ABSURD, machine.generation + generation), "round": min(ABSURD, machine.round + round_)
            }  # fmt: skip
            if isinstance(message, Hello):
                changed["plan"] = run_name(run.plan, run.run.settings)  # type: ignore[assignment]
            yield msgspec.structs.replace(message, **changed)


@pytest.mark.parametrize("says", [what_ends_runs, everything], ids=lambda says: says.__name__)
@pytest.mark.parametrize(("kind", "who"), [("tree", 1), ("tree", 3), ("stripes", 1), ("stripes", 2)])
def test_nobody_but_the_root_ends_a_run(kind: str, who: int, says: Said) -> None:
    """Every sum is compared, at every node that has it."""
    run = Rogue(kind, who=who, says=says)
    with run.cluster() as cluster:
        until = time.monotonic() + 3.0
        while run.done < 60 or time.monotonic() < until:
            run.round(cluster)
    assert run.said > 20


# -- rounds and generations that nobody can have come to


def jumps_ahead(run: Rogue, machine: Machine) -> Iterator[AnyMessage]:
    """A model of a later round."""
    yield ModelChunk(round=machine.round + 1000, generation=machine.generation, index=0)


def is_of_another_generation(run: Rogue, machine: Machine) -> Iterator[AnyMessage]:
    """A welcome to what no root has begun."""
    yield Welcome(round=machine.round, generation=machine.generation + 1000)


def is_absurd(run: Rogue, machine: Machine) -> Iterator[AnyMessage]:
    """Of a round, or generation, that nobody ever comes to."""
    yield ModelChunk(round=ABSURD, generation=machine.generation, index=0)


@pytest.mark.parametrize("says", [jumps_ahead, is_of_another_generation, is_absurd], ids=lambda says: says.__name__)
def test_a_parent_that_speaks_of_what_is_not_loses_no_worker(says: Said) -> None:
    """All workers are needed in every round: if those below it took the next models for old ones, the root would have
    to stand in for them.
    """
    run = Rogue(BARE, who=1, says=says)
    with run.cluster() as cluster:
        until = time.monotonic() + 2.0
        while run.done < 60 or time.monotonic() < until:
            run.round(cluster)
    assert run.said == 1
    assert not run.journal.of_kind("stands in")
    assert bool(run.journal.of_kind("succeeds")) == (says is not is_absurd), "what is absurd is not even heard"


def of_numbers(message: AnyMessage) -> Iterator[AnyMessage]:
    """The same, of rounds and generations that nobody comes to."""
    for changed in ({"round": ABSURD}, {"generation": ABSURD}, {"round": 2**40}, {"generation": 2**40}):
        yield msgspec.structs.replace(message, **changed)
    if isinstance(message, Status):
        yield msgspec.structs.replace(message, begun=ABSURD)
    if isinstance(message, Lead):
        yield msgspec.structs.replace(message, voters_made_in=ABSURD)
        yield msgspec.structs.replace(message, voters_number=ABSURD)
    if isinstance(message, Stand | Welcome):
        yield msgspec.structs.replace(message, voters=Voters(made_in=ABSURD, ranks=((1, 1),)))


@pytest.mark.parametrize("role", ROLES)
def test_what_nobody_can_have_come_to_is_no_message(role: str) -> None:
    """Whatever it is, it is looked at before anything is done with it; so a later one is not stale."""
    kind, node, other = ROLES[role]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        carrier = carrier_of(context, node, PLANS[kind], SETTINGS)
        seeks, listens = neighbours(PLANS[kind], node)
        if listens:
            carrier.listen("tcp://127.0.0.1")
        carrier.expect(seeks)
        link = carrier._links[other]
        said = {type(message): message for message in MESSAGES if type(message) in link.may_say}
        assert said.keys() == link.may_say
        for message in said.values():
            plane = int(isinstance(message, DATA))
            carrier._check(link, plane, msgspec.structs.replace(message, round=2**30, generation=2**30))
            for wrong in of_numbers(message):
                with pytest.raises(WireError, match=f"{type(message).__name__} of (round|generation)"):
                    carrier._check(link, plane, wrong)
    finally:
        context.destroy(linger=0)
