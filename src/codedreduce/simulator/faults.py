"""Faults at a given node in a given round, and their injection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np

from codedreduce.errors import UsageError
from codedreduce.simulator.computations import Computations
from codedreduce.simulator.network import Network
from codedreduce.simulator.nodes import Nodes
from codedreduce.simulator.post import Tampering

Kind = Literal[
    "crash", "pause", "cut", "slow", "duplicate", "reorder", "corrupt", "fail", "leave", "partition", "one-way", "late",
    "damage",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

#: The kinds of random faults for nodes of a tree, and for ranks.
OF_TREES, OF_RANKS = KINDS[:9], (*KINDS[:7], KINDS[9])


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault of a node or of the link to its parent, from `after` seconds into a round, for `seconds`.

    - crash: the process is gone, and a new one takes its place; a root's continues from its last checkpoint.
    - pause: the node handles nothing.
    - cut: the link loses everything.
    - slow: the interface is `factor` times slower.
    - duplicate, reorder, corrupt: the node's messages arrive twice, late and out of order, or damaged.
    - fail: every computation of the node raises an error.
    - leave: the node is asked to leave after its round, and a new process takes its place.
    - partition, of ranks: the node and `others` cannot reach the rest, nor the rest them; all lose these connections.
    - one-way, of ranks: the node's messages do not reach `others`; their messages reach it.
    - late, of ranks: the node is absent when the run begins, and joins at the time of the fault.
    - damage: about every third gradient chunk that the node sends has a flipped bit, which no receiver can detect.

    If a rank is paused or cut off for longer than `known_after` seconds, the others lose their connections to it.
    """

    kind: Kind
    node: int
    round: int
    after: float = 0.0
    seconds: float = float("inf")
    factor: float = 20.0
    known_after: float = 1e9  # longer than any run: never
    others: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"unknown fault {self.kind!r}; there are {', '.join(KINDS)}")
        if self.node < 0:
            raise UsageError(f"nodes are numbered from 0; got node {self.node}")


def fail_at(node: int, round_: int, kind: Kind = "crash") -> Fault:
    """A node fails at the start of a round, permanently.

    >>> fail_at(3, 10).kind
    'crash'
    """
    return Fault(kind=kind, node=node, round=round_)


#: Seconds after which a silent rank counts as lost.
KNOWN_AFTER = 5.0


def random_rank_faults(ranks: int, rounds: int, unit: float, seed: int) -> list[Fault]:
    """A random schedule of faults for ranks; any of them may be the leader."""
    random = np.random.default_rng([seed, 78])
    faults = []
    for _ in range(int(random.integers(0, 2 * rounds))):
        kind = OF_RANKS[int(random.integers(len(OF_RANKS)))]
        node = 0 if random.random() < 0.2 else int(random.integers(0, ranks))
        others = tuple(int(one) for one in range(ranks) if one != node and random.random() < 0.4)
        faults.append(
            Fault(
                kind=kind, node=node, others=others if kind == "partition" else (),
                round=int(random.integers(1, rounds + 1)),
                after=float(random.uniform(0, 2 * unit)),
                seconds=float(random.exponential(3 * unit)),
                factor=float(random.uniform(2, 50)),
                known_after=KNOWN_AFTER,
            )
        )  # fmt: skip
    return faults


def random_faults(workers: int, rounds: int, unit: float, seed: int) -> list[Fault]:
    """A random schedule of faults: each lasts a fraction of a round up to several rounds."""
    random = np.random.default_rng([seed, 77])
    faults = []
    for _ in range(int(random.integers(0, 2 * rounds))):
        faults.append(
            Fault(
                kind=OF_TREES[int(random.integers(len(OF_TREES)))],
                node=int(random.integers(1, workers + 1)),
                round=int(random.integers(1, rounds + 1)),
                after=float(random.uniform(0, 2 * unit)),
                seconds=float(random.exponential(3 * unit)),
                factor=float(random.uniform(2, 50)),
            )
        )
    return faults


def random_faults_of_the_root(rounds: int, unit: float, seed: int) -> list[Fault]:
    """A random schedule for the root: none, one or two faults; it is killed and restarted, or paused."""
    random = np.random.default_rng([seed, 78])
    return [
        Fault(
            kind="crash" if random.random() < 0.8 else "pause", node=0, round=int(random.integers(1, rounds + 1)),
            after=float(random.uniform(0, 2 * unit)), seconds=float(random.exponential(3 * unit)),
        )
        for _ in range(int(random.choice([0, 0, 1, 2])))
    ]  # fmt: skip


class FaultInjector:
    """Begins each fault at its time after the begin of its round, and ends it when its seconds are over."""

    def __init__(
        self, faults: Sequence[Fault], nodes: Nodes, computing: Computations, network: Network, tampering: Tampering
    ) -> None:
        self._faults = faults
        self._nodes = nodes
        self._kernel = nodes.kernel
        self._computing = computing
        self._network = network
        self._tampering = tampering
        self._reached = 0
        for fault in faults:
            if fault.kind == "late":
                nodes.stay_away(fault.node)

    def round_begins(self, round_: int) -> None:
        """Schedule this round's faults."""
        if round_ <= self._reached:
            return  # a restarted root repeats it
        self._reached = round_
        for fault in self._faults:
            if fault.round == round_:
                self._kernel.at(self._kernel.now + fault.after, self._begin, fault, priority=0)

    def _begin(self, fault: Fault) -> None:
        node = fault.node
        match fault.kind:
            case "crash":
                crash = self._nodes.crash(node)
                if crash is None:
                    return
                self._computing.lose(node)
                end = partial(self._nodes.come_back, node, crash)
            case "pause":
                self._nodes.pause(node)
                self._make_known(fault)
                end = partial(self._nodes.resume, node, is_known=fault.seconds > fault.known_after)
            case "cut":
                self._nodes.cut(node)
                self._make_known(fault)
                end = partial(self._nodes.mend, node)
            case "partition":
                apart = frozenset((node, *fault.others))
                self._nodes.part(apart)
                end = partial(self._nodes.join, apart)
            case "one-way":
                ways = self._nodes.mute(node, fault.others)
                if fault.seconds > fault.known_after:
                    self._kernel.at(self._kernel.now + fault.known_after, self._nodes.lose_ways, ways, priority=0)
                end = partial(self._nodes.unmute, ways)
            case "late":
                self._nodes.come(node)
                return
            case "slow":
                self._network.slow_down(node, fault.factor)
                end = partial(self._network.slow_down, node, 1 / fault.factor)
            case "duplicate" | "reorder" | "corrupt" | "damage":
                self._tampering.begin(node, fault.kind)
                end = partial(self._tampering.end, node, fault.kind)
            case "leave":
                self._nodes.leave(node)
                end = partial(self._nodes.return_, node)
            case "fail":
                self._computing.break_down(node)
                end = partial(self._computing.mend, node)
        if fault.seconds < float("inf"):
            self._kernel.at(self._kernel.now + fault.seconds, end, priority=0)

    def _make_known(self, fault: Fault) -> None:
        """After `known_after` seconds a rank and all others lose their connections to each other."""
        if fault.seconds > fault.known_after:
            self._kernel.at(self._kernel.now + fault.known_after, self._nodes.lose, fault.node, priority=0)
