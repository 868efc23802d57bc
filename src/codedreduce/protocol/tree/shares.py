"""The shares that one task needs from the children: which chunks of them are here, and their sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum

from codedreduce.errors import ProtocolError
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import Needs, TreePlan
from codedreduce.vectors import Vector, combine, empty, joined


class Arrival(Enum):
    """The result of taking a chunk."""

    NOT_NEEDED = "of a share that is whole, or of none"
    REPEATED = "here already"
    KEPT = "a part of a share"
    COMPLETED = "the last part of a share"


class TreeShare:
    """A share of which a parent needs one copy: its chunks that are here. The first copy of each counts.

    `covered` is the part of the task that it contains: less than 1 if the sender settled for less.
    """

    __slots__ = ("chunks", "covered", "missing", "providers", "task")

    def __init__(self, task: int, providers: Sequence[int], chunks: int) -> None:
        self.task = task
        self.providers = providers
        self.chunks: list[Vector | None] = [None] * chunks
        self.missing = chunks
        self.covered = 1.0

    @property
    def whole(self) -> bool:
        """Whether all chunks are here, and cover the whole task."""
        return self.missing == 0 and self.covered == 1.0

    def lacks(self) -> tuple[int, ...]:
        """The chunks that are not here."""
        return tuple(index for index, chunk in enumerate(self.chunks) if chunk is None)

    def close(self) -> None:
        """Mark the share as whole: nothing more of it is needed."""
        self.missing, self.covered = 0, 1.0

    def take(self, index: int, data: Vector, covered: float) -> Arrival:
        """Keep a chunk if it is the first copy. A share that was settled for gives way to one that covers more."""
        if covered < 1.0 and self.covered == 1.0 and self.missing < len(self.chunks):
            return Arrival.REPEATED  # a whole sum is here, or on its way
        if covered < self.covered and self.missing == 0:
            return Arrival.REPEATED
        if covered != self.covered:
            self.chunks = [None] * len(self.chunks)
            self.missing = len(self.chunks)
            self.covered = covered
        if self.chunks[index] is not None:
            return Arrival.REPEATED
        self.chunks[index] = data
        self.missing -= 1
        return Arrival.COMPLETED if self.whole else Arrival.KEPT


class Shares:
    """The shares of one task: one copy of each, or enough messages of a code.

    `own` is the node's own unit, if a child may deliver it instead.
    """

    def __init__(self, plan: TreePlan, node: int, settings: Settings) -> None:
        self._plan = plan
        self._node = node
        self._settings = settings
        self._needs: dict[int, Needs] = {}
        self._shares: dict[int, TreeShare] = {}
        self.task = -1
        self.own: TreeShare | None = None
        self._code = plan.needs(node, next(plan.tasks(node))).code
        self.spare = self._code.s if self._code else 0  # how many shares may be missing

    def start(self, task: int) -> None:
        """Reset, and collect for this task."""
        if task not in self._needs:
            self._needs[task] = self._plan.needs(self._node, task)
        chunks = self._settings.chunks
        needed = self._needs[task].shares
        self.task = task
        self._shares = {share.task: TreeShare(share.task, share.providers, chunks) for share in needed}
        self.own = None
        if self._plan.has_redundancy and self._node > 0:
            self.own = TreeShare(self._plan.delegated(task), self._plan.tree.children(self._node), chunks)

    def clear(self) -> None:
        """Collect nothing."""
        self.task = -1
        self._shares, self.own = {}, None

    def find(self, task: int) -> TreeShare | None:
        """The share with this task number, if it belongs to the current task."""
        if self.own is not None and self.own.task == task:
            return self.own
        return self._shares.get(task)

    def wanted(self) -> Iterator[TreeShare]:
        """The missing shares; the node's own unit last, since any child can do it and a share only its replicas."""
        for share in self._shares.values():
            if not share.whole:
                yield share
        if self.own is not None and not self.own.whole:
            yield self.own

    def __iter__(self) -> Iterator[TreeShare]:
        return iter(self._shares.values())

    def __len__(self) -> int:
        return len(self._shares)

    # -- sums

    def can_sum(self, index: int) -> bool:
        """Whether chunk `index` can be summed."""
        lacking = 0
        for share in self._shares.values():
            if share.chunks[index] is None or share.covered < 1.0:
                lacking += 1
                if lacking > self.spare:
                    return False
        return True

    @property
    def complete(self) -> bool:
        """Whether every chunk can be summed."""
        return all(self.can_sum(index) for index in range(self._settings.chunks))

    @property
    def satisfied(self) -> bool:
        """Whether nothing more is needed from the children, not even the node's own unit."""
        return (self.own is None or self.own.whole) and self.complete

    def own_delivered(self) -> Vector | None:
        """The node's own unit, if a child has delivered all of it."""
        if self.own is None or not self.own.whole:
            return None
        chunks = [chunk for chunk in self.own.chunks if chunk is not None]
        return joined(chunks) if len(chunks) == self._settings.chunks else None

    def total(self, index: int, own: Vector | None) -> Vector:
        """The sum of chunk `index`, in the plan's order; added in place to `own` if it is given."""
        parts = [share.chunks[index] if share.covered == 1.0 else None for share in self._shares.values()]
        if self._code is None:
            return _sum(parts, None, own)
        weights = self._code.decode(frozenset(i for i, part in enumerate(parts) if part is not None))
        return _sum(parts, weights.tolist(), own)

    def settle(self, own: Vector | None) -> tuple[Vector | None, float]:
        """The best approximation from the shares that are here, and the part of the task that it covers."""
        shares = list(self._shares.values())
        here = [share.missing == 0 for share in shares]
        if own is None and not any(here):
            return None, 0.0
        weights, covered = self._worth(shares, here, own is not None)
        if covered <= 0:
            return None, 0.0
        first = own if own is not None else next(s.chunks[0] for s, whole in zip(shares, here, strict=True) if whole)
        assert first is not None
        result = empty(self._settings.length, first.dtype)
        for index in range(self._settings.chunks):
            where = self._settings.chunk_slice(index)
            parts = [share.chunks[index] if whole else None for share, whole in zip(shares, here, strict=True)]
            result[where] = _sum(parts, weights, own[where].copy() if own is not None else None)
        return result, min(1.0, covered)

    def _worth(self, shares: list[TreeShare], here: list[bool], own: bool) -> tuple[list[float] | None, float]:
        """The weights of the shares that are here, and the part of the task that they cover."""
        size = self._plan.size(self.task)
        own_size = self._plan.unit(self._node, self.task).samples if self._node else 0
        covered = own_size / size if own else 0.0
        if self._code is None:
            parts = (self._plan.size(share.task) / size * share.covered for share in shares)
            return None, covered + sum(part for part, whole in zip(parts, here, strict=True) if whole)
        approximation = self._code.approximate(i for i, whole in enumerate(here) if whole)
        used = [share.covered for share in shares if share.missing == 0]
        below = (1 - approximation.residual**2) * sum(used) / max(1, len(used))
        return approximation.weights.tolist(), covered + (1 - own_size / size) * max(0.0, below)

    def waiting_for(self) -> tuple[int, ...]:
        """The children without which the task cannot be done."""
        missing = [share for share in self._shares.values() if not share.whole]
        if self._code is not None and len(missing) <= self._code.s:
            return ()
        return tuple(sorted({child for share in missing for child in share.providers}))


