"""Who is in, as a worker tells its parent: itself (hello), everyone below it (ready), or who is missing there.

A part of the worker's machine. With its hello it also tells the highest generation and round that were seen, by itself
or below: a root that was started again must be of a generation above that.
"""

from __future__ import annotations

from codedreduce.protocol.core.events import AnyAction, SetTimer, Transmit
from codedreduce.protocol.core.membership import is_ahead, run_name
from codedreduce.protocol.core.messages import Hello, Ready, Welcome
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.schemes import TreePlan

#: The timer after which one that waits for children says who is missing, and how long that is, in seconds.
MISSING = "missing"
SAY_MISSING_AFTER = 0.5

#: So many are named; where more are missing a worker says that it is itself.
MOST_NAMED = 4096


class Attendance:
    """What a worker's parent was told of who is in, and what it must be told."""

    def __init__(self, node: int, plan: TreePlan, settings: Settings, below: Collecting | None) -> None:
        self._node = node
        self._parent = plan.tree.parent(node)
        self._run = run_name(plan, settings)
        self._below = below
        self._seen_below = (0, 0)  # the highest generation and round that children came with
        self._parent_is_at = (0, 0)  # the generation and round that the parent welcomed with
        self._waits_for_children = False  # and will say who is missing, when it is time
        self._said_missing: tuple[int, ...] = ()

    def say_hello(self, generation: int, round_: int, actions: list[AnyAction]) -> None:
        """Ask the parent to be let in, or tell it what was seen below."""
        self._said_missing = ()  # what was said to another process, or lost, is said again
        generation, round_ = max((generation, round_), self._seen_below)
        actions.append(
            Transmit(to=self._parent, message=Hello(generation=generation, round=round_, plan=self._run))
        )  # fmt: skip

    def welcomed(self, welcome: Welcome) -> None:
        """The parent has let this worker in."""
        self._parent_is_at = (welcome.generation, welcome.round)

    def child_came(self, hello: Hello) -> bool:
        """A child says hello; whether it has seen more than any before it."""
        if hello.plan != self._run or not is_ahead(hello, *self._seen_below):
            return False
        self._seen_below = (hello.generation, hello.round)
        return True

    def say_what_was_seen(self, generation: int, round_: int, actions: list[AnyAction]) -> None:
        """If a child has seen more than the parent the root must know: it takes a generation above that."""
        if self._seen_below > max(self._parent_is_at, (generation, round_)):
            self.say_hello(generation, round_, actions)

    def say_ready(self, generation: int, now: float, actions: list[AnyAction]) -> None:
        """Everyone below is in; or it has taken long, and who is missing is said now and then while that changes."""
        if self._below is None or self._below.roster.complete:
            actions.append(Transmit(to=self._parent, message=Ready(generation=generation)))
            self._said_missing = ()
        elif not self._waits_for_children:
            self._waits_for_children = True
            actions.append(SetTimer(name=MISSING, at=now + SAY_MISSING_AFTER))

    def say_missing(self, generation: int, actions: list[AnyAction], *, is_in: bool) -> None:
        """It is time to say who is missing, if this worker is in itself."""
        self._waits_for_children = False
        if not is_in or self._below is None:
            return
        missing = tuple(self._below.roster.lacking())
        if missing and missing != self._said_missing:
            self._said_missing = missing
            named = missing if len(missing) <= MOST_NAMED else (self._node,)
            actions.append(Transmit(to=self._parent, message=Ready(generation=generation, missing=named)))
