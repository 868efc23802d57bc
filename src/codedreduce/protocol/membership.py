"""Who is in a run: hello, welcome, ready, goodbye, and the generation of the plan that all of them speak of.

A child says hello to its parent with the plan it has. It is welcomed, with the generation its parent is at, whatever
generation it came with; or refused, with the reason. When a whole subtree is in, ready goes up. A connection that is
new begins with hello again.
"""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.protocol.messages import Hello, Refuse, Welcome
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import Plan


def run_name(plan: Plan, settings: Settings) -> str:
    """What all nodes of a run must agree on, in words."""
    return f"{plan.scheme}, {plan.samples} samples, {settings.length} numbers"


class Roster:
    """A parent's list of its children: who is in, and whose whole subtree is."""

    def __init__(self, children: Sequence[int], run: str) -> None:
        self.children = children
        self.run = run
        self._present: set[int] = set()
        self._ready: set[int] = set()

    def answer(self, child: int, hello: Hello, generation: int, round_: int) -> Welcome | Refuse:
        """Let a child in that has the same plan, and say to another why it cannot be."""
        if hello.plan != self.run:
            reason = f"this run is {self.run}; node {child} came with {hello.plan}"
            return Refuse(generation=hello.generation, reason=reason[:1000])
        self._present.add(child)
        self._ready.discard(child)
        return Welcome(generation=generation, round=round_)

    def ready(self, child: int) -> bool:
        """A child's whole subtree is in; whether that is news."""
        if child not in self._present or child in self._ready:
            return False
        self._ready.add(child)
        return True

    def gone(self, child: int) -> None:
        """A child has left, or cannot be reached."""
        self._present.discard(child)
        self._ready.discard(child)

    def has(self, child: int) -> bool:
        """Whether a child is in."""
        return child in self._present

    def present(self) -> list[int]:
        """The children that are in."""
        return sorted(self._present)

    @property
    def complete(self) -> bool:
        """Whether all children are in, and everyone below them."""
        return len(self._ready) == len(self.children)

    def lacking(self) -> list[int]:
        """The children that are not in, or below whom somebody is not."""
        return sorted(set(self.children) - self._ready)
