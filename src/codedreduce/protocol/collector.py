"""The parent's half: collecting shares chunk by chunk, and summing each chunk as soon as it can be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from codedreduce.errors import ProtocolError
from codedreduce.protocol.events import Vector
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import Needs, TreePlan
from codedreduce.vectors import combine


class ShareState:
    """One thing the parent needs: which chunks of it are there, who is at work on it, and since when."""

    __slots__ = ("arrived", "begun_at", "covered", "missing", "offered_at", "offered_by", "providers", "task")

    def __init__(self, task: int, providers: Sequence[int], chunks: int) -> None:
        self.task = task
        self.providers = providers
        self.arrived: list[Vector | None] = [None] * chunks
        self.missing = chunks
        self.covered = 1.0
        self.offered_by = -1
        self.offered_at: float | None = None
        self.begun_at: float | None = None


class Collector:
    """Collects what one task needs: one copy of every share, or enough messages of a code.

    Chunks are kept as they come, the first copy of each, whoever sent it. `assigned` says which share each child is
    at work on; a child not in it has delivered and could do another.
    """

    def __init__(self, plan: TreePlan, node: int, settings: Settings) -> None:
        self.plan = plan
        self.node = node
        self.settings = settings
        self.children = plan.tree.children(node)
        self.task = -1
        self.since = 0.0
        self.shares: dict[int, ShareState] = {}
        self.assigned: dict[int, int] = {}
        self._needs: dict[int, Needs] = {}
        self._first: dict[int, dict[int, int]] = {}
        self._lacking: list[int] = []
        self.code = plan.needs(node, next(plan.tasks(node))).code if self.children else None
        self._delegates = node > 0 and plan.scheme.order == "progressive" and plan.scheme.stragglers > 0
        self.own: ShareState | None = None  # the node's own unit, which a child may deliver in its place

    def start(self, task: int, now: float) -> None:
        """Forget what was, and collect for this task."""
        if task not in self._needs:
            self._needs[task] = self.plan.needs(self.node, task)
            orders = ((child, self.plan.order(child, task)) for child in self.children)
            self._first[task] = {child: order[0] for child, order in orders if order}
        chunks = self.settings.chunks
        shares = self._needs[task].shares
        self.task = task
        self.since = now
        self.shares = {share.task: ShareState(share.task, share.providers, chunks) for share in shares}
        self.assigned = dict(self._first[task])
        self._lacking = [len(shares)] * chunks
        if self._delegates:
            self.own = ShareState(self.plan.delegated(task), self.children, chunks)

    def clear(self) -> None:
        """Collect nothing: what is being done needs nothing from the children."""
        self.task = -1
        self.shares, self.assigned, self._lacking, self.own = {}, {}, [], None

    def first_share(self, child: int) -> int:
        """What a child does first while this task is on."""
        return self._first[self.task][child]

    def wanted(self) -> Iterator[ShareState]:
        """What is not there yet; the node's own unit last, since any child can do it and a share only its replicas."""
        for share in self.shares.values():
            if share.missing or share.covered < 1.0:
                yield share
        if self.own is not None and self.own.missing:
            yield self.own

    def share(self, task: int) -> ShareState | None:
        """The share of that name, if it is needed."""
        if self.own is not None and self.own.task == task:
            return self.own
        return self.shares.get(task)

    def own_done(self) -> None:
        """The node has computed its own unit itself."""
        if self.own is not None:
            self.own.missing = 0

    def own_delivered(self) -> Vector | None:
        """The node's own unit, if a child has delivered all of it."""
        if self.own is None:
            return None
        chunks = [chunk for chunk in self.own.arrived if chunk is not None]
        return np.concatenate(chunks) if len(chunks) == self.settings.chunks else None

    def accept(self, child: int, task: int, index: int, data: Vector, covered: float = 1.0) -> bool:
        """Keep a chunk if it is the first copy; whether it was."""
        share = self.share(task)
        if share is None or child not in share.providers:
            return False
        if covered < 1.0:
            return self._accept_partial(share, index, data, covered)
        if share.covered < 1.0:  # a whole sum replaces what had been settled for
            self._forget(share)
        if share.arrived[index] is not None:
            return False
        share.arrived[index] = data
        share.missing -= 1
        if share is not self.own:
            self._lacking[index] -= 1
        return True

    def _accept_partial(self, share: ShareState, index: int, data: Vector, covered: float) -> bool:
        """What a child settled for counts for nothing unless the parent settles too; more replaces less."""
        if share.covered == 1.0 and share.missing < self.settings.chunks:
            return False  # a whole sum is here, or on its way
        if share.missing == 0 and share.covered > covered:
            return False
        if share.covered != covered:
            self._forget(share)
            share.covered = covered
        if share.arrived[index] is None:
            share.arrived[index] = data
            share.missing -= 1
        return True

    def _forget(self, share: ShareState) -> None:
        for index, chunk in enumerate(share.arrived):
            if chunk is not None and share.covered == 1.0:
                self._lacking[index] += 1
        share.arrived = [None] * self.settings.chunks
        share.missing = self.settings.chunks
        share.covered = 1.0

    def ready(self, index: int) -> bool:
        """Whether chunk `index` can be summed."""
        allowed = self.code.s if self.code else 0
        return self._lacking[index] <= allowed

    @property
    def complete(self) -> bool:
        """Whether every chunk can be summed."""
        allowed = self.code.s if self.code else 0
        return all(lacking <= allowed for lacking in self._lacking)

    @property
    def satisfied(self) -> bool:
        """Whether nothing more is needed from the children, not even the node's own unit."""
        return self.complete and (self.own is None or self.own.missing == 0)

    def whole(self, share: ShareState) -> bool:
        """Whether a share is there, all of it."""
        return share.missing == 0 and share.covered == 1.0

    def busy(self) -> list[int]:
        """The children that have not delivered what they were last asked for."""
        return list(self.assigned)

    def total(self, index: int, own: Vector | None) -> Vector:
        """The sum of chunk `index`, in the plan's order; added into `own` if there is one."""
        if self.code is None:
            parts = [share.arrived[index] for share in self.shares.values()]
            return self._sum(parts, None, own)
        parts = [share.arrived[index] if share.covered == 1.0 else None for share in self.shares.values()]
        weights = self.code.decode(frozenset(i for i, part in enumerate(parts) if part is not None))
        return self._sum(parts, weights.tolist(), own)

    def settle(self, own: Vector | None) -> tuple[Vector | None, float]:
        """The best that can be made of what there is, all chunks of it, and the part of the task it covers."""
        here = [share.missing == 0 for share in self.shares.values()]
        task_size = self.plan.size(self.task)
        own_size = self.plan.unit(self.node, self.task).samples if self.node else 0
        covered = own_size / task_size if own is not None else 0.0
        weights: list[float] | None = None
        if self.code is not None:
            approximation = self.code.approximate(i for i, whole in enumerate(here) if whole)
            weights = approximation.weights.tolist()
            used = [share.covered for share in self.shares.values() if share.missing == 0]
            below = (1 - approximation.residual**2) * sum(used) / max(1, len(used))
            covered += (1 - own_size / task_size) * max(0.0, below)
        else:
            sizes = (self.plan.size(share.task) / task_size * share.covered for share in self.shares.values())
            covered += sum(size for size, whole in zip(sizes, here, strict=True) if whole)
        if own is None and not any(here):
            return None, 0.0
        result = np.empty(self.settings.length, dtype=own.dtype if own is not None else self._dtype())
        for index in range(self.settings.chunks):
            where = self.settings.chunk_slice(index)
            parts = [
                share.arrived[index] if whole else None for share, whole in zip(self.shares.values(), here, strict=True)
            ]
            total = self._sum(parts, weights, own[where].copy() if own is not None else None)
            result[where] = total
        return result, min(1.0, covered)

    def _dtype(self) -> np.dtype[np.generic]:
        return next(share.arrived[0].dtype for share in self.shares.values() if share.arrived[0] is not None)

    @staticmethod
    def _sum(parts: Sequence[Vector | None], weights: Sequence[float] | None, own: Vector | None) -> Vector:
        vectors = [part for part in parts if part is not None]
        used = None if weights is None else [w for w, part in zip(weights, parts, strict=True) if part is not None]
        if own is not None:
            return combine([own, *vectors], None if used is None else [1.0, *used], own)
        if not vectors:
            raise ProtocolError("nothing to add")
        return combine(vectors, used, np.empty_like(vectors[0]))

    def waiting_for(self) -> tuple[int, ...]:
        """The children without which the task cannot be done."""
        if self.code is not None:
            lacking = [share for share in self.shares.values() if share.missing]
            return tuple(share.providers[0] for share in lacking) if len(lacking) > self.code.s else ()
        missing = [share for share in self.shares.values() if not self.whole(share)]
        return tuple(sorted({child for share in missing for child in share.providers}))

    def held(self) -> int:
        """How many chunks are kept."""
        return sum(self.settings.chunks - share.missing for share in self.shares.values())


