"""Connections that break, cables that are pulled, machines that vanish: real TCP between the nodes of a lab.

A round's sum is compared with an independent computation. How long things take is asserted with much room.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.lab import Lab
from codedreduce.lab.lab import labs
from codedreduce.protocol import Settings
from codedreduce.schemes import Piece, Plan, StripedPlan
from codedreduce.worlds.journal import Journal
from codedreduce.worlds.run import Run
from codedreduce.worlds.simulated import Gradients
from codedreduce.worlds.world import RoundResult, World
from codedreduce.worlds.zeromq.local import LocalCluster, new_meeting

from .test_lab import needs_lab

pytestmark = needs_lab

SAMPLES, LENGTH = 60, 20_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    name = f"c{os.getpid() % 1000000}"
    made = Lab.up(nodes=7, rate=1e9 / 8, name=name)
    yield made
    made.down()
    assert name not in labs()


class Cluster:
    """A run in a lab whose every sum, at every node that has it, is compared; the other nodes write what they got."""

    def __init__(self, lab: Lab, plan: Plan, folder: Path, rounds: int = 10**6) -> None:
        self.lab, self.plan, self.folder, self.rounds = lab, plan, folder, rounds
        self.gradients = Gradients(SAMPLES, LENGTH, seed=5)
        self.journal = Journal()
        chunk = plan.chunk(LENGTH, 4, 4000) if isinstance(plan, StripedPlan) else 1000
        settings = Settings(length=LENGTH, chunk=chunk, window=4, least_head_start=0.05)
        meeting = replace(new_meeting(lab), orphaned_after=60.0)
        run = Run(meeting=meeting, plan=plan, settings=settings)
        self.cluster = LocalCluster(run, self.gradient, site=lab, journal=self.journal, member=self.member)

    def gradient(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        out[:] = self.gradients.of_piece(piece, model)
        time.sleep(0.005)
        (self.folder / f"{node}-new").write_text(f"{round_}")
        (self.folder / f"{node}-new").replace(self.folder / f"{node}")

    def member(self, world: World) -> None:
        reached = 0
        while reached < self.rounds:
            outcome = world.aggregate(self.gradients.model(reached + 1))
            reached = outcome.round
            if isinstance(outcome, RoundResult):
                self.check(outcome)

    def check(self, result: RoundResult) -> None:
        model = self.gradients.model(result.round)
        calm = self.plan.reference(lambda piece: self.gradients.of_piece(piece, model))
        assert result.vector.tobytes() == calm.tobytes(), f"round {result.round} has other bits"

    def last_computed(self, node: int) -> int:
        """The last round of which a node has computed something."""
        return int((self.folder / f"{node}").read_text())

    def go_on(self, until: Callable[[], bool], within: float) -> float:
        """Rounds, until something is so; the longest of them."""
        deadline = time.monotonic() + within
        longest = 0.0
        while True:
            assert time.monotonic() < deadline, f"not within {within} s"
            result = self.cluster.aggregate(self.gradients.model(self.cluster._node.next_round))
            self.check(result)
            longest = max(longest, result.seconds)
            if until():
                return longest

    def is_reached(self, node: int) -> bool:
        """Whether the first node has a session with another."""
        return self.cluster._node._talking._transport._link_to(node).session.is_up

    def rounds_more(self, count: int) -> float:
        """So many rounds; the longest."""
        end = self.cluster._node.next_round + count
        return self.go_on(lambda: self.cluster._node.next_round >= end, 60.0)


TREE = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=SAMPLES)
STRIPES = Striped(4).plan(samples=SAMPLES)


def reset(lab: Lab, node: int, which: int) -> None:
    """Have the kernel end one established connection of a node, as a firewall or a router between would."""
    found = subprocess.run(
        ["ip", "netns", "exec", lab.namespace(node), "ss", "-Htn", "state", "established"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pairs = sorted(tuple(line.split()[2:4]) for line in found.stdout.splitlines())
    here, there = pairs[which % len(pairs)]
    killed = subprocess.run(
        ["ip", "netns", "exec", lab.namespace(node), "ss", "-KHtn", "src", here, "dst", there],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert killed.stdout.count("\n") == 1, "this kernel does not end connections (CONFIG_INET_DIAG_DESTROY)"


@pytest.mark.parametrize("plan", [TREE, STRIPES], ids=["tree", "stripes"])
def test_any_one_connection_is_reset_while_rounds_run(lab: Lab, tmp_path: Path, plan: Plan) -> None:
    """Control or data, of the first node or another: no round is lost, none hangs."""
    them = Cluster(lab, plan, tmp_path)
    nodes = (0, 1, 2, 3)
    with them.cluster:
        them.rounds_more(5)
        for which in range(16):
            breaking = threading.Timer(0.01 * (which % 3), reset, (lab, nodes[which % 4], which))
            breaking.start()
            them.rounds_more(8)
            breaking.join()
        them.rounds_more(5)
        now = them.cluster._node.next_round - 1
        them.go_on(lambda: all(them.last_computed(node) > now for node in them.cluster.processes), 20.0)
        them.rounds = 0  # of this process; the others are told


@pytest.mark.parametrize("plan", [TREE, STRIPES], ids=["tree", "stripes"])
def test_a_cable_that_is_out_is_noticed_and_one_that_is_back_used(lab: Lab, tmp_path: Path, plan: Plan) -> None:
    """Longer than it takes to notice. Rounds go on meanwhile, and each has the bits it must have."""
    them = Cluster(lab, plan, tmp_path)
    with them.cluster:
        them.rounds_more(5)
        lab.set_link(2, up=False)
        try:
            out = time.monotonic()
            them.go_on(lambda: not them.is_reached(2), 10.0)
            noticed = time.monotonic() - out
            them.go_on(lambda: time.monotonic() > out + 7.0, 10.0)
        finally:
            lab.set_link(2, up=True)
        back = time.monotonic()
        now = them.cluster._node.next_round
        them.go_on(lambda: them.last_computed(2) > now, 10.0)
        used = time.monotonic() - back
        print(f"noticed after {noticed:.2f} s, used again after {used:.2f} s")
        assert noticed < 7.0
        assert used < 5.0
        them.rounds = 0
