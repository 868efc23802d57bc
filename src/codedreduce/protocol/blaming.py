"""Who was wrong: what went into a sum that is wrong is compared, part by part, with what went into one that is right.

A node's sum is wrong because of its own unit, because of a share that it received, or because of how it added. A share
was wrong as its sender made it, which is looked at in the same way, or became so on its way. Nobody is named as long as
something that would show it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from codedreduce.protocol.messages import Account
from codedreduce.schemes import TreePlan

#: What a node can have done wrong, and what can have become of what it sent.
COMPUTED, ADDED, DAMAGED = "computed wrongly", "added wrongly", "sent what was damaged on its way"


class Finding(NamedTuple):
    """Who it was, and what was wrong."""

    node: int
    what: str


class Blaming:
    """What is known of the sums of one round: accounts of them, and digests that are right."""

    def __init__(self, plan: TreePlan) -> None:
        self._plan = plan
        self._accounts: dict[tuple[int, int], Account] = {}  # by node and task
        self._sums: dict[int, bytes] = {}  # by task, the right digest
        self._own: dict[int, bytes] = {}  # and that of the one unit that its owner computes itself
        self._sure: set[int] = set()  # tasks of which somebody beyond doubt has said it
        self._doubtful: set[int] = set()  # sums that are right were made of different ones

    def heard(self, account: Account) -> None:
        """A node says what a sum of its own was made of."""
        if self._can_be(account):
            self._accounts.setdefault((account.node, account.task), account)
            self._learn()

    def _can_be(self, account: Account) -> bool:
        """Whether a sum can be made of what it is said to be made of: of shares below, from children."""
        node, task, plan = account.node, account.task, self._plan
        if not plan.is_worker(node) or not plan.may_be_asked(node, task):
            return False
        needed = () if plan.is_delegated(task) else plan.needs(node, task).shares
        if [share.task for share in needed] != [below for below, _, _ in account.shares]:
            return False
        children = plan.tree.children(node)
        senders = {*account.own_by, *(one for _, by, _ in account.shares for one in by)}
        return all(one == node or one in children for one in senders)

    def is_right(self, task: int, digest: bytes) -> None:
        """This is the right sum of a task."""
        self._sums[task] = digest
        self._learn()

    def are_right(self, sums: Mapping[int, bytes], own: Mapping[int, bytes]) -> None:
        """Somebody beyond doubt has computed all of these."""
        self._sums.update(sums)
        self._own.update(own)
        self._sure = {*sums, *own}
        self._doubtful -= self._sure
        self._learn()

    def _learn(self) -> None:
        """What a right sum was made of is right, too; and so on with what those parts were made of."""
        known = -1
        while known != len(self._sums) + len(self._own):
            known = len(self._sums) + len(self._own)
            for account in self._accounts.values():
                if account.shares and account.digest == self._sums.get(account.task):
                    self._note(self._own, account.task, account.own)
                    for task, _, digest in account.shares:
                        self._note(self._sums, task, digest)

    def _note(self, right: dict[int, bytes], task: int, digest: bytes) -> None:
        if right.setdefault(task, digest) != digest and task not in self._sure:
            self._doubtful.add(task)  # they differ in something that was lost in rounding

    def blame(self, node: int, task: int) -> list[Finding] | None:
        """Who is to blame for what came of a task from a node, which was wrong; None as long as that is not known."""
        account = self._accounts.get((node, task))
        if account is None or task not in self._sums:
            return None
        if account.digest == self._sums[task]:
            return [Finding(node, DAMAGED)]
        if not account.shares:
            return self._blame_own(account) if account.own == account.digest else [Finding(node, ADDED)]
        right = self._own.get(task)
        if right is None or task in self._doubtful:
            return None
        parts: list[list[Finding] | None] = [] if account.own == right else [self._blame_own(account)]
        for below, by, digest in account.shares:
            if below not in self._sums or below in self._doubtful:
                return None
            if digest != self._sums[below]:
                parts.append(self._blame_senders(by, below))
        if any(part is None for part in parts):
            return None
        return [finding for part in parts for finding in part or ()] or [Finding(node, ADDED)]

    def _blame_senders(self, senders: tuple[int, ...], task: int) -> list[Finding] | None:
        """A share that came from these is wrong: if from several, some of them may have sent what is right."""
        if len(senders) == 1:
            return self.blame(senders[0], task)
        made = self.said(senders, task)
        if len(made) < len(senders):
            return None
        parts = [self.blame(sender, task) for sender in senders if made[sender] != self._sums[task]]
        if not parts or any(part is None for part in parts):
            return None  # all made it right: one of them sent it on a bad way, and nobody knows which
        return [finding for part in parts for finding in part or ()]

    def _blame_own(self, account: Account) -> list[Finding] | None:
        """The one unit that a node computes itself is wrong; a child may have done it instead."""
        if account.own_by == (account.node,):
            return [Finding(account.node, COMPUTED)]
        made = self.said(account.own_by, self._plan.delegated(account.task))
        if len(account.own_by) != 1 or len(made) != 1:
            return None
        ((child, digest),) = made.items()
        return [Finding(child, COMPUTED if digest == account.own else DAMAGED)]

    def better_of(self, one: int, other: int, task: int) -> int | None:
        """Which of two different sums is right: if all that went into both was made alike, and some of it arrived
        otherwise at one of them. None if that does not explain the difference, or not all is known.
        """
        damaged = self._damaged(one, other, task)
        return None if damaged is None or len(damaged) != 1 else (other if one in damaged else one)

    def _damaged(self, one: int, other: int, task: int) -> set[int] | None:
        """Who of these two received something else than was sent to it, or somebody below it did."""
        mine, theirs = self._accounts.get((one, task)), self._accounts.get((other, task))
        if mine is None or theirs is None or mine.own != theirs.own or len(mine.shares) != len(theirs.shares):
            return None
        found: set[int] = set()
        for (below, by, had), (_, their_by, they_had) in zip(mine.shares, theirs.shares, strict=True):
            if had == they_had:
                continue
            made, they_made = self.said(by, below), self.said(their_by, below)
            if len(by) != 1 or len(their_by) != 1 or len(made) != 1 or len(they_made) != 1:
                return None
            ((sender, sent),), ((their_sender, they_sent),) = made.items(), they_made.items()
            if sent == they_sent:
                found |= ({one} if had != sent else set()) | ({other} if they_had != sent else set())
                continue
            deeper = self._damaged(sender, their_sender, below)
            if deeper is None or (had, they_had) != (sent, they_sent):
                return None
            found |= ({one} if sender in deeper else set()) | ({other} if their_sender in deeper else set())
        return found or None

    def said(self, nodes: Iterable[int], task: int) -> dict[int, bytes]:
        """What those say of their sums of a task who say something."""
        accounts = ((node, self._accounts.get((node, task))) for node in nodes)
        return {node: account.digest for node, account in accounts if account is not None}
