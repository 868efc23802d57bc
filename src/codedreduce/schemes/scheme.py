"""The schemes: a tree with a code, an order of work and a rule for late results; and two without a tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from codedreduce.codes import cyclic
from codedreduce.errors import PlanError, SchemeError
from codedreduce.schemes.allocation import Allocation, Owned, Replicated, check_capacity
from codedreduce.schemes.coded import Coded
from codedreduce.schemes.plan import Array, Plan, samples_in
from codedreduce.schemes.ring_plan import RingPlan
from codedreduce.schemes.striped import StripedPlan
from codedreduce.schemes.tree_plan import TreePlan
from codedreduce.topology import Ring, Tree

CodeName = Literal["repetition", "cyclic"]
Order = Literal["progressive", "eager"]


class Scheme(ABC):
    """A way to sum gradients over workers."""

    name: ClassVar[str]

    if TYPE_CHECKING:

        @property
        def workers(self) -> int:
            """N."""

    @abstractmethod
    def plan(self, *, samples: int) -> Plan:
        """Lay the scheme over a batch of this many samples."""

    def _check_samples(self, samples: int) -> None:
        if samples < 1:
            raise PlanError(f"a plan needs at least one sample, got {samples}")

    @property
    def label(self) -> str:
        """A short name for tables, where all schemes have the same workers."""
        return self.name

    @property
    def expression(self) -> str:
        """A text of all that determines the bits of its sums. Runs with equal texts can resume each other."""
        return str(self)

    def __str__(self) -> str:
        return f"{self.label} over {self.workers} workers"


class TreeScheme(Scheme):
    """A scheme over a tree."""

    if TYPE_CHECKING:  # in every tree scheme a field, or derived from its fields

        @property
        def tree(self) -> Tree:
            """The tree; each node sends to its parent."""

        @property
        def stragglers(self) -> int:
            """The number of stragglers that are tolerated under each parent."""

        @property
        def order(self) -> Order:
            """Whether workers do redundant work at once or only while it is needed."""

        @property
        def bit_identical(self) -> bool:
            """Whether the root's sum is bit-identical for any stragglers."""

    def plan(self, *, samples: int) -> TreePlan:
        """Lay the scheme over a batch of this many samples."""
        self._check_samples(samples)
        return TreePlan(self, samples, self._allocate(samples))

    @abstractmethod
    def _allocate(self, samples: int) -> Allocation: ...

    def suffices(self, plan: TreePlan, parent: int, silent: set[int]) -> bool:
        """Whether a parent can do its task without its silent children."""
        task = next(plan.tasks(parent))
        needs = plan.needs(parent, task)
        lost = sum(all(provider in silent for provider in share.providers) for share in needs.shares)
        return lost <= self.stragglers if needs.code else lost == 0

    def scale(self, plan: TreePlan, total: Array, silent: set[int]) -> Array:
        """The root's result for a sum: the sum itself, unless the scheme omits samples and scales the rest."""
        return total


def _check_workers(workers: int) -> None:
    if workers < 1:
        raise SchemeError(f"a scheme needs at least one worker, got {workers}")


@dataclass(frozen=True)
class _UnderOneRoot(TreeScheme):
    """A scheme with every worker as a child of the root."""

    workers: int

    def __post_init__(self) -> None:
        _check_workers(self.workers)

    @cached_property
    def tree(self) -> Tree:
        """The tree with every worker as a child of the root."""
        return Tree.regular(fanout=self.workers, depth=1)


@dataclass(frozen=True)
class MasterWorker(_UnderOneRoot):
    """Uncoded master-worker, or parameter server: every worker sends to the root, and the root waits for all.

    >>> MasterWorker(4).plan(samples=100).work(2).units
    (Unit(task=2, path=(0,), pieces=((Range(start=25, stop=50, weight=1.0),),)),)
    """

    capacity: tuple[float, ...] | None = None
    stragglers: ClassVar[int] = 0
    order: ClassVar[Order] = "eager"
    bit_identical: ClassVar[bool] = True
    name: ClassVar[str] = "master-worker"

    def _allocate(self, samples: int) -> Allocation:
        return Owned(self.tree, 0, samples, self.capacity)

    @property
    def expression(self) -> str:
        """With the capacities."""
        return str(self) + _shares(self.capacity)


@dataclass(frozen=True)
class GradientCoding(_UnderOneRoot):
    """Gradient coding (Tandon et al. 2017): redundant data under one root, which needs any N - S workers.

    >>> GradientCoding(4, 1, code="cyclic").plan(samples=100).load(3)
    50
    """

    stragglers: int
    code: CodeName = "repetition"
    seed: int | None = None
    order: ClassVar[Order] = "eager"
    name: ClassVar[str] = "gradient-coding"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tolerance(self.stragglers, self.workers)
        _check_code(self.code)

    @property
    def bit_identical(self) -> bool:
        """Only repetition adds the same numbers for any stragglers."""
        return self.code == "repetition"

    def _allocate(self, samples: int) -> Allocation:
        return _eager(self.tree, self.stragglers, samples, self.code, self.seed)

    @property
    def label(self) -> str:
        """With S, and the code if it is not repetition."""
        return f"{self.name} S={self.stragglers}" + ("" if self.code == "repetition" else f" ({self.code})")

    @property
    def expression(self) -> str:
        """With the seed of the code."""
        return str(self) + _drawn(self.seed)


