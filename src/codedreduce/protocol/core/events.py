"""The events of a node, and the actions that it requests.

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
    """The node has started and may send messages."""


class Received(Event, frozen=True, kw_only=True):
    """A message came from a neighbour, with a chunk if it carries one."""

    sender: int
    message: AnyMessage
    data: Vector | None = None


class Begin(Event, frozen=True, kw_only=True):
    """Root, ring and rank: a new round starts with this model; `digest` of the model, if ranks compare their models."""

    round: int
    model: Vector
    digest: str | None = None


class Computed(Event, frozen=True, kw_only=True):
    """The node's own computation for a task is done.

    If it was stopped early and salvaged: `covered` is the fraction that is done, and `pieces` the number of pieces (0:
    all).
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
    """So many pieces of a watched computation are done; it goes on."""

    round: int
    task: int
    pieces: int


class Digested(Event, frozen=True, kw_only=True):
    """A piece of a running computation, given by its index, is done and has this digest."""

    round: int
    task: int
    piece: int
    digest: bytes


class StatePacked(Event, frozen=True, kw_only=True):
    """The requested state after a round, packed into numbers; `digest` distinguishes states."""

    round: int
    state: Vector
    digest: str = ""


class ComputationStopped(Event, frozen=True, kw_only=True):
    """A computation was stopped early; it would have taken at least so many seconds more."""

    round: int
    task: int
    seconds: float


class TimerFired(Event, frozen=True, kw_only=True):
    """The time of a timer that the node set has come."""

    name: str


class PeerLost(Event, frozen=True, kw_only=True):
    """The connection to a neighbour is lost; `dead`: its process is proved to be dead as well."""

    peer: int
    dead: bool = False


class PeerFound(Event, frozen=True, kw_only=True):
    """The connection to a neighbour is back."""

    peer: int


class Drained(Event, frozen=True, kw_only=True):
    """A marked message has arrived at the neighbour, and so have all before it."""

    peer: int


class Overtaken(Event, frozen=True, kw_only=True):
    """Rank: chunks of a gathered sum were overwritten before the script had copied them; the script has not stepped."""

    round: int


class HandOver(Event, frozen=True, kw_only=True):
    """Rank: it is to leave while the run goes on, once other ranks have taken over its duties."""

    reason: str


class Leave(Event, frozen=True, kw_only=True):
    """The node is to leave: at once, or when others no longer need it."""

    reason: str
    at_once: bool = False


class Action(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that the driver is to do."""


class Transmit(Action, frozen=True, kw_only=True):
    """Send a message, with a chunk if it carries one. `Drained` acknowledges a marked message."""

    to: int
    message: AnyMessage
    data: Vector | None = None
    marked: bool = False


class Compute(Action, frozen=True, kw_only=True):
    """Compute the gradient sum of these pieces with this model, in place of any running computation.

    Pieces are evaluated one by one and added in order. When a `salvage` computation is replaced, its finished part is
    still reported. A `watched` computation reports every finished piece. `audited` lists pieces by index; their digests
    are reported as they are done (`Digested`). With `digest_only` the sum is not needed.
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
    """Fire a timer at this time; it replaces an earlier timer of the same name."""

    name: str
    at: float


class EveryoneIn(Action, frozen=True, kw_only=True):
    """Root and rank 0: all nodes have joined. Another rank: it has joined itself."""


class Pack(Action, frozen=True, kw_only=True):
    """Rank: pack the state between two rounds; another rank takes it."""


class Renewed(Action, frozen=True, kw_only=True):
    """Rank: take this state, which another rank had after a round, and continue from there.

    Without a state, rank 0 continues with its own: no rank is left that could send one.
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
    """Rank: the round is over. Its gradient sum is these chunks, in order, in the memory of their reducers.

    The reducers will overwrite that memory. After copying, the driver checks for that and reports it (`Overtaken`).
    """

    round: int
    chunks: tuple[Vector, ...]
    late: tuple[int, ...] = ()


class Note(Action, frozen=True, kw_only=True):
    """Something to report: `kind` for programs, `reason` in words, the nodes that it is about, and its duration."""

    kind: str
    reason: str
    round: int
    nodes: tuple[int, ...] = ()
    seconds: float | None = None


class Ended(Action, frozen=True, kw_only=True):
    """Rank: the run is over after this round, as its leader reported."""

    round: int


class Finished(Action, frozen=True, kw_only=True):
    """The node has left, for this reason; on the root perhaps because of `troubles`: failed nodes and their errors."""

    reason: str
    troubles: tuple[Trouble, ...] = ()


AnyAction = (
    Transmit | Compute | Cancel | SetTimer | EveryoneIn | Aggregated | Gathered | Pack | Renewed | Ended | Note
    | Finished
)  # fmt: skip

#: What a machine and its parts want to be done, in the order in which they ask for it.
Actions = list[AnyAction]
