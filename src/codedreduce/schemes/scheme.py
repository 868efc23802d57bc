"""The schemes: a tree with a code, an order of work and a rule for late results; and two without a tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from codedreduce.codes import cyclic
from codedreduce.errors import PlanError, SchemeError
from codedreduce.schemes.allocation import Coded, Owned, Replicated, check_capacity
from codedreduce.schemes.plan import Array, Plan, samples_in
from codedreduce.schemes.ring_plan import RingPlan
from codedreduce.schemes.striped import StripedPlan
from codedreduce.schemes.tree_plan import TreePlan
from codedreduce.topology import Tree

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
        further = {name: getattr(self, name, None) for name in ("capacity", "blocks", "seed")}
        return str(self) + "".join(f", {name}={value}" for name, value in further.items() if value is not None)

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

    def plan(self, *, samples: int) -> TreePlan:
        """Lay the scheme over a batch of this many samples."""
        self._check_samples(samples)
        return self._allocate(samples)

    @property
    def bit_identical(self) -> bool:
        """Whether the root's sum is bit-identical for any stragglers: a code with real weights adds other numbers."""
        return getattr(self, "code", "repetition") == "repetition"

    @abstractmethod
    def _allocate(self, samples: int) -> TreePlan: ...

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
class _OneLevel(TreeScheme):
    """A scheme in which every worker is a child of the root."""

    workers: int
    order: ClassVar[Order] = "eager"

    def __post_init__(self) -> None:
        _check_workers(self.workers)

    @cached_property
    def tree(self) -> Tree:
        """The tree with every worker as a child of the root."""
        return Tree.regular(fanout=self.workers, depth=1)


@dataclass(frozen=True)
class MasterWorker(_OneLevel):
    """Uncoded master-worker, or parameter server: every worker sends to the root, and the root waits for all.

    >>> list(MasterWorker(4).plan(samples=100).units(2))
    [Unit(task=2, pieces=((Range(start=25, stop=50, weight=1.0),),))]
    """

    capacity: tuple[float, ...] | None = None
    stragglers: ClassVar[int] = 0
    name: ClassVar[str] = "master-worker"

    def _allocate(self, samples: int) -> TreePlan:
        return Owned(self, samples, 0, self.capacity)


@dataclass(frozen=True)
class GradientCoding(_OneLevel):
    """Gradient coding (Tandon et al. 2017): redundant data under one root, which needs any N - S workers.

    >>> GradientCoding(4, 1, code="cyclic").plan(samples=100).load(3)
    50
    """

    stragglers: int
    code: CodeName = "repetition"
    seed: int | None = None
    name: ClassVar[str] = "gradient-coding"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tolerance(self.stragglers, self.workers)
        _check_code(self.code)

    def _allocate(self, samples: int) -> TreePlan:
        return _eager(self, samples, self.code, self.seed)

    @property
    def label(self) -> str:
        """With S, and the code if it is not repetition."""
        return f"{self.name} S={self.stragglers}" + ("" if self.code == "repetition" else f" ({self.code})")


@dataclass(frozen=True)
class LiveCompensation(_OneLevel):
    """Live Gradient Compensation (Xu et al. 2021): take the first K workers, and the others one step late.

    Workers compute block by block. The root continues when K workers are done, and scales its sum to the whole
    batch. A late worker delivers the blocks that it finished in the next round, one step old. Not exact.
    """

    wait_for: int
    blocks: int = 4
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

    def _allocate(self, samples: int) -> TreePlan:
        return Owned(self, samples, 0, blocks=self.blocks)

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
    _: KW_ONLY
    code: CodeName = "repetition"
    order: Order = "progressive"
    capacity: Sequence[float] | None = None
    seed: int | None = None
    name: ClassVar[str] = "coded-reduce"

    def __post_init__(self) -> None:
        if self.capacity is not None:
            object.__setattr__(self, "capacity", tuple(map(float, self.capacity)))
        _check_tolerance(self.stragglers, self.tree.fanout)
        _check_code(self.code)
        if self.order not in ("progressive", "eager"):
            raise SchemeError(f"order must be 'progressive' or 'eager', got {self.order!r}")
        if self.order == "progressive" and self.code != "repetition":
            raise SchemeError(
                f"the progressive order shares whole tasks among replicas: code={self.code!r} needs order='eager'"
            )
        if self.order == "eager" and self.capacity is not None:
            raise SchemeError("in the eager order replicas compute the same, so capacity= needs order='progressive'")
        if self.capacity is not None:
            check_capacity(self.capacity, self.workers)

    @property
    def workers(self) -> int:
        """N."""
        return self.tree.workers

    def _allocate(self, samples: int) -> TreePlan:
        if self.order == "progressive":
            return Owned(self, samples, self.stragglers, self.capacity)
        return _eager(self, samples, self.code, self.seed)

    @property
    def label(self) -> str:
        """With the order, s, and the code if it is not repetition."""
        code = "" if self.code == "repetition" else f" ({self.code})"
        return f"{self.name} {self.order} s={self.stragglers}{code}"

    def __str__(self) -> str:
        return f"{self.label} over a tree {self.tree}"


@dataclass(frozen=True)
class RingAllReduce(Scheme):
    """Ring all-reduce (Patarasuk, Yuan 2009): every worker sends to a neighbour, and all wait for all.

    >>> RingAllReduce(3).plan(samples=10).unit(3).pieces
    ((Range(start=6, stop=10, weight=1.0),),)
    """

    workers: int
    name: ClassVar[str] = "ring"

    def __post_init__(self) -> None:
        _check_workers(self.workers)

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


def _eager(scheme: TreeScheme, samples: int, code: CodeName, seed: int | None) -> TreePlan:
    if scheme.stragglers == 0:
        return Owned(scheme, samples, 0)
    if code == "repetition":
        return Replicated(scheme, samples, scheme.stragglers)
    return Coded(scheme, samples, lambda n, s: cyclic(n, s, seed))


def _check_tolerance(stragglers: int, children: int) -> None:
    if not 0 <= stragglers < children:
        raise SchemeError(
            f"a parent with {children} children tolerates 0 to {children - 1} stragglers, got stragglers={stragglers}"
        )


def _check_code(code: str) -> None:
    if code not in ("repetition", "cyclic"):
        raise SchemeError(f"code must be 'repetition' or 'cyclic', got {code!r}")
