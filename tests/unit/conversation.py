"""One machine, talked to as a world would: it is started, joined, asked, answered, and what it wants done is kept.

`MACHINES` names every kind of machine, and `led_to` leads one into any of its states by what really happens to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from codedreduce import CodedReduce, LiveCompensation, MasterWorker, RingAllReduce, Striped, Tree
from codedreduce.protocol import Machine, Rank, RingNode, Root, Settings, TreeWorker
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.machine import State
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.settings import Excess
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.ring_node import RingState
from codedreduce.protocol.tree.root import RootState
from codedreduce.protocol.tree.tree_worker_table import TreeWorkerState
from codedreduce.schemes.names import parse_tree

#: Three chunks, of which two are sent at a time: what cannot be sent yet waits.
SETTINGS = Settings(length=10, chunk=4, window=2, excess=Excess("approximate", say_waiting_after=100.0))

PROGRESSIVE = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)
DEEP = CodedReduce(Tree.regular(fanout=2, depth=3), 1).plan(samples=1400)
UNEVEN = CodedReduce(parse_tree("5/3", 1), 1).plan(samples=60)
EAGER = CodedReduce(Tree.regular(fanout=2, depth=2), 1, order="eager").plan(samples=60)
CYCLIC = CodedReduce(Tree.regular(fanout=3, depth=2), 1, code="cyclic", order="eager").plan(samples=600)
UNCODED = MasterWorker(3).plan(samples=60)
LIVE = LiveCompensation(4, wait_for=2, blocks=2).plan(samples=60)
RING = RingAllReduce(3).plan(samples=60)

#: Ranks wait for whom they must. A stripe has one chunk.
OF_RANKS = replace(SETTINGS, excess=Excess(say_waiting_after=100.0), state_chunk=2)
STRIPED = Striped(3, blocks=2, stripes=3).plan(samples=60)
GROUPED = Striped(4, reach=2, blocks=4, stripes=2).plan(samples=64)
ALONE = Striped(1, blocks=2, stripes=1).plan(samples=60)

MACHINES: dict[str, Callable[[], Machine]] = {
    "root": lambda: Root(PROGRESSIVE, SETTINGS),
    "root that computes": lambda: Root(PROGRESSIVE, SETTINGS, computes=True),
    "inner worker": lambda: TreeWorker(1, PROGRESSIVE, SETTINGS),
    "leaf": lambda: TreeWorker(3, PROGRESSIVE, SETTINGS),
    "inner worker below another": lambda: TreeWorker(3, DEEP, SETTINGS),
    "inner worker of an uneven tree": lambda: TreeWorker(1, UNEVEN, SETTINGS),
    "leaf beside inner workers": lambda: TreeWorker(2, UNEVEN, SETTINGS),
    "eager root": lambda: Root(EAGER, SETTINGS),
    "eager inner worker": lambda: TreeWorker(2, EAGER, SETTINGS),
    "eager leaf": lambda: TreeWorker(4, EAGER, SETTINGS),
    "cyclic root": lambda: Root(CYCLIC, SETTINGS),
    "cyclic inner worker": lambda: TreeWorker(2, CYCLIC, SETTINGS),
    "cyclic leaf": lambda: TreeWorker(5, CYCLIC, SETTINGS),
    "root of a star": lambda: Root(UNCODED, SETTINGS),
    "worker of a star": lambda: TreeWorker(2, UNCODED, SETTINGS),
    "live root": lambda: Root(LIVE, SETTINGS),
    "live worker": lambda: TreeWorker(2, LIVE, SETTINGS),
    "ring node": lambda: RingNode(2, RING, SETTINGS),
    "node alone in a ring": lambda: RingNode(1, RingAllReduce(1).plan(samples=60), SETTINGS),
    "coordinator": lambda: Rank(0, STRIPED, OF_RANKS),
    "rank": lambda: Rank(2, STRIPED, OF_RANKS),
    "rank alone": lambda: Rank(0, ALONE, OF_RANKS),
    "coordinator of groups": lambda: Rank(0, GROUPED, OF_RANKS),
    "rank of a group": lambda: Rank(2, GROUPED, OF_RANKS),
    "rank that keeps nothing": lambda: Rank(3, GROUPED, OF_RANKS),
}

#: Where each machine stands before and after: (its class, state, trigger, sender, state).
Step = tuple[type[Machine], State, type, str, State]


class Talk:
    """Feeds one machine, a second an event, and does with its actions what a world would."""

    def __init__(self, machine: Any, steps: set[Step] | None = None) -> None:
        self.machine = machine
        self.now = 0.0
        self.steps: set[Step] = set() if steps is None else steps
        self.asked: list[happening.Compute] = []  # computations that were asked for and have not ended
        self.done: list[happening.AnyAction] = []  # all it ever wanted
        self.happens(happening.Started())

    # -- what happens

    def happens(self, event: happening.Event) -> list[Any]:
        """Let an event happen a second later; what the machine wants done."""
        self.now += 1.0
        before, who = self.machine.state, who_sent(self.machine, event)
        actions = self.machine.handle(event, self.now)
        self.machine.check_invariants()
        note_step(self.steps, self.machine, event, before, who)
        self.asked += [action for action in actions if isinstance(action, happening.Compute)]
        self.done += actions
        return actions

    def hears(self, sender: int, message: said.AnyMessage, data: Any = None) -> list[Any]:
        """Let a message arrive; `data` is a chunk, or the number that a right one is full of."""
        if isinstance(data, int | float):
            data = np.full(self.chunk_length(message), data, np.float32)
        if data is not None:
            data.flags.writeable = False  # it may lie in the sender's memory, which is not the machine's to write in
        return self.happens(happening.Received(sender=sender, message=message, data=data))

    def chunk_length(self, message: Any) -> int:
        """How many numbers the chunk of a message should have; one if there is no such chunk."""
        settings = self.machine.settings
        if isinstance(message, said.StateChunk):
            return 2
        if isinstance(message, said.RingChunk):
            if not isinstance(self.machine, RingNode) or message.segment >= self.machine.workers:
                return 1
            where = self.machine.plan.segments(settings.length)[message.segment]
            return max(1, min(settings.chunk, where.stop - where.start - message.index * settings.chunk))
        return settings.chunk_bytes(message.index) // settings.itemsize if message.index < settings.chunks else 1

    # -- who is around

    @property
    def parent(self) -> int:
        """Who commands the machine: its parent, or a rank's coordinator."""
        return 0 if isinstance(self.machine, Rank) else self.machine.parent

    @property
    def children(self) -> list[int]:
        below = getattr(self.machine, "below", None)
        return [] if below is None else list(below.children)

    @property
    def neighbours(self) -> set[int]:
        """To whom the machine may speak."""
        if isinstance(self.machine, RingNode):
            return {self.machine.next}
        if isinstance(self.machine, Rank):
            return set(self.others)
        return {*self.children, *([self.parent] if self.machine.node else [])}

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in self.machine.plan.computing if rank != self.machine.node]

    def join(self, *children: int) -> None:
        """Children come in, with all below them."""
        for child in children or self.children:
            self.hears(child, said.Hello(plan=run_name(self.machine.plan, self.machine.settings)))
            self.hears(child, said.Ready(generation=self.machine.generation))

    def model(self, round_: int, chunks: Iterable[int] | None = None) -> list[Any]:
        """The parent sends chunks of a model, or all of it."""
        every = range(self.machine.settings.chunks) if chunks is None else chunks
        of = {"generation": self.machine.generation, "round": round_}
        messages = (said.ModelChunk(index=index, **of) for index in every)
        return [action for message in messages for action in self.hears(self.parent, message, 0.5)]

    def delivers(self, child: int, task: int, round_: int | None = None, **of: Any) -> list[Any]:
        """A child sends all of a share."""
        of |= {"generation": self.machine.generation, "round": self.machine.round if round_ is None else round_}
        messages = (said.ShareChunk(task=task, index=index, **of) for index in range(self.machine.settings.chunks))
        return [action for message in messages for action in self.hears(child, message, 2.0)]

    def all_deliver(self) -> None:
        """Every child sends the share it does first."""
        for child, task in self.machine.below.ledger.assignments():
            self.delivers(child, task)

    def follow(self) -> None:
        """All other ranks say hello to rank 0, and have begun the first round."""
        for rank in self.others:
            self.hears(rank, said.Hello(plan=run_name(self.machine.plan, self.machine.settings)))
            self.hears(rank, said.Status(generation=self.machine.generation, round=1))

    def go(self, round_: int | None = None, parts: Iterable[tuple[int, int, int]] | None = None) -> list[Any]:
        """The coordinator lets a round begin: the rank does its unit, or these parts."""
        machine = self.machine
        own = ((machine.node, 0, machine.plan.blocks),) if parts is None else tuple(parts)
        at = machine.round if round_ is None else round_
        return self.hears(0, said.Go(generation=machine.generation, round=at, parts=own))

    def parts_come(self, *, all_units: bool = False) -> list[Any]:
        """Other ranks send this one their units, or all units there are, as far as it keeps them."""
        machine, actions = self.machine, []
        of = {"generation": machine.generation, "round": machine.round, "first": 0, "last": machine.plan.blocks}
        whose = [(rank, rank) for rank in self.others]
        whose += [(rank, machine.node) for rank in self.others[:all_units]]
        sent: set[tuple[int, int]] = set()
        to_send = whose
        while to_send:
            for rank, unit in to_send:
                for index in self._kept():
                    if (unit, index) not in sent:
                        sent.add((unit, index))
                        actions += self.hears(rank, said.PartChunk(unit=unit, index=index, **of), rank + 1.0)
                if not machine.node:
                    actions += self.hears(rank, said.Done(unit=unit, worked=1.0, block=0.5, **of))
            kept = self._kept()  # a coordinator may have taken over a stripe meanwhile: all send it that
            to_send = [(rank, unit) for rank, unit in whose if any((unit, index) not in sent for index in kept)]
        return actions

    def _kept(self) -> list[int]:
        return [index for index in range(self.machine.settings.chunks) if self.machine.reducer.keeps(index)]

    def sums_come(self) -> list[Any]:
        """Other ranks send the sums that they keep."""
        machine, actions = self.machine, []
        of = {"generation": machine.generation, "round": machine.round}
        for index in range(machine.settings.chunks):
            if not machine.reducer.keeps(index):
                actions += self.hears(self.others[0], said.SumChunk(index=index, **of), 6.0)
        return actions

    def has_another_model(self) -> None:
        """Rank 0, in the first round, has another model than the others in the second; the third it cannot begin."""
        self._round_goes_by()
        self.begin("a")
        for rank in self.others:
            self.hears(rank, said.Status(generation=self.machine.generation, round=2, digest="b"))
        self._round_goes_by()
        self.begin()

    def _round_goes_by(self) -> None:
        self.computes()
        self.parts_come()
        self.sums_come()

    def computes(self, covered: float = 1.0, which: int = -1) -> list[Any]:
        """What was asked for last, or earlier, is computed."""
        task = self.asked.pop(which)
        vector = np.full(self.machine.settings.length, worth(task.round, task.task), np.float32)
        return self.happens(happening.Computed(round=task.round, task=task.task, vector=vector, covered=covered))

    def goes_on(self) -> None:
        """What comes next where all is well."""
        machine = self.machine
        if isinstance(machine, Rank):
            self._rank_goes_on()
        elif isinstance(machine, TreeWorker):
            if machine.state is TreeWorkerState.JOINING:
                self.hears(self.parent, said.Welcome(generation=machine.generation))
            elif machine.state in (TreeWorkerState.WAITING, TreeWorkerState.RESTING):
                self.join(*self.children)
                self.model(machine.round + 1)
            elif machine.state is TreeWorkerState.LOADING:
                self.model(machine.round)
        elif machine.state in (RootState.IDLE, RingState.WAITING):
            self.join(*self.children)
            self.begin()
        if self.children:
            self.all_deliver()
        for neighbour in sorted(self.neighbours):
            self.happens(happening.Drained(peer=neighbour))

    def _rank_goes_on(self) -> None:
        machine = self.machine
        if machine.state is RankState.JOINING:
            self.hears(0, said.Welcome(generation=machine.generation))
        elif machine.state is RankState.RESTING:
            if not machine.node:
                self.follow()
            self.begin()
        elif machine.state is RankState.READY:
            self.go()
        elif machine.state is RankState.RENEWING:
            of = {"generation": machine.generation, "round": max(machine.round - 1, machine.begun)}
            giver = self.others[0]
            self.hears(giver, said.StateOffer(of=1, **of))
            self.hears(giver, said.StateChunk(index=0, of=1, **of), 1.0)
        elif machine.state is RankState.WORKING:
            self.parts_come()
            self.sums_come()

    def begin(self, digest: str = "") -> list[Any]:
        """The next round begins, at the root, at a node of a ring, or at a rank."""
        model = np.zeros(self.machine.settings.length, np.float32)
        return self.happens(happening.Begin(round=self.machine.round + 1, model=model, digest=digest))

    def timer(self, name: str) -> list[Any]:
        """A timer fires."""
        return self.happens(happening.TimerFired(name=name))

    def leave(self, *, at_once: bool = False) -> list[Any]:
        """The node shall leave."""
        return self.happens(happening.Leave(reason="it is over", at_once=at_once))


