"""Makes faults happen: each begins so long after its round began, and ends when its time is up."""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.worlds.simulated.computing import Computing
from codedreduce.worlds.simulated.faults import Fault
from codedreduce.worlds.simulated.network import Network
from codedreduce.worlds.simulated.nodes import Nodes
from codedreduce.worlds.simulated.post import Tampering


class Injector:
    """Knows the faults of a run, and asks those they befall to fail and to recover."""

    def __init__(
        self, faults: Sequence[Fault], nodes: Nodes, computing: Computing, network: Network, tampering: Tampering
    ) -> None:
        self._faults = faults
        self._nodes = nodes
        self._kernel = nodes.kernel
        self._computing = computing
        self._network = network
        self._tampering = tampering

    def round_begins(self, round_: int) -> None:
        """Let this round's faults come."""
        for fault in self._faults:
            if fault.round == round_:
                self._kernel.at(self._kernel.now + fault.after, self._begin, fault, priority=0)

    def _begin(self, fault: Fault) -> None:
        crash = 0
        match fault.kind:
            case "crash":
                found = self._nodes.crash(fault.node)
                if found is None:
                    return
                crash = found
                self._computing.lose(fault.node)
            case "pause":
                self._nodes.pause(fault.node)
            case "cut":
                self._nodes.cut(fault.node)
            case "slow":
                self._network.slow_down(fault.node, fault.factor)
            case "duplicate" | "reorder" | "corrupt":
                self._tampering.begin(fault.node, fault.kind)
        if fault.seconds < float("inf"):
            self._kernel.at(self._kernel.now + fault.seconds, self._end, fault, crash, priority=0)

    def _end(self, fault: Fault, crash: int) -> None:
        match fault.kind:
            case "crash":
                self._nodes.come_back(fault.node, crash)
            case "pause":
                self._nodes.resume(fault.node)
            case "cut":
                self._nodes.mend(fault.node)
            case "slow":
                self._network.slow_down(fault.node, 1 / fault.factor)
            case "duplicate" | "reorder" | "corrupt":
                self._tampering.end(fault.node, fault.kind)