class FirstShares(Shares):
    """Live compensation: the first K workers suffice, and late results of the others go into the next round."""

    def __init__(self, plan: TreePlan, node: int, settings: Settings, wait_for: int) -> None:
        super().__init__(plan, node, settings)
        self._wait_for = wait_for
        self.spare = len(plan.tree.children(node)) - wait_for
        self._last_round: dict[int, TreeShare] = {}

    def start(self, task: int) -> None:
        """Reset, and collect for this task; late shares of the previous round may still arrive."""
        self._last_round = {}
        super().start(task)

    def take_late(self, child: int, index: int, data: Vector, covered: float) -> None:
        """Keep a chunk of the previous round."""
        share = self._last_round.setdefault(child, TreeShare(child, (child,), self._settings.chunks))
        if share.chunks[index] is None:
            share.chunks[index] = data
            share.missing -= 1
            share.covered = covered

    def can_sum(self, index: int) -> bool:
        """Whether the shares of K workers are whole: before that it is not known which shares the sum has."""
        return sum(share.missing == 0 for share in self._shares.values()) >= self._wait_for

    def total(self, index: int, own: Vector | None) -> Vector:
        """The sum of all whole shares, also of the previous round, scaled to the whole batch."""
        used = [share for share in (*self._shares.values(), *self._last_round.values()) if share.missing == 0]
        covered = math.fsum(self._plan.size(share.task) * share.covered for share in used)
        total = _sum([share.chunks[index] for share in used], None, None)
        total *= total.dtype.type(self._plan.samples / covered)
        return total

    def waiting_for(self) -> tuple[int, ...]:
        """The workers that are not done."""
        return tuple(share.providers[0] for share in self._shares.values() if share.missing)


def _sum(parts: Sequence[Vector | None], weights: Sequence[float] | None, own: Vector | None) -> Vector:
    vectors = [part for part in parts if part is not None]
    used = None if weights is None else [w for w, part in zip(weights, parts, strict=True) if part is not None]
    if own is not None:
        return combine([own, *vectors], None if used is None else [1.0, *used], own)
    if not vectors:
        raise ProtocolError("nothing to add")
    return combine(vectors, used, empty(len(vectors[0]), vectors[0].dtype))
