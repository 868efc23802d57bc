"""Connections that break, cables that are pulled, machines that vanish: real TCP between the nodes of a lab.

A round's sum is compared with an independent computation. How long things take is asserted with much room.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.lab import Lab
from codedreduce.lab.laboratory import labs
from codedreduce.node.local import LocalCluster, new_meeting
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings
from codedreduce.run.agreement import Run
from codedreduce.run.journal import Journal
from codedreduce.run.world import RoundResult, World
from codedreduce.schemes import Piece, Plan, Scheme, StripedPlan
from codedreduce.simulator import Gradients
from codedreduce.timing import Timing
from codedreduce.training import SGD, LogisticRegression, synthetic
from codedreduce.training.loop import Job, reference_run
from tests.waiting import PATIENCE, wait_until

from .test_lab import needs_lab

pytestmark = needs_lab

SAMPLES, LENGTH = 60, 20_000

#: A connection is lost soon, and made again soon; nothing else is shorter, so that a busy machine makes no difference.
SOON = Timing(connect_timeout=0.3, connection_timeout=1.0, renew_connection=0.5)


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
        meeting = replace(new_meeting(lab), orphaned_after=60.0, timing=SOON)
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
        return self.cluster._node._talking._transport._links[node].session.is_up

    def rounds_more(self, count: int) -> float:
        """So many rounds; the longest."""
        end = self.cluster._node.next_round + count
        return self.go_on(lambda: self.cluster._node.next_round >= end, PATIENCE)


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
        them.go_on(lambda: all(them.last_computed(node) > now for node in them.cluster.processes), PATIENCE)
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
            them.go_on(lambda: not them.is_reached(2), PATIENCE)
            them.go_on(lambda: time.monotonic() > out + 3.0, PATIENCE)
        finally:
            lab.set_link(2, up=True)
        now = them.cluster._node.next_round
        them.go_on(lambda: them.last_computed(2) > now, PATIENCE)
        them.rounds = 0


SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
from codedreduce.training import LogisticRegression, SGD, synthetic, train
folder, rank = Path(sys.argv[1]), os.environ["RANK"]

class Noted(LogisticRegression):
    def evaluate(self, *arguments):
        time.sleep(0.01)
        (folder / f"{rank}-new").write_text(f"{os.getpid()} {time.monotonic()}")
        (folder / f"{rank}-new").replace(folder / rank)
        return super().evaluate(*arguments)

result = train(
    Noted(), synthetic(120, 40), rounds=100_000, optimizer=SGD(0.2, momentum=0.9), batch=60,
    until=lambda log: (folder / "enough").exists(),
)
if rank == "0":
    np.savez(folder / "result.npz", parameters=result.parameters, rounds=len(result.history))
"""


