"""Who is in a run: hello, welcome, ready, goodbye, and the generation of the plan that all of them speak of.

A child says hello to its parent with the plan it has. It is welcomed, with the generation its parent is at, whatever
generation it came with; or refused, with the reason. When a whole subtree is in, ready goes up; also when it
takes long and some are missing, who are named. A connection that is new begins with hello again.

A root that was started again begins where its checkpoint was: with rounds that its workers have seen. It is of a
generation above any that they tell in their hello, so that nothing of the old root's is taken for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.protocol.core.messages import Hello, Refuse, Voters, Welcome
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import Plan

#: In a tree nobody is elected.
NO_VOTERS = Voters()

#: No generation is above this one.
LAST_GENERATION = 2**53


def run_name(plan: Plan, settings: Settings) -> str:
    """What all nodes of a run must agree on, in words."""
    return f"{plan.scheme}, {plan.samples} samples, {settings.length} numbers"


def is_ahead(hello: Hello, generation: int, round_: int) -> bool:
    """Whether a child has seen more than its parent: the old root went further than the new one has come."""
    if hello.generation >= LAST_GENERATION:
        return False  # nobody ever gets there
    return (hello.generation, hello.round) > (generation, round_)


class Roster:
    """A parent's list of its children: who is in, and whose whole subtree is."""

    def __init__(self, children: Sequence[int], run: str) -> None:
        self.children = children
        self.run = run
        self._present: set[int] = set()
        self._ready: dict[int, tuple[int, ...]] = {}  # who has said so, and who is missing below

    def answer(
        self, child: int, hello: Hello, generation: int, round_: int,
        *, is_late: bool = False, voters: Voters = NO_VOTERS,
    ) -> Welcome | Refuse:  # fmt: skip
        """Let a child in that has the same plan, and say to another why it cannot be."""
        if hello.plan != self.run:
            reason = f"this run is {self.run}; node {child} came with {hello.plan}"
            return Refuse(generation=hello.generation, reason=reason[:1000])
        self._present.add(child)
        self._ready.pop(child, None)
        return Welcome(generation=generation, round=round_, is_late=is_late, voters=voters)

    def ready(self, child: int, missing: tuple[int, ...] = ()) -> bool:
        """A child's whole subtree is in, but for those that are missing; whether that is news."""
        if child not in self._present or self._ready.get(child) == missing:
            return False
        self._ready[child] = missing
        return True

    def take(self, child: int) -> None:
        """A child is in, which another let in before."""
        self._present.add(child)

    @property
    def all_ready(self) -> bool:
        """Whether everyone who is in has said that its whole subtree is."""
        return self._present <= self._ready.keys()

    def gone(self, child: int) -> None:
        """A child has left, or cannot be reached."""
        self._present.discard(child)
        self._ready.pop(child, None)

    def has(self, child: int) -> bool:
        """Whether a child is in."""
        return child in self._present

    def present(self) -> list[int]:
        """The children that are in."""
        return sorted(self._present)

    @property
    def complete(self) -> bool:
        """Whether all children are in, and everyone below them."""
        return len(self._ready) == len(self.children) and not any(self._ready.values())

    def lacking(self) -> list[int]:
        """The children that are not in or have not said how it is below them, and who is missing below the others."""
        below = {node for missing in self._ready.values() for node in missing}
        return sorted((set(self.children) - set(self._ready)) | below)
