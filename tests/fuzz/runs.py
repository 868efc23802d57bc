"""Runs of every kind of node, in real processes, whose every sum is compared with an independent computation."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import numpy as np
import psutil

from codedreduce import CodedReduce, RingAllReduce, Striped, Tree
from codedreduce.node.local import LocalCluster, new_meeting
from codedreduce.process.addresses import free_port
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings
from codedreduce.protocol.core.settings import FLOAT32, Dtype
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.journal import Journal
from codedreduce.run.world import Over, RoundResult, World
from codedreduce.schemes import Piece, Plan, StripedPlan, TreePlan
from codedreduce.simulator import Gradients

SAMPLES, LENGTH = 60, 1500

PLANS: dict[str, Plan] = {
    "tree": CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=SAMPLES),
    "stripes": Striped(3).plan(samples=SAMPLES),
    "ring": RingAllReduce(3).plan(samples=SAMPLES),
}

#: One that waits for everybody.
BARE = "bare tree"
_ALL = PLANS | {BARE: CodedReduce(Tree.regular(fanout=2, depth=2), 0).plan(samples=SAMPLES)}


@dataclass
class Checked:
    """A run whose sums are compared, in every process that has them, with what is computed without it."""

    kind: str
    shared_memory: bool = False
    has_keys: bool = False  # over TCP, with a secret
    dtype: Dtype = FLOAT32
    journal: Journal = field(default_factory=Journal)

    def __post_init__(self) -> None:
        self.plan = _ALL[self.kind]
        self.gradients = Gradients(SAMPLES, LENGTH, seed=5)
        itemsize = np.dtype(self.dtype).itemsize
        chunk = self.plan.chunk(LENGTH, itemsize, 2000) if isinstance(self.plan, StripedPlan) else 400
        settings = Settings(length=LENGTH, dtype=self.dtype, chunk=chunk, least_head_start=0.05)
        meeting = with_keys() if self.has_keys else new_meeting(shared_memory=self.shared_memory)
        self.run = Run(meeting=meeting, plan=self.plan, settings=settings)
        self.done = 0
        self.seconds: list[float] = []

    def _gradient(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        out[:] = self.gradients.of_piece(piece, model)

    def _check(self, result: RoundResult) -> None:
        model = self.gradients.model(result.round)
        calm = self.plan.reference(lambda piece: self.gradients.of_piece(piece, model).astype(self.dtype))
        assert result.vector.tobytes() == calm.tobytes(), f"round {result.round} has other bits"

    def _member(self, world: World) -> None:
        while True:
            outcome = world.aggregate(self.gradients.model(world.next_round).astype(self.dtype))  # type: ignore[attr-defined]
            if isinstance(outcome, Over):
                return
            if isinstance(outcome, RoundResult):
                self._check(outcome)

    def cluster(self) -> LocalCluster:
        """The processes; as a context, in which rounds can be run."""
        member = None if isinstance(self.plan, TreePlan) else self._member
        return LocalCluster(self.run, self._gradient, journal=self.journal, member=member)

    def round(self, cluster: LocalCluster) -> None:
        """One more round, whose bits are compared."""
        self.done += 1
        result = cluster.sum_of(self.gradients.model(self.done).astype(self.dtype))
        self._check(result)
        self.seconds.append(result.seconds)


def with_keys() -> Meeting:
    """Where processes meet over TCP that have a secret."""
    run = f"codedreduce-{os.getpid()}-{time.monotonic_ns()}"
    return Meeting(run=run, port=free_port(), same_machine=False, shared_memory=False, secret=Secret.fresh())


def memory_of(cluster: LocalCluster) -> dict[int, int]:
    """Bytes of memory that each process of a run has, but for what it shares with the one it was forked from.

    Of this process, from which they were: all of it. What is its own alone grows when they write into what they had of
    it, or end.
    """
    forked = {node: psutil.Process(pid).memory_full_info().uss for node, pid in cluster.processes.items()}
    return {0: psutil.Process().memory_info().rss, **forked}