class ByHand:
    """Processes started by hand, one on each node of a lab, as docs/running.md says of other launchers."""

    def __init__(self, lab: Lab, scheme: Scheme, folder: Path, **variables: str) -> None:
        self.lab, self.scheme, self.folder = lab, scheme, folder
        (folder / "script.py").write_text(SCRIPT)
        striped = isinstance(scheme, Striped)
        self.count = len(scheme.plan(samples=60).nodes)
        self.environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(self.count), "MASTER_ADDR": lab.address(0),
            "MASTER_PORT": "29711", "CODEDREDUCE_TREE": f"{self.count}x1" if striped else "2x2",
            "CODEDREDUCE_SECRET": Secret.fresh().reveal(),
            "CODEDREDUCE_SCHEME": "striped" if striped else "coded-reduce", **variables,
        }  # fmt: skip
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, str(self.folder / "script.py"), str(self.folder)],
                env={**self.environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, preexec_fn=lambda rank=rank: self.lab.enter(rank),
            )  # fmt: skip

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].wait()

    def works(self, rank: int, since: float) -> bool:
        """Whether the process of a rank has computed something since a time."""
        noted = self.folder / str(rank)
        who, at = noted.read_text().split() if noted.exists() else ("0", "0")
        return int(who) == self.processes[rank].pid and float(at) > since

    def wait_until_all_work(self, *ranks: int, within: float = PATIENCE) -> None:
        now = time.monotonic()
        there = wait_until(lambda: all(self.works(rank, now) for rank in ranks), within)
        assert there, [rank for rank in ranks if not self.works(rank, now)]

    def finish(self) -> None:
        """All end when rank 0 does, and its model is what a single process computes."""
        (self.folder / "enough").touch()
        for rank, process in self.processes.items():
            words, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, f"rank {rank}: {words}"
        result = np.load(self.folder / "result.npz")
        job = Job(
            objective=LogisticRegression(), source=synthetic(120, 40), scheme=self.scheme, rounds=1, batch=60,
            optimizer=SGD(0.2, momentum=0.9),
        )  # fmt: skip
        expected, _ = reference_run(job, int(result["rounds"]))
        assert result["parameters"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("node", [1, 3])
def test_a_worker_of_a_tree_that_is_started_again_elsewhere_is_found(lab: Lab, tmp_path: Path, node: int) -> None:
    """An inner worker listens at other ports then: its children are told, and come back to it."""
    with ByHand(lab, CodedReduce(Tree.regular(fanout=2, depth=2), 1), tmp_path) as them:
        them.start(*range(7))
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        them.kill(node)
        them.wait_until_all_work(2, 5, 6)
        them.start(node)
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        them.finish()


def test_a_machine_that_vanishes_is_missed_and_its_successor_found(lab: Lab, tmp_path: Path) -> None:
    """Its cable is out before its process ends: no FIN and no reset reaches anybody."""
    with ByHand(lab, CodedReduce(Tree.regular(fanout=2, depth=2), 1), tmp_path) as them:
        them.start(*range(7))
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        lab.set_link(1, up=False)
        them.kill(1)
        them.wait_until_all_work(2, 5, 6)
        lab.set_link(1, up=True)
        them.start(1)
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        them.finish()


def test_a_second_process_of_a_rank_is_refused(lab: Lab, tmp_path: Path) -> None:
    with ByHand(lab, CodedReduce(Tree.regular(fanout=2, depth=2), 1), tmp_path, CODEDREDUCE_TIMING="0.2") as them:
        them.start(*range(7))
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        first = them.processes[3]
        them.start(3)
        words, _ = them.processes[3].communicate(timeout=PATIENCE)
        assert "rank 3 is taken" in words
        them.processes[3] = first
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        them.finish()


@pytest.mark.parametrize("vanishes", [False, True], ids=["ends", "vanishes"])
def test_a_rank_that_is_started_again_is_used_again(lab: Lab, tmp_path: Path, vanishes: bool) -> None:
    """Its process ends, or its machine is gone without a word; it comes back at other ports, and takes the state."""
    with ByHand(lab, Striped(4), tmp_path) as them:
        them.start(*range(4))
        them.wait_until_all_work(0, 1, 2, 3)
        if vanishes:
            lab.set_link(2, up=False)
        them.kill(2)
        them.wait_until_all_work(0, 1, 3)
        lab.set_link(2, up=True)
        them.start(2)
        them.wait_until_all_work(0, 1, 2, 3)
        them.finish()


def test_workers_of_a_root_that_vanished_leave_in_time(lab: Lab, tmp_path: Path) -> None:
    """Without a FIN: known within seconds, waited for as long as was said, and no longer."""
    scheme = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
    with ByHand(lab, scheme, tmp_path, CODEDREDUCE_ORPHANED_AFTER="1", CODEDREDUCE_TIMING="0.25") as them:
        them.start(*range(7))
        them.wait_until_all_work(1, 2, 3, 4, 5, 6)
        lab.set_link(0, up=False)
        try:
            them.kill(0)
            for rank in range(1, 7):
                words, _ = them.processes[rank].communicate(timeout=PATIENCE)
                assert them.processes[rank].returncode == 0, words
        finally:
            lab.set_link(0, up=True)
