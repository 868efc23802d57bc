"""Who has a right to say what: of every neighbour, the messages that it can ever send this node, whatever state both
are in.

It is read from the machines' tables, so that there is no second list. A machine looks closer, at the state it is in and
at who leads; here is what can be told before anything else is known, and before memory is taken for what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from codedreduce.protocol.machine import CHILD, COORDINATOR, FOLLOWER, PARENT, PEER, PREVIOUS, From, Machine
from codedreduce.protocol.messages import Message
from codedreduce.protocol.rank import Rank
from codedreduce.protocol.ring import RingNode
from codedreduce.protocol.root import Root
from codedreduce.protocol.worker import Worker
from codedreduce.schemes import Plan, RingPlan, StripedPlan, TreePlan

Kinds = frozenset[type[Message]]


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What each neighbour may say: those that this node connects to, and those that connect to it, or to each other.

    In a ring of two the next is also the one before, and has other rights as the one than as the other.
    """

    above: Mapping[int, Kinds] = field(default_factory=dict)
    below: Mapping[int, Kinds] = field(default_factory=dict)


def said_by(machine: type[Machine], *senders: From) -> Kinds:
    """What a machine hears from those, in whichever state.

    >>> sorted(kind.__name__ for kind in said_by(RingNode, PREVIOUS))
    ['RingChunk']
    """
    return frozenset(
        row.trigger for row in machine.ROWS if row.sender in senders and issubclass(row.trigger, Message)
    )  # fmt: skip


def rights_at(node: int, plan: Plan) -> Rights:
    """What the neighbours of a node may say to it."""
    if isinstance(plan, RingPlan):
        return Rights(
            above={plan.ring.next(node): frozenset()},
            below={plan.ring.previous(node): said_by(RingNode, PREVIOUS)},
        )
    if isinstance(plan, StripedPlan):
        kinds = said_by(Rank, COORDINATOR, FOLLOWER, PEER)
        return Rights(below={other: kinds for other in plan.computing if other != node})
    assert isinstance(plan, TreePlan)
    kinds = said_by(Worker if node else Root, CHILD)
    above = {plan.tree.parent(node): said_by(Worker, PARENT)} if node else {}
    return Rights(above=above, below=dict.fromkeys(plan.tree.children(node), kinds))
