"""The protocol: one state machine per role, `handle(event, now) -> actions`. No sockets, no clock, no threads."""

from codedreduce.protocol.core.machine import Machine, diagram
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.rank import Rank
from codedreduce.protocol.rank.sums import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.protocol.tree.ring_node import RingNode
from codedreduce.protocol.tree.root import Root
from codedreduce.protocol.tree.tree_worker import TreeWorker
from codedreduce.schemes import Plan, RingPlan, StripedPlan, TreePlan

__all__ = ["Machine", "Rank", "RingNode", "Root", "Settings", "TreeWorker", "diagram", "machine_for"]


def machine_for(
    node: int, plan: Plan, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS, *, process: int, computes: bool
) -> Machine:  # fmt: skip
    """The state machine of a node under a plan.

    `rooms` provide the memory for the vectors of ranks. `process` identifies this process among those of its rank.
    `computes`: the root can do the work of missing workers.
    """
    if isinstance(plan, RingPlan):
        return RingNode(node, plan, settings)
    if isinstance(plan, StripedPlan):
        return Rank(node, plan, settings, rooms, process=process)
    assert isinstance(plan, TreePlan)
    return TreeWorker(node, plan, settings) if node else Root(plan, settings, computes=computes)
