"""How a node joins its run: it answers at the rendezvous address, if that is its task, or registers there. Then it
knows where its neighbours listen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from codedreduce.errors import CodedReduceError, Outlived, UsageError
from codedreduce.net.carrier import Carrier
from codedreduce.net.keys import Guard
from codedreduce.net.rendezvous.directory import Directory
from codedreduce.net.rendezvous.identity import Identity
from codedreduce.net.rendezvous.registration import Opened, Registration, Standing
from codedreduce.net.rendezvous.visiting import Visitor
from codedreduce.net.sockets import Context
from codedreduce.run.agreement import Run
from codedreduce.run.quorum import Gathering, sufficient
from codedreduce.schemes import Plan, RingPlan, StripedPlan, TreePlan

#: A node registers at this many further rendezvous addresses of a tree; the root can be at one of them only.
MOST_PLACES = 4


@dataclass(frozen=True, kw_only=True)
class Met:
    """The result: this node's directory, and its connections to the directories of others."""

    run: Run
    directory: Directory
    visitor: Visitor | None


def meet(context: Context, run: Run, transport: Carrier, look: Callable[[], None], guard: Guard | None = None) -> Met:
    """Listen, register, and connect to the neighbours, when all or enough of them are there."""
    node, meeting = transport.node, run.meeting
    meeting.check_protected()
    seeks, listens = neighbours(run.plan, node)
    identity = Identity()
    directory = Directory(
        context, meeting, owner=node, process=transport.process, nodes=run.plan.nodes, seeks=seeks, guard=guard,
        identity=identity,
    )  # fmt: skip
    answers = _answers(directory, run, node)
    if answers:
        identity.make(goes_on=meeting.goes_on)
    endpoints = transport.listen(meeting.listen_at()) if listens else None
    if endpoints is not None:
        directory.addresses.add(node, endpoints)
    transport.expect(seeks)
    others = [place for place in _places(run) if place not in directory.listener.addresses]
    visitor: Visitor | None = None
    if others and (seeks or not answers):
        registration = Registration(
            meeting.run, node, seeks, endpoints, meeting.subject, transport.process, series=meeting.series,
            training=meeting.training, arithmetic=meeting.arithmetic,
        )  # fmt: skip
        visitor = Visitor(context, meeting, registration, others, guard, identity)

    def serve() -> None:
        look()
        directory.serve()

    gathering = Gathering(sufficient(run.plan, meeting.least), time.monotonic(), meeting.timing)
    if answers:
        try:
            found = directory.wait_for(seeks, look, gathering)
        except Outlived:
            raise
        except CodedReduceError:  # registered processes wait for the missing ones; closing sends them the reason
            directory.close()
            raise
    else:
        assert visitor is not None
        found = visitor.find(serve)
    standing = directory.addresses.heard if answers else visitor.standing if visitor is not None else Standing()
    for peer, where in found.items():
        transport.move(peer, where)
    directory.addresses.moved.clear()
    if isinstance(run.plan, StripedPlan):  # a worker of a tree needs its parent, and waits for that
        directory.begin(found)
    if standing.is_on:
        gathering.join_what_is_on(time.monotonic())
    transport.wait_until_connected(meeting.all_within, serve, gathering)
    return Met(run=run, directory=directory, visitor=visitor)


def _answers(directory: Directory, run: Run, node: int) -> bool:
    """Whether this node answers at the rendezvous address: the first leader does, or another in its place."""
    is_first = node == (
        run.settings.generation % run.plan.workers if isinstance(run.plan, StripedPlan) else run.plan.first_node
    )
    if not is_first and not isinstance(run.plan, StripedPlan):
        return False
    places = run.meeting.addresses if is_first else run.meeting.addresses[1:]
    opened = {place: directory.listener.open(place) for place in places}
    if not is_first or Opened.HERE in opened.values():
        return is_first
    if isinstance(run.plan, StripedPlan) and (Opened.TAKEN in opened.values() or run.meeting.goes_on):
        return False  # the run may continue without the first, which may come back at an address that no rank tries
    why = "address already in use" if Opened.TAKEN in opened.values() else "cannot assign requested address"
    raise UsageError(f"the root cannot listen at {' or '.join(places)}: {why}; choose another port")


def _places(run: Run) -> tuple[str, ...]:
    places = run.meeting.addresses
    return places if isinstance(run.plan, StripedPlan) else places[: 1 + MOST_PLACES]


def neighbours(plan: Plan, node: int) -> tuple[tuple[int, ...], bool]:
    """The nodes that a node connects to, if any, and whether others connect to it."""
    if isinstance(plan, RingPlan):
        return (plan.next(node),), True
    if isinstance(plan, StripedPlan):
        return tuple(other for other in plan.computing if other != node), True
    assert isinstance(plan, TreePlan)
    return ((plan.tree.parent(node),) if node else ()), bool(plan.tree.children(node))
