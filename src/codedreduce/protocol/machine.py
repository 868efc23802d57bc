"""What all machines share: a table of transitions, and the rule for what is not in it.

Theory of operation. A machine is in one state. An event is looked up with it in the table; the row names the method
that handles it and the states that method may leave the machine in. Neighbours may say anything at any time, since
messages can be late, repeated or meant for somebody who has since died: a message without a row, or of another
generation of the plan, is dropped. Local events come from the world that runs the machine: one without a row raises,
with the story that led to it, and changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from codedreduce.errors import ProtocolError
from codedreduce.protocol.events import AnyAction, Event, Received

#: How many past events a machine remembers, to tell when something impossible happens.
STORY = 12


class State(Enum):
    """A state of a machine."""

    __hash__ = object.__hash__  # members are single: looked up at every event, they need not hash their names


class Row(NamedTuple):
    """In any of these states, this event or message is handled by that method, and leads to one of those states."""

    states: tuple[State, ...]
    trigger: type
    method: str
    then: tuple[State, ...]


class Machine(ABC):
    """A state machine run by a table of transitions."""

    ROWS: ClassVar[tuple[Row, ...]] = ()
    _table: ClassVar[dict[tuple[State, type], tuple[Callable[..., None], frozenset[State]]]] = {}

    node: int
    state: State
    generation: int

    def __init_subclass__(cls) -> None:
        cls._table = {
            (state, row.trigger): (getattr(cls, row.method), frozenset(row.then))
            for row in cls.ROWS
            for state in row.states
        }

    def __init__(self) -> None:
        self._story: deque[tuple[float, str, type]] = deque(maxlen=STORY)

    def handle(self, event: Event, now: float) -> list[AnyAction]:
        """Take an event at a time; return what is to be done."""
        actions: list[AnyAction] = []
        message = event.message if type(event) is Received else None
        if message is not None and message.generation != self.generation:
            return actions
        trigger: type[Any] = type(event if message is None else message)
        row = self._table.get((self.state, trigger))
        if row is None:
            if message is not None:
                return actions
            raise ProtocolError(f"{trigger.__name__} cannot happen to {self.describe()}; before it: {self.story()}")
        self._story.append((now, self.state.name, trigger))
        method, then = row
        method(self, event, now, actions)
        if self.state not in then:
            raise ProtocolError(
                f"{trigger.__name__} led {self.describe()}, against the table; before it: {self.story()}"
            )
        return actions

    def describe(self) -> str:
        """Who and where this machine is."""
        return f"node {self.node} in state {self.state.name}"

    def story(self) -> str:
        """The last events, oldest first."""
        return (
            ", ".join(f"{trigger.__name__} at {now:.6f} in {state}" for now, state, trigger in self._story) or "nothing"
        )

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise if the machine's state contradicts itself; called after every event in tests."""


def diagram(machine: type[Machine]) -> str:
    """The table as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for row in machine.ROWS:
        for state in row.states:
            for then in row.then:
                if state is not then or len(row.then) == 1:
                    edges.setdefault((state.name, then.name), []).append(row.trigger.__name__)
    lines = [f"    {one} --> {other}: {', '.join(sorted(set(names)))}" for (one, other), names in edges.items()]
    return "\n".join(["stateDiagram-v2", *lines])
