"""The base of all machines: a table of transitions, and the rule for what is not in it.

Theory of operation. A machine is in one state. It looks an event up in the table, together with that state. The row
names the method that handles the event, and the states that the method may lead to. Local events (`OWN`) come from the
driver of the machine. A local event without a row raises an error with the last events, and changes nothing. Messages
come from neighbours, which may send anything at any time:

- a message that this sender has no right to send, in any state, is noted and dropped;
- a message that has no row in this state, or is of another generation of the plan, is late, repeated, or meant for a
  process that has since died: it is dropped;
- a chunk that is not a chunk of this run's vector is noted and dropped.

So a handler always gets a message of its type from the sender that its row names, and never has to check.

After each event that was handled, a machine may look at its state (`_after`): what many events can bring about, such as
the end of a round, is then decided in one place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from codedreduce.errors import ProtocolError
from codedreduce.protocol.core.events import Actions, AnyAction, Event, Note, Received
from codedreduce.protocol.core.messages import DATA, AnyMessage, Hello, Message, Refuse, Welcome
from codedreduce.vectors import Vector

#: The number of past events that a machine remembers, to report when something impossible happens.
STORY = 12

#: Messages that announce generations; they are therefore read whatever their generation is.
OF_ANY_GENERATION = (Hello, Welcome, Refuse)


class State(Enum):
    """A state of a machine."""

    __hash__ = object.__hash__  # members are unique: hashing by identity is faster, and every event looks one up


class From(Enum):
    """The sender of an event, relative to this machine."""

    OWN = "this node"
    PARENT = "its parent"
    CHILD = "a child"
    PREVIOUS = "the one before it"
    LEADER = "its leader"
    FOLLOWER = "a rank it leads"
    PEER = "another rank"
    STRANGER = "a stranger"

    __hash__ = object.__hash__


OWN, PARENT, CHILD, PREVIOUS, LEADER, FOLLOWER, PEER, STRANGER = From


class Stay(Enum):
    """A placeholder for the current state of a machine."""

    STAY = "stays"


STAY = Stay.STAY


class Row(NamedTuple):
    """In any of `states`, `method` handles `trigger` from a `sender`, and leads to one of the states in `then`.

    The method is the machine's own, or that of one of its parts (`part.method`). Without a method there is nothing to
    do. By default the machine stays in its state.
    """

    states: tuple[State, ...]
    trigger: type
    sender: From | tuple[From, ...]
    method: str | None = None
    then: tuple[State | Stay, ...] = (STAY,)

    @property
    def senders(self) -> tuple[From, ...]:
        """The senders of this row: one or several."""
        return (self.sender,) if isinstance(self.sender, From) else self.sender


class Entry(NamedTuple):
    """The entry of the table for one state, trigger and sender."""

    method: Callable[..., None] | None
    then: frozenset[State]


class Machine(ABC):
    """A state machine run by a table of transitions."""

    ROWS: ClassVar[tuple[Row, ...]] = ()
    OF_ANY_GENERATION: ClassVar[tuple[type, ...]] = OF_ANY_GENERATION
    _table: ClassVar[dict[tuple[State, type, From], Entry]] = {}
    _rights: ClassVar[frozenset[tuple[type, From]]] = frozenset()

    node: int
    round: int
    state: State
    generation: int

    def __init_subclass__(cls) -> None:
        cls._table = {
            (state, row.trigger, sender): Entry(
                _handler(cls, row.method) if row.method else None,
                frozenset(state if then is STAY else then for then in row.then),
            )
            for row in cls.ROWS
            for state in row.states
            for sender in row.senders
        }
        cls._rights = frozenset((row.trigger, sender) for row in cls.ROWS for sender in row.senders)

    def __init__(self) -> None:
        self._actions: Actions = []
        self._story: deque[tuple[float, State, type]] = deque(maxlen=STORY)

    def handle(self, event: Event, now: float) -> list[AnyAction]:
        """Handle an event at a time; return the actions to carry out."""
        self._actions.clear()  # also if the last event raised an error
        if type(event) is Received:
            self._hear(event, now)
            return self._emitted()
        trigger = type(event)
        entry = self._table.get((self.state, trigger, OWN))
        if entry is None:
            raise ProtocolError(f"{trigger.__name__} cannot happen to {self.describe()}; before it: {self.story()}")
        self._story.append((now, self.state, trigger))
        method, then = entry
        if method is not None:
            method(self, event, now)
            self._after(then, now)
            if self.state not in then:
                self._complain(trigger)
        return self._emitted()

    def _emitted(self) -> list[AnyAction]:
        emitted = self._actions[:]
        self._actions.clear()
        return emitted

    def _hear(self, event: Received, now: float) -> None:
        message, sender = event.message, event.sender
        trigger: type[Any] = type(message)
        role = self._role_of(sender)
        entry = self._table.get((self.state, trigger, role))
        if entry is None:
            if (trigger, role) not in self._rights:
                self._object(sender, f"{trigger.__name__}, which {role.value} has no right to send")
            return
        if message.generation != self.generation and trigger not in self.OF_ANY_GENERATION:
            return
        method, then = entry
        assert method is not None, "a message that is taken is handled"
        if trigger not in DATA:
            self._story.append((now, self.state, trigger))
            method(self, message, sender, now)
        elif event.data is None or not self._fits(message, event.data):
            self._object(sender, "a chunk that does not belong to this run's vector", kind="unreadable")
            return
        else:
            self._story.append((now, self.state, trigger))
            method(self, message, sender, event.data, now)
        self._after(then, now)
        if self.state not in then:
            self._complain(trigger)

    def _receive_own(self, message: Message, role: From, now: float) -> None:
        """Handle at once a message that this machine sends to itself, in another role.

        It is looked up like a message from another node. `Received` from this node itself is that of a stranger.
        """
        trigger = type(message)
        entry = self._table.get((self.state, trigger, role))
        if entry is None:
            return
        method, then = entry
        assert method is not None, "a message that is taken is handled"
        self._story.append((now, self.state, trigger))
        method(self, message, self.node, now)
        if self.state not in then:
            self._complain(trigger)

    def _after(self, then: frozenset[State], now: float) -> None:  # noqa: B027
        """Do what the new state calls for; called after each handled event, with the states that its row allows."""

    def _complain(self, trigger: type) -> None:
        raise ProtocolError(
            f"{trigger.__name__} led to a state that is not in the table: {self.describe()}; before it: {self.story()}"
        )

    def _object(self, sender: int, what: str, kind: str = "stranger") -> None:
        """Note that a neighbour sent something that it may not send."""
        reason = f"node {sender} sent node {self.node} {what}"
        self._actions.append(Note(kind=kind, reason=reason, round=self.round, nodes=(sender,)))

    @abstractmethod
    def _role_of(self, sender: int) -> From:
        """The relation of another node to this one."""

    @abstractmethod
    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        """True if a chunk belongs to this run's vector."""

    def describe(self) -> str:
        """The node and the state, for messages."""
        return f"node {self.node} in state {self.state.name}"

    def story(self) -> str:
        """The last events, oldest first."""
        return (
            ", ".join(f"{trigger.__name__} at {now:.6f} in {state.name}" for now, state, trigger in self._story)
            or "nothing"
        )

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise if the machine's state contradicts itself; called after every event in tests."""


def _handler(machine: type[Machine], method: str) -> Callable[..., None]:
    """The method that a row names, of the machine or of one of its parts."""
    part, _, name = method.rpartition(".")
    if not part:
        own: Callable[..., None] = getattr(machine, name)
        return own

    def handle(machine: Machine, *said: object) -> None:
        getattr(getattr(machine, part), name)(*said)

    return handle


def diagram(machine: type[Machine]) -> str:
    """The transitions of a table as a Mermaid state diagram, without those that keep the state."""
    edges: dict[tuple[str, str], list[str]] = {}
    for row in machine.ROWS:
        for state in row.states:
            for then in row.then:
                if isinstance(then, State) and then is not state:
                    edges.setdefault((state.name, then.name), []).append(row.trigger.__name__)
    lines = [f"    {one} --> {other}: {', '.join(sorted(set(names)))}" for (one, other), names in edges.items()]
    return "\n".join(["stateDiagram-v2", *lines])