def worth(round_: int, task: int) -> float:
    """What the gradient of a task is full of."""
    return round_ % 97 * 100.0 + task


def who_sent(machine: Machine, event: happening.Event) -> str:
    """What whoever sent a message is to a machine, before it hears it."""
    return machine._role_of(event.sender).name if isinstance(event, happening.Received) else "OWN"


def note_step(steps: set[Step], machine: Machine, event: happening.Event, before: State, who: str) -> None:
    """Remember what an event did to a machine's state."""
    trigger = type(event.message) if isinstance(event, happening.Received) else type(event)
    steps.add((type(machine), before, trigger, who, machine.state))


def led_to(name: str, state: State) -> Talk:
    """A machine that has come to a state by what really happens."""
    talk = Talk(MACHINES[name]())
    machine = talk.machine
    if isinstance(machine, Root):
        _lead_root(talk, state)
    elif isinstance(machine, TreeWorker):
        _lead_worker(talk, state)
    elif isinstance(machine, Rank):
        _lead_rank(talk, state)
    else:
        _lead_ring(talk, state)
    assert machine.state is state, f"{name} is in {machine.state}, not in {state}"
    return talk


def _lead_root(talk: Talk, state: State) -> None:
    talk.join()
    talk.begin()
    if state is RootState.IDLE:
        talk.all_deliver()
    elif state is RootState.SETTLING:
        talk.timer(Timer.WAITING)
    elif state is RootState.STOPPED:
        talk.leave()