class FirstCollector(Collector):
    """Live compensation: the first K workers are enough, and what others finish joins the next round."""

    def __init__(self, plan: TreePlan, node: int, settings: Settings, wait_for: int) -> None:
        super().__init__(plan, node, settings)
        self.wait_for = wait_for
        self._last_round: dict[int, ShareState] = {}

    def start(self, task: int, now: float) -> None:
        """Forget what was, but the late ones' shares, which may still come."""
        self._last_round = {}
        super().start(task, now)

    def accept_late(self, child: int, index: int, data: Vector, covered: float) -> None:
        """Keep a chunk of the round before."""
        share = self._last_round.setdefault(child, ShareState(child, (child,), self.settings.chunks))
        if share.arrived[index] is None:
            share.arrived[index] = data
            share.missing -= 1
            share.covered = covered

    def ready(self, index: int) -> bool:
        """Nothing is summed before it is known whose shares are in it."""
        return self.complete

    @property
    def complete(self) -> bool:
        """Whether K workers are done."""
        return sum(share.missing == 0 for share in self.shares.values()) >= self.wait_for

    def total(self, index: int, own: Vector | None) -> Vector:
        """The sum of all shares there are, old ones too, scaled to the whole batch."""
        used = [share for share in (*self.shares.values(), *self._last_round.values()) if share.missing == 0]
        covered = math.fsum(self.plan.size(share.task) * share.covered for share in used)
        total = self._sum([share.arrived[index] for share in used], None, None)
        return np.asarray(total * total.dtype.type(self.plan.samples / covered))

    def waiting_for(self) -> tuple[int, ...]:
        """The workers that are not done."""
        return tuple(share.providers[0] for share in self.shares.values() if share.missing)