@dataclass(frozen=True)
class LiveCompensation(_UnderOneRoot):
    """Live Gradient Compensation (Xu et al. 2021): take the first K workers, and the others one step late.

    Workers compute block by block. The root continues when K workers are done, and scales its sum to the whole
    batch. A late worker delivers the blocks that it finished in the next round, one step old. Not exact.
    """

    wait_for: int
    blocks: int = 4
    order: ClassVar[Order] = "eager"
    bit_identical: ClassVar[bool] = False
    name: ClassVar[str] = "live-compensation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.wait_for <= self.workers:
            raise SchemeError(f"wait_for must be 1 to {self.workers}, the number of workers, got {self.wait_for}")
        if self.blocks < 1:
            raise SchemeError(f"blocks must be at least 1, got {self.blocks}")

    @property
    def stragglers(self) -> int:
        """The number of workers that the root does not wait for."""
        return self.workers - self.wait_for

    def _allocate(self, samples: int) -> Allocation:
        return Owned(self.tree, 0, samples, blocks=self.blocks)

    def suffices(self, plan: TreePlan, parent: int, silent: set[int]) -> bool:
        """Whether K workers are left."""
        return len(silent) <= self.stragglers

    def scale(self, plan: TreePlan, total: Array, silent: set[int]) -> Array:
        """The sum over the samples that arrived, scaled to the whole batch."""
        missing = sum(samples_in(plan.unit(worker, worker).pieces) for worker in silent)
        return np.asarray(total * total.dtype.type(plan.samples / (plan.samples - missing)))

    @property
    def label(self) -> str:
        """With K."""
        return f"{self.name} K={self.wait_for}"

    @property
    def expression(self) -> str:
        """With the blocks, which late workers deliver one by one."""
        return f"{self}, blocks={self.blocks}"


@dataclass(frozen=True)
class CodedReduce(TreeScheme):
    """CodedReduce (Reisizadeh et al. 2021): coded sums over a tree; every parent needs only some of its children.

    `order="eager"` is the paper's: every worker computes all its redundant work at once. `order="progressive"` is ours:
    a worker computes it only while no other worker has done so.

    >>> tree = Tree.regular(fanout=4, depth=2)
    >>> plan = CodedReduce(tree, stragglers=1).plan(samples=6300)
    >>> plan.calm_load(7), plan.load(7)
    (315, 1260)
    >>> CodedReduce(tree, stragglers=1, order="eager").plan(samples=6300).load(7)
    1050
    """

    tree: Tree
    stragglers: int = 1
    code: CodeName = "repetition"
    order: Order = "progressive"
    capacity: tuple[float, ...] | None = None
    seed: int | None = None
    name: ClassVar[str] = "coded-reduce"

    def __init__(
        self,
        tree: Tree,
        stragglers: int = 1,
        *,
        code: CodeName = "repetition",
        order: Order = "progressive",
        capacity: Sequence[float] | None = None,
        seed: int | None = None,
    ) -> None:
        values = {
            "tree": tree,
            "stragglers": stragglers,
            "code": code,
            "order": order,
            "capacity": None if capacity is None else tuple(map(float, capacity)),
            "seed": seed,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)
        _check_tolerance(stragglers, tree.fanout)
        _check_code(code)
        if order not in ("progressive", "eager"):
            raise SchemeError(f"order must be 'progressive' or 'eager', got {order!r}")
        if order == "progressive" and code != "repetition":
            raise SchemeError(
                f"the progressive order shares whole tasks among replicas: code={code!r} needs order='eager'"
            )
        if order == "eager" and capacity is not None:
            raise SchemeError("in the eager order replicas compute the same, so capacity= needs order='progressive'")
        if self.capacity is not None:
            check_capacity(self.capacity, tree.workers)

    @property
    def workers(self) -> int:
        """N."""
        return self.tree.workers

    @property
    def bit_identical(self) -> bool:
        """Only repetition adds the same numbers for any stragglers."""
        return self.code == "repetition"

    def _allocate(self, samples: int) -> Allocation:
        if self.order == "progressive":
            return Owned(self.tree, self.stragglers, samples, self.capacity)
        return _eager(self.tree, self.stragglers, samples, self.code, self.seed)

    @property
    def label(self) -> str:
        """With the order, s, and the code if it is not repetition."""
        code = "" if self.code == "repetition" else f" ({self.code})"
        return f"{self.name} {self.order} s={self.stragglers}{code}"

    def __str__(self) -> str:
        return f"{self.label} over a tree {self.tree}"

    @property
    def expression(self) -> str:
        """With the capacities, and the seed of the code."""
        return str(self) + _shares(self.capacity) + _drawn(self.seed)


