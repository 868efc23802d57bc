"""Membership reports of a worker to its parent: it joins (hello), all below it joined (ready), or some are missing.

A part of the worker's machine. The hello also reports the highest generation and round that this worker or its subtree
has seen: a restarted root must take a generation above that.
"""

from __future__ import annotations

from codedreduce.protocol.core.events import Actions, SetTimer, Transmit
from codedreduce.protocol.core.membership import is_ahead, run_name
from codedreduce.protocol.core.messages import Hello, Ready, Welcome
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.tree.collecting import Collecting
from codedreduce.schemes import TreePlan

#: The most missing workers that a report names. If more are missing, a worker reports itself instead.
MOST_NAMED = 4096


class Attendance:
    """What a worker has reported to its parent about its subtree, and what it still has to report."""

    def __init__(
        self, actions: Actions, node: int, plan: TreePlan, settings: Settings, below: Collecting | None
    ) -> None:
        self._actions = actions
        self._node = node
        self._parent = plan.tree.parent(node)
        self._run = run_name(plan, settings)
        self._timing = settings.timing
        self._below = below
        self._seen_below = (0, 0)  # the highest generation and round in the hellos of children
        self._parent_is_at = (0, 0)  # the generation and round of the parent's welcome
        self._waits_for_children = False  # the `MISSING` timer is set
        self._said_missing: tuple[int, ...] = ()

    def say_hello(self, generation: int, round_: int) -> None:
        """Ask the parent to admit this worker, or report what its subtree has seen."""
        self._said_missing = ()  # report again: the last report was lost, or another process received it
        generation, round_ = max((generation, round_), self._seen_below)
        self._actions.append(
            Transmit(to=self._parent, message=Hello(generation=generation, round=round_, plan=self._run))
        )  # fmt: skip

    def welcomed(self, welcome: Welcome) -> None:
        """The parent has admitted this worker."""
        self._parent_is_at = (welcome.generation, welcome.round)

    def child_came(self, hello: Hello) -> bool:
        """A child sends hello. Return whether it has seen more than all children before it."""
        if hello.plan != self._run or not is_ahead(hello, *self._seen_below):
            return False
        self._seen_below = (hello.generation, hello.round)
        return True

    def say_what_was_seen(self, generation: int, round_: int) -> None:
        """Report to the root if a child has seen more than the parent: the root takes a generation above that."""
        if self._seen_below > max(self._parent_is_at, (generation, round_)):
            self.say_hello(generation, round_)

    def say_ready(self, generation: int, now: float) -> None:
        """Report that all below have joined; otherwise set the timer for a report of the missing ones."""
        if self._below is None or self._below.roster.complete:
            self._actions.append(Transmit(to=self._parent, message=Ready(generation=generation)))
            self._said_missing = ()
        elif not self._waits_for_children:
            self._waits_for_children = True
            self._actions.append(SetTimer(name=Timer.MISSING, at=now + self._timing.missing_report))

    def say_missing(self, generation: int, *, is_in: bool) -> None:
        """The timer fired: report the missing workers if they have changed and this worker has joined itself."""
        self._waits_for_children = False
        if not is_in or self._below is None:
            return
        missing = tuple(self._below.roster.lacking())
        if missing and missing != self._said_missing:
            self._said_missing = missing
            named = missing if len(missing) <= MOST_NAMED else (self._node,)
            self._actions.append(Transmit(to=self._parent, message=Ready(generation=generation, missing=named)))