def _lead_worker(talk: Talk, state: State) -> None:
    if state is TreeWorkerState.JOINING:
        return
    talk.hears(talk.parent, said.Welcome())
    talk.join(*talk.children)
    if state is TreeWorkerState.LOADING:
        talk.model(1, [1, 0])
    elif state is not TreeWorkerState.WAITING:
        talk.model(1)
    if state is TreeWorkerState.RESTING:
        if talk.children:
            talk.all_deliver()
        talk.computes()
    elif state is TreeWorkerState.LEFT:
        talk.hears(talk.parent, said.Goodbye(reason="it is over"))


def _lead_ring(talk: Talk, state: State) -> None:
    if state is RingState.WAITING:
        return
    talk.begin()
    if state is RingState.EXCHANGING:
        talk.computes()
    elif state is RingState.LEFT:
        talk.leave()


def _lead_rank(talk: Talk, state: State) -> None:
    if state is RankState.JOINING:
        return
    if talk.machine.node:
        talk.hears(0, said.Welcome())
    else:
        talk.follow()
    if state is RankState.RESTING:
        return
    if state is RankState.ENDING:
        talk.leave()
        return
    if state is RankState.LEFT:
        talk.leave(at_once=True)
        return
    talk.begin()
    if talk.machine.node and state is not RankState.READY:
        talk.go()
        if state is RankState.RENEWING:
            talk.hears(0, said.Renew(round=1))
    elif state is RankState.RENEWING:
        talk.has_another_model()


