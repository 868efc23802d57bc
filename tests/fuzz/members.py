"""A neighbour that has a session and sends what it should not: as a parent, a child, a rank, the one before in a ring.

What it says may be well-formed, and its to say; then the machine has to bear it. The node must not fall over, hang, or
grow; what it computes of such a neighbour's lies is another matter. Whoever is told to leave by who may say so leaves,
and another node is set in its place.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from dataclasses import dataclass
from itertools import product

import numpy as np
import psutil
import zmq

from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Carrier
from codedreduce.net.connections import Endpoints
from codedreduce.net.keys import Guard, Pair
from codedreduce.net.mesh import Mesh
from codedreduce.net.rendezvous.meeting import neighbours
from codedreduce.node.driver import Driver, Outward
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings, machine_for
from codedreduce.protocol.core.events import (
    Aggregated,
    Begin,
    Compute,
    Computed,
    EveryoneIn,
    Gathered,
    Pack,
    Renewed,
    StatePacked,
)
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Meeting, Run
from codedreduce.schemes import Plan, StripedPlan, TreePlan
from codedreduce.timing import Timing
from tests.fuzz.mutations import Mutations
from tests.fuzz.runs import PLANS
from tests.fuzz.strangers import Context
from tests.raw import put

LENGTH, CHUNK = 10, 4

#: By what it is, in which plan which node it is, and which of its neighbours errs.
ROLES: dict[str, tuple[str, int, int]] = {
    "root, by a child": ("tree", 0, 1),
    "inner worker, by its parent": ("tree", 1, 0),
    "inner worker, by a child": ("tree", 1, 3),
    "leaf, by its parent": ("tree", 3, 1),
    "rank that leads, by a rank": ("stripes", 0, 1),
    "rank, by the one that leads": ("stripes", 1, 0),
    "rank, by another": ("stripes", 1, 2),
    "ring node, by the one before it": ("ring", 2, 1),
}

#: A connection that was cut is made again soon.
SOON = Timing(renew_connection=0.2, unidentified_check=0.1)

#: Seconds that anything takes which is computed.
MOMENT = 0.001

#: Seconds in which a session with a new process must be up; and for which one is waited for that was cut, or whose
#: neighbour has said something untrue of itself.
BACK_WITHIN, GIVEN_UP_AFTER = 20.0, 0.5


def carrier_of(
    context: Context, node: int, plan: Plan, settings: Settings, guard: Guard | None = None
) -> Carrier:  # fmt: skip
    """The sockets of a node that shares no memory."""
    run = Run(meeting=Meeting(run="members", shared_memory=False), plan=plan, settings=settings)
    kind = Mesh if isinstance(plan, StripedPlan) else Carrier
    return kind(context, node, settings, Buffers(run, node), rights_at(node, plan), guard)


class Two:
    """A node with its driver, and a neighbour that has a session with it; with a secret over CURVE's connections."""

    def __init__(self, role: str, secret: Secret | None = None) -> None:
        self._secret = secret
        kind, self.node, self.other = ROLES[role]
        self._plan = plan = PLANS[kind]
        self.settings = Settings(length=LENGTH, chunk=CHUNK, timing=SOON)
        self._orders: queue.SimpleQueue[Outward | None] = queue.SimpleQueue()
        self._context: Context = zmq.Context()
        self._other_context: Context = zmq.Context()
        self._guard = Guard(self._context, secret, SOON) if secret is not None else None
        self._other_guard: Guard | None = None
        self._pair = Pair(*zmq.curve_keypair())
        self._transport = carrier_of(self._context, self.node, plan, self.settings, self._guard)
        self._here = self._transport.listen("tcp://127.0.0.1") if neighbours(plan, self.node)[1] else None
        self._there: str | Endpoints = "tcp://127.0.0.1"
        self._transport.expect(neighbours(plan, self.node)[0])
        self._bear()
        if isinstance(self._there, Endpoints):
            self._transport.move(self.other, self._there)
        machine = machine_for(self.node, plan, self.settings, process=1, computes=True)
        self.driver = Driver(machine, self._transport, self._orders.put, timing=SOON, orphaned_after=600.0)
        threading.Thread(target=self._work, daemon=True).start()
        self.driver.start()
        if (self.node == 0 and isinstance(plan, TreePlan)) or kind == "ring":
            self._begin(1)

    def _bear(self) -> None:
        """Another process of the neighbour, where the last one was."""
        if self._other_guard is not None:
            self.rogue.close()
            self._other_guard.close()
        self._other_context.destroy(linger=0)
        self._other_context = zmq.Context()
        if self._secret is not None and self._guard is not None:  # named as a book would
            self._other_guard = Guard(self._other_context, self._secret, SOON)
            self._other_guard._own = self._pair
            self._guard.name(self.other, self._other_guard.key)
            self._other_guard.name(self.node, self._guard.key)
        self.rogue = carrier_of(self._other_context, self.other, self._plan, self.settings, self._other_guard)
        seeks, listens = neighbours(self._plan, self.other)
        if listens:
            self._there = self.rogue.listen(self._there)
        self.rogue.expect(seeks)
        if self._here is not None and self.node in seeks:
            self.rogue.move(self.node, self._here)

    # -- the node's script and its computations

    def _begin(self, round_: int) -> None:
        self.driver.post(Begin(round=round_, model=np.zeros(LENGTH, np.float32)))

    def _work(self) -> None:
        """What a script and its gradients do, each thing after a moment, as they would."""
        while (told := self._orders.get()) is not None:
            time.sleep(MOMENT)
            post, machine = self.driver.post, self.driver.machine
            if isinstance(told, Compute):
                post(Computed(round=told.round, task=told.task, vector=np.ones(LENGTH, np.float32)))
            elif isinstance(told, EveryoneIn) and isinstance(self._plan, StripedPlan):
                self._begin(machine.round + 1)
            elif isinstance(told, Aggregated | Gathered | Renewed):
                self._begin(told.round + 1)
            elif isinstance(told, Pack):
                state = np.zeros(self.settings.state_chunk + 5, np.uint8)
                post(StatePacked(round=max(0, machine.round - 1), state=state, digest="x"))

    # -- the neighbour

    def say(self, mutations: Mutations) -> bool:
        """Let the neighbour send something; False if the node has left."""
        if not self._is_up(GIVEN_UP_AFTER):
            self._bear()  # what it said of itself made it somebody else: its own loss, and a new process mends it
            assert self._is_up(BACK_WITHIN) or not self.driver.is_alive(), (
                f"no session with {self.driver.machine.describe()}"
            )
        if not self.driver.is_alive():
            return False
        link = self.rogue._links[self.node]
        plane = mutations.random.randrange(2)
        frames = mutations.frames(link.session.outgoing)
        try:
            put(link, plane, frames, seals=mutations.random.random() < 0.9)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
        self._turn(2)
        return self.driver.is_alive()

    def _is_up(self, within: float) -> bool:
        """Whether the two have a session, or come to have one."""
        deadline = time.monotonic() + within
        while not self.rogue._links[self.node].session.is_up and self.driver.is_alive():
            self._turn(20)
            if time.monotonic() > deadline:
                return False
        return self.driver.is_alive()

    def _turn(self, wait: int) -> None:
        poller = zmq.Poller()
        for readable in (*self.rogue.sockets, *self.rogue.monitors):
            poller.register(readable, zmq.POLLIN)
        for _ in self.rogue.take(dict(poller.poll(wait))):
            pass
        self.rogue.unreadable.clear()

    def close(self) -> None:
        """The node leaves, if it has not; what it died of is raised."""
        self.driver.leave("enough")
        self._orders.put(None)
        self.rogue.close()  # before its guard, of which its connections ask
        for guard in (self._guard, self._other_guard):
            if guard is not None:
                guard.close()
        for context in (self._context, self._other_context):
            context.destroy(linger=0)
        if self.driver.failure is not None:
            raise self.driver.failure
        assert not self.driver.is_alive(), "it hangs"


@dataclass
class Members:
    """So many messages to a node in a role, by a neighbour; how often it left, as it was told to."""

    role: str
    frames: int
    seed: int
    has_keys: bool = False
    left: int = 0
    grew: int = 0

    def run(self) -> Members:
        """Send them all."""
        mutations = Mutations(self.seed, CHUNK * 4)
        secret = Secret.fresh() if self.has_keys else None
        process = psutil.Process()
        pair, before = Two(self.role, secret), 0
        try:
            for number in range(self.frames):
                if number == self.frames // 5:
                    before = process.memory_info().rss
                if not pair.say(mutations):
                    pair.close()
                    self.left += 1
                    pair = Two(self.role, secret)
            self.grew = process.memory_info().rss - before
        finally:
            pair.close()
        return self


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for number, (role, has_keys) in enumerate(product(ROLES, (False, True))):
        done = Members(role, options.frames // (2 * len(ROLES)), options.seed + number, has_keys).run()
        how = f"{done.frames} messages, left {done.left} times, {done.grew / 1e6:.1f} MB more"
        print(f"{role}{', with keys' if has_keys else ''}: {how}", flush=True)


if __name__ == "__main__":
    main()