@dataclass(frozen=True)
class RingAllReduce(Scheme):
    """Ring all-reduce (Patarasuk, Yuan 2009): every worker sends to a neighbour, and all wait for all.

    >>> RingAllReduce(3).plan(samples=10).work(3).units[0].pieces
    ((Range(start=6, stop=10, weight=1.0),),)
    """

    workers: int
    name: ClassVar[str] = "ring"

    def __post_init__(self) -> None:
        _check_workers(self.workers)

    @property
    def ring(self) -> Ring:
        """The ring of all workers."""
        return Ring(self.workers)

    def plan(self, *, samples: int) -> RingPlan:
        """Lay the ring over a batch."""
        self._check_samples(samples)
        if samples < self.workers:
            raise PlanError(
                f"{samples} samples cannot be shared by {self.workers} workers; "
                f"take at least {self.workers} samples or fewer workers"
            )
        return RingPlan(self, samples)


@dataclass(frozen=True)
class Striped(Scheme):
    """Every rank computes, reduces a stripe of the sum for all, and steps; the leader assigns late work to idle ranks.

    Each link carries as many numbers as in a ring, and no rank waits for a late one.

    `reach`: the ranks that can read a unit's samples, and so compute it: all ranks, or groups of this size. `blocks`:
    the number of blocks of a unit; by default 4 or 8, depending on its samples. `stripes`: the number of reducers; by
    default all ranks, unless stripes would be so short that messages cost more than bytes. `units`: the number of
    units; by default one for each rank. The units determine the bits of the sum, the ranks do not: 4 ranks with 6 units
    are bit-identical to 6 ranks.

    >>> Striped(3).plan(samples=24).unit(2).pieces[0]
    (Range(start=16, stop=18, weight=1.0),)
    >>> Striped(2, units=3).plan(samples=24).unit(2).pieces[0]
    (Range(start=16, stop=18, weight=1.0),)
    """

    ranks: int
    reach: int | Literal["all"] = "all"
    blocks: int | None = None
    stripes: int | None = None
    units: int | None = None
    bit_identical: ClassVar[bool] = True
    name: ClassVar[str] = "striped"

    def __post_init__(self) -> None:
        _check_workers(self.ranks)
        if self.reach != "all" and not 1 <= self.reach <= self.ranks:
            raise SchemeError(f"reach must be 1 to {self.ranks}, the number of ranks, or 'all'; got {self.reach!r}")
        if self.blocks is not None and self.blocks < 1:
            raise SchemeError(f"blocks of a unit must be at least 1, got {self.blocks}")
        if self.stripes is not None and not 1 <= self.stripes <= self.ranks:
            raise SchemeError(f"stripes must be 1 to {self.ranks}, the number of ranks; got {self.stripes}")
        if self.units is not None and self.units < self.ranks:
            raise SchemeError(f"units must be at least {self.ranks}, one for each rank; got {self.units}")

    @property
    def workers(self) -> int:
        """N: every rank is a worker."""
        return self.ranks

    def plan(self, *, samples: int) -> StripedPlan:
        """Lay the ranks over a batch."""
        self._check_samples(samples)
        if samples < self.ranks:
            raise PlanError(
                f"{samples} samples cannot be shared by {self.ranks} ranks; "
                f"take at least {self.ranks} samples or fewer ranks"
            )
        if self.units is not None and samples < self.units:
            raise PlanError(f"{samples} samples cannot be cut into {self.units} units; take fewer units")
        return StripedPlan(self, samples)

    @property
    def label(self) -> str:
        """With all values that differ from the default."""
        reach = "" if self.reach == "all" else f" in groups of {self.reach}"
        blocks = "" if self.blocks is None else f" by {self.blocks} blocks"
        stripes = "" if self.stripes is None else f" with {self.stripes} stripes"
        units = "" if self.units in (None, self.ranks) else f" of {self.units} units"
        return self.name + units + reach + blocks + stripes

    @property
    def expression(self) -> str:
        """The units, and not the ranks.

        >>> Striped(6).expression, Striped(4, units=6).expression
        ('striped, units=6', 'striped, units=6')
        """
        blocks = "" if self.blocks is None else f", blocks={self.blocks}"
        return f"{self.name}, units={self.units or self.ranks}{blocks}"

    def __str__(self) -> str:
        return f"{self.label} over {self.ranks} ranks"


def _eager(tree: Tree, stragglers: int, samples: int, code: CodeName, seed: int | None) -> Allocation:
    if stragglers == 0:
        return Owned(tree, 0, samples)
    if code == "repetition":
        return Replicated(tree, stragglers, samples)
    return Coded(tree, stragglers, samples, lambda n, s: cyclic(n, s, seed))


def _check_tolerance(stragglers: int, children: int) -> None:
    if not 0 <= stragglers < children:
        raise SchemeError(
            f"a parent with {children} children tolerates 0 to {children - 1} stragglers, got stragglers={stragglers}"
        )


def _check_code(code: str) -> None:
    if code not in ("repetition", "cyclic"):
        raise SchemeError(f"code must be 'repetition' or 'cyclic', got {code!r}")


def _shares(capacity: tuple[float, ...] | None) -> str:
    return "" if capacity is None else f", capacity={capacity}"


def _drawn(seed: int | None) -> str:
    return "" if seed is None else f", seed={seed}"