#: What cannot be: one that is alone exchanges nothing, and waits for nobody; whoever coordinates is where it says.
NEVER = {
    "node alone in a ring": (RingState.EXCHANGING,),
    "coordinator": (RankState.JOINING, RankState.READY),
    "coordinator of groups": (RankState.JOINING, RankState.READY),
    "rank alone": (RankState.JOINING, RankState.READY, RankState.RENEWING, RankState.ENDING),
}


def led_to_every_state() -> list[tuple[str, State]]:
    """Every machine with every state it can be in."""
    every = [(name, state) for name, make in MACHINES.items() for state in type(make().state)]
    return [(name, state) for name, state in every if state not in NEVER.get(name, ())]


def sent(actions: list[Any], kind: type) -> list[Any]:
    """The messages of a type among actions, with whom they are for and what they carry."""
    return [a for a in actions if isinstance(a, happening.Transmit) and isinstance(a.message, kind)]


def of_type(actions: list[Any], kind: type) -> list[Any]:
    """The actions of a type."""
    return [action for action in actions if isinstance(action, kind)]


#: What is itself, and mostly what is met.
PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


def state_of(
    thing: object, *, without: tuple[str, ...] = ("_story",), known: dict[int, object] | None = None
) -> object:
    """All that a machine has in its head, as something to compare; plan and settings do not change.

    What several of its parts have is looked at once; `known` is what has been.
    """
    if type(thing) in PLAIN:
        return thing
    if isinstance(thing, np.ndarray):
        return tuple(thing.tolist())
    if isinstance(thing, set | frozenset):
        return tuple(sorted(thing))
    known = {} if known is None else known
    if id(thing) in known:
        return known[id(thing)]
    if isinstance(thing, dict):
        found: object = tuple((key, state_of(value, known=known)) for key, value in thing.items())
    elif isinstance(thing, list | tuple | deque):
        found = tuple(state_of(one, known=known) for one in thing)
    elif _is_looked_into(type(thing)):
        names = [name for name in _names(thing) if name not in without]
        found = tuple((name, state_of(getattr(thing, name), known=known)) for name in names)
    else:
        return "" if type(thing).__module__.startswith(("codedreduce.schemes", "codedreduce.codes")) else thing
    known[id(thing)] = found
    return found


@cache
def _is_looked_into(kind: type) -> bool:
    """Whether things of a class are parts of a machine, which can change."""
    return kind.__module__.startswith("codedreduce.protocol") and not issubclass(kind, Enum | said.Message)


def _names(thing: object) -> list[str]:
    return [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]


def size_of(thing: object, known: dict[int, int] | None = None) -> int:
    """How many things are in such a state, as `state_of` would show it; `known` are the sizes of what was looked at."""
    if type(thing) in PLAIN:
        return 1
    if isinstance(thing, np.ndarray):
        return thing.size
    known = {} if known is None else known
    if (size := known.get(id(thing))) is not None:
        return size
    parts: list[object]
    if isinstance(thing, dict):
        parts = [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        parts = list(thing)
    elif _is_looked_into(type(thing)):
        names = [name for name in _names(thing) if name != "_story"]
        parts = [*names, *[getattr(thing, name) for name in names]]
    else:
        parts = [None]
    size = sum([1 if type(one) in PLAIN else size_of(one, known) for one in parts])
    known[id(thing)] = size
    return size
