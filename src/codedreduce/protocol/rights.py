"""The messages that each neighbour may send, and the rounds and generations that it can plausibly name.

The messages are those that a neighbour can ever send this node, whatever state both are in. They are read from the
machines' tables, so that there is no second list. A machine checks in more detail: its state, and which rank leads.
This module checks what needs no further knowledge, before memory is allocated for what was sent.

Rounds and generations only grow. One that no node can have reached would make all later messages stale, for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from codedreduce.protocol.core.machine import CHILD, FOLLOWER, LEADER, PARENT, PEER, PREVIOUS, From, Machine
from codedreduce.protocol.core.messages import Lead, Message, Stand, Status, Welcome
from codedreduce.protocol.rank.rank import Rank
from codedreduce.protocol.tree.ring_node import RingNode
from codedreduce.protocol.tree.root import Root
from codedreduce.protocol.tree.tree_worker import TreeWorker
from codedreduce.schemes import Plan, RingPlan, StripedPlan, TreePlan

Kinds = frozenset[type[Message]]

#: The most rounds that others can be ahead of a node that was away: a thousand a second, for two years.
MOST_ROUNDS_AHEAD = 2**36

#: The most generations that others can be ahead: one a second and rank, for as long, with the maximum number of ranks.
MOST_GENERATIONS_AHEAD = 2**38


@dataclass(frozen=True, kw_only=True)
class Rights:
    """The messages that each neighbour may send: `above`, neighbours that this node connects to; `below`, all others.

    In a ring of two nodes, the next node is also the previous one, and has different rights in each role.
    """

    above: Mapping[int, Kinds] = field(default_factory=dict)
    below: Mapping[int, Kinds] = field(default_factory=dict)


def said_by(machine: type[Machine], *senders: From) -> Kinds:
    """The messages that a machine handles from these senders, in any state.

    >>> sorted(kind.__name__ for kind in said_by(RingNode, PREVIOUS))
    ['RingChunk']
    """
    return frozenset(
        row.trigger
        for row in machine.ROWS
        if not set(senders).isdisjoint(row.senders) and issubclass(row.trigger, Message)
    )


def rights_at(node: int, plan: Plan) -> Rights:
    """The messages that the neighbours of a node may send to it."""
    if isinstance(plan, RingPlan):
        return Rights(
            above={plan.next(node): frozenset()},
            below={plan.previous(node): said_by(RingNode, PREVIOUS)},
        )
    if isinstance(plan, StripedPlan):
        kinds = said_by(Rank, LEADER, FOLLOWER, PEER)
        return Rights(below={other: kinds for other in plan.computing if other != node})
    assert isinstance(plan, TreePlan)
    kinds = said_by(TreeWorker if node else Root, CHILD)
    above = {plan.tree.parent(node): said_by(TreeWorker, PARENT)} if node else {}
    return Rights(above=above, below=dict.fromkeys(plan.tree.children(node), kinds))


def beyond(message: Message, generation: int, round_: int) -> str | None:
    """Describe a round or generation in a message that no node can have reached; None if there is none.

    `generation` and `round_` are those of the receiver.

    >>> beyond(Status(round=2**53), generation=0, round_=7)
    'round 9007199254740992, in round 7'
    >>> beyond(Status(round=1000), generation=0, round_=7)
    """
    rounds, generations = [message.round], [message.generation]
    if isinstance(message, Status):
        rounds.append(message.begun)
    elif isinstance(message, Lead):
        generations += [message.voters_made_in, message.voters_number]
    elif isinstance(message, Stand | Welcome):
        generations += [message.voters.made_in, message.voters.number]
    if max(rounds) > round_ + MOST_ROUNDS_AHEAD:
        return f"round {max(rounds)}, in round {round_}"
    if max(generations) > generation + MOST_GENERATIONS_AHEAD:
        return f"generation {max(generations)}, in generation {generation}"
    return None
