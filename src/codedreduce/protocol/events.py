"""What can happen to a node, and what a node can want done.

A machine takes events and returns actions. It does nothing else: no sockets, no clock, no threads.
"""

from __future__ import annotations

import msgspec

from codedreduce.protocol.messages import AnyMessage
from codedreduce.schemes import Piece
from codedreduce.vectors import Vector


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened."""


class Started(Event, frozen=True, kw_only=True):
    """The node is up and may talk."""


class Received(Event, frozen=True, kw_only=True):
    """A message came from a neighbour, with a chunk if it carries one."""

    sender: int
    message: AnyMessage
    data: Vector | None = None


class Begin(Event, frozen=True, kw_only=True):
    """Root and ring: a new round starts with this model."""

    round: int
    model: Vector


class Computed(Event, frozen=True, kw_only=True):
    """The node's own computation for a task is done; `covered` of it, if it was stopped half-way and salvaged."""

    round: int
    task: int
    vector: Vector
    covered: float = 1.0


class Interrupted(Event, frozen=True, kw_only=True):
    """A computation was stopped before it was done; at least so much longer it would have taken."""

    round: int
    task: int
    seconds: float


class TimerFired(Event, frozen=True, kw_only=True):
    """A moment the node asked to be told of has come."""

    name: str


class PeerLost(Event, frozen=True, kw_only=True):
    """The connection to a neighbour is gone."""

    peer: int


class PeerFound(Event, frozen=True, kw_only=True):
    """The connection to a neighbour is back."""

    peer: int


class Drained(Event, frozen=True, kw_only=True):
    """A marked message has arrived at the neighbour, and so have all before it."""

    peer: int


class Leave(Event, frozen=True, kw_only=True):
    """The node shall leave."""

    reason: str


class Action(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something to be done."""


class Transmit(Action, frozen=True, kw_only=True):
    """Send a message, with a chunk if it carries one. A marked one is answered by `Drained`."""

    to: int
    message: AnyMessage
    data: Vector | None = None
    marked: bool = False


class Compute(Action, frozen=True, kw_only=True):
    """Compute the gradient sum of these pieces with this model, in place of whatever is being computed.

    Pieces are evaluated one by one and added in order. When a `salvage` computation is replaced, what it had
    finished is reported all the same.
    """

    round: int
    task: int
    pieces: tuple[Piece, ...]
    model: Vector
    salvage: bool = False


class Cancel(Action, frozen=True, kw_only=True):
    """Stop computing at the next safe point."""

    reason: str


class SetTimer(Action, frozen=True, kw_only=True):
    """Fire a timer at this time, in place of an earlier one of the same name."""

    name: str
    at: float


class EveryoneIn(Action, frozen=True, kw_only=True):
    """Root: all workers, on all levels, have joined."""


class Aggregated(Action, frozen=True, kw_only=True):
    """Root and ring: the round is over, and this is its gradient sum."""

    round: int
    vector: Vector
    residual: float = 0.0
    late: tuple[int, ...] = ()


class Note(Action, frozen=True, kw_only=True):
    """Something worth telling: `kind` for machines, `reason` in words, whom it is about, and how long it was."""

    kind: str
    reason: str
    round: int
    nodes: tuple[int, ...] = ()
    seconds: float | None = None


class Finished(Action, frozen=True, kw_only=True):
    """The node has left, for this reason."""

    reason: str


AnyAction = Transmit | Compute | Cancel | SetTimer | EveryoneIn | Aggregated | Note | Finished
