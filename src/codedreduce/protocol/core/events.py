"""What can happen to a node, and what a node can want done.

A machine takes events and returns actions. It does nothing else: no sockets, no clock, no threads.
"""

from __future__ import annotations

import msgspec

from codedreduce.protocol.core.messages import AnyMessage, Trouble
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
    """Root, ring and rank: a new round starts with this model; `digest` of it, where ranks are to compare theirs."""

    round: int
    model: Vector
    digest: str = ""


class Computed(Event, frozen=True, kw_only=True):
    """The node's own computation for a task is done.

    If it was stopped half-way and salvaged: `covered` of it, and so many of its pieces (all of them: 0).
    """

    round: int
    task: int
    vector: Vector
    covered: float = 1.0
    pieces: int = 0


class Failed(Event, frozen=True, kw_only=True):
    """The node's own computation for a task raised an error, or its result is not finite."""

    round: int
    task: int
    reason: str


class Advanced(Event, frozen=True, kw_only=True):
    """So many pieces of a computation that is watched are done, and it goes on."""

    round: int
    task: int
    pieces: int


class Digested(Event, frozen=True, kw_only=True):
    """A piece, by place, of a computation that goes on is done, and has this digest."""

    round: int
    task: int
    piece: int
    digest: bytes


class StatePacked(Event, frozen=True, kw_only=True):
    """The state that was asked for, as it is after a round, packed into numbers; `digest` tells two of them apart."""

    round: int
    state: Vector
    digest: str = ""


class ComputationStopped(Event, frozen=True, kw_only=True):
    """A computation was stopped before it was done; at least so much longer it would have taken."""

    round: int
    task: int
    seconds: float


class TimerFired(Event, frozen=True, kw_only=True):
    """A moment the node asked to be told of has come."""

    name: str


class PeerLost(Event, frozen=True, kw_only=True):
    """The connection to a neighbour is gone; `dead`: and so is its process, of which there is proof."""

    peer: int
    dead: bool = False


class PeerFound(Event, frozen=True, kw_only=True):
    """The connection to a neighbour is back."""

    peer: int


class Drained(Event, frozen=True, kw_only=True):
    """A marked message has arrived at the neighbour, and so have all before it."""

    peer: int


class Overtaken(Event, frozen=True, kw_only=True):
    """Rank: what was gathered of a round's sum was written into before its script had taken it: it has not stepped."""

    round: int


class HandOver(Event, frozen=True, kw_only=True):
    """Rank: it shall leave while the run goes on, when others have taken what it does for all."""

    reason: str


class Leave(Event, frozen=True, kw_only=True):
    """The node shall leave; at once, or when others no longer need it."""

    reason: str
    at_once: bool = False


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
    finished is reported all the same. Of a `watched` one every piece is reported when it is done. Of pieces that are
    `audited`, by place, digests are given as they are done (`Digested`); with `digest_only` the sum is not needed.
    """

    round: int
    task: int
    pieces: tuple[Piece, ...]
    model: Vector
    salvage: bool = False
    watched: bool = False
    audited: tuple[int, ...] = ()
    digest_only: bool = False


class Cancel(Action, frozen=True, kw_only=True):
    """Stop computing at the next safe point."""

    reason: str


class SetTimer(Action, frozen=True, kw_only=True):
    """Fire a timer at this time, in place of an earlier one of the same name."""

    name: str
    at: float


class EveryoneIn(Action, frozen=True, kw_only=True):
    """Root and rank 0: all nodes have joined; another rank: it has."""


class Pack(Action, frozen=True, kw_only=True):
    """Rank: pack the state as it is between two rounds; another takes it."""


class Renewed(Action, frozen=True, kw_only=True):
    """Rank: take this state, which another had after a round, and go on from there.

    Without a state rank 0 goes on as it is: nobody is left who could give it another.
    """

    round: int
    state: Vector | None


class Aggregated(Action, frozen=True, kw_only=True):
    """Root, ring and rank: the round is over, and this is its gradient sum."""

    round: int
    vector: Vector
    residual: float = 0.0
    late: tuple[int, ...] = ()


class Gathered(Action, frozen=True, kw_only=True):
    """Rank: the round is over, and its gradient sum is these chunks, in order, which lie where its keepers have them.

    They will write into that memory again: whoever has copied it asks whether they did, and says so (`Overtaken`).
    """

    round: int
    chunks: tuple[Vector, ...]
    late: tuple[int, ...] = ()


class Note(Action, frozen=True, kw_only=True):
    """Something worth telling: `kind` for machines, `reason` in words, whom it is about, and how long it was."""

    kind: str
    reason: str
    round: int
    nodes: tuple[int, ...] = ()
    seconds: float | None = None


class Ended(Action, frozen=True, kw_only=True):
    """Rank: the run is over after this round, as its coordinator said."""

    round: int


class Finished(Action, frozen=True, kw_only=True):
    """The node has left, for this reason; on the root maybe because of `troubles`: who failed, and why."""

    reason: str
    troubles: tuple[Trouble, ...] = ()


AnyAction = (
    Transmit | Compute | Cancel | SetTimer | EveryoneIn | Aggregated | Gathered | Pack | Renewed | Ended | Note
    | Finished
)  # fmt: skip
