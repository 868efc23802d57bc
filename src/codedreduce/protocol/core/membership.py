"""Membership of a run: hello, welcome, ready, goodbye, and the generation of the plan that all members use.

A child sends hello to its parent, with its plan. The parent welcomes it with the parent's generation, whatever
generation the child has; or refuses it, with the reason. When a whole subtree has joined, the child reports ready to
its parent. After a long wait it reports ready although some are missing, and lists them. A new connection begins with
hello again.

A restarted root begins at its checkpoint, with rounds that its workers have seen already. It chooses a generation above
every generation in their hellos, so that no node takes a message of the old root for one of the new root.
"""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.protocol.core.messages import Hello, Refuse, Voters, Welcome
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import Plan

#: A tree has no elections.
NO_VOTERS = Voters()

#: No generation is above this one.
LAST_GENERATION = 2**53


def run_name(plan: Plan, settings: Settings) -> str:
    """A description of what all nodes of a run must agree on."""
    return f"{plan.scheme}, {plan.samples} samples, {settings.length} numbers"


def is_ahead(hello: Hello, generation: int, round_: int) -> bool:
    """True if a child has seen more than its parent: the old root had gone further than the new one."""
    if hello.generation >= LAST_GENERATION:
        return False  # no node ever reaches it
    return (hello.generation, hello.round) > (generation, round_)


class Roster:
    """A parent's list of its children: which have joined, and which have a whole subtree that has joined."""

    def __init__(self, children: Sequence[int], run: str) -> None:
        self.children = children
        self.run = run
        self._present: set[int] = set()
        self._ready: dict[int, tuple[int, ...]] = {}  # children that reported ready, and the nodes missing below each

    def answer(
        self, child: int, hello: Hello, generation: int, round_: int,
        *, is_late: bool = False, voters: Voters = NO_VOTERS,
    ) -> Welcome | Refuse:  # fmt: skip
        """Admit a child with the same plan; refuse any other, with the reason."""
        if hello.plan != self.run:
            reason = f"this run is {self.run}; node {child} joins with {hello.plan}"
            return Refuse(generation=hello.generation, reason=reason[:1000])
        self._present.add(child)
        self._ready.pop(child, None)
        return Welcome(generation=generation, round=round_, is_late=is_late, voters=voters)

    def ready(self, child: int, missing: tuple[int, ...] = ()) -> bool:
        """A child's subtree has joined, except for the missing nodes; return whether that is news."""
        if child not in self._present or self._ready.get(child) == missing:
            return False
        self._ready[child] = missing
        return True

    def take(self, child: int) -> None:
        """Add a child that another node admitted."""
        self._present.add(child)

    @property
    def all_ready(self) -> bool:
        """True if every member has reported ready."""
        return self._present <= self._ready.keys()

    def gone(self, child: int) -> None:
        """Remove a child that has left or cannot be reached."""
        self._present.discard(child)
        self._ready.pop(child, None)

    def has(self, child: int) -> bool:
        """True if a child is a member."""
        return child in self._present

    def present(self) -> list[int]:
        """The children that are members."""
        return sorted(self._present)

    @property
    def complete(self) -> bool:
        """True if all children have joined, and all nodes below them."""
        return len(self._ready) == len(self.children) and not any(self._ready.values())

    def lacking(self) -> list[int]:
        """The children that have not joined or not reported ready, and the nodes missing below the others."""
        below = {node for missing in self._ready.values() for node in missing}
        return sorted((set(self.children) - set(self._ready)) | below)
