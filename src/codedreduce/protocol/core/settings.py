"""The settings that all nodes of a run agree on, beside the plan."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from codedreduce.errors import UsageError
from codedreduce.protocol.core.audits import Audit
from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy
from codedreduce.schemes import StripedPlan
from codedreduce.schemes.striped import OVER_A_NETWORK, Costs
from codedreduce.timing import TIMING, Timing

#: Reducers hold the sums of the last rounds, the current one included: the minimum and maximum number, and the bytes.
LEAST_ROUNDS_HELD, MOST_ROUNDS_HELD = 4, 64
HELD_BYTES = 8 << 20

#: About 1 MiB of float32: the size at which loopback and copies are fastest.
CHUNK_ELEMENTS = 1 << 18

#: The type of the numbers of a vector.
Dtype = np.dtype[np.generic]
FLOAT32: Dtype = np.dtype(np.float32)

#: Bytes in a piece of a state.
STATE_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Excess:
    """What a round does if more workers are late than the plan tolerates: wait, or take the best approximation.

    `say_waiting_after`: seconds until it reports the ranks that it waits for, or approximates. `replan_after`: seconds
    until a root that can compute does the work of missing workers itself.

    >>> Excess("approximate", 5.0)
    Excess(do='approximate', say_waiting_after=5.0, replan_after=10.0)
    """

    do: str = "wait"
    say_waiting_after: float = 30.0
    replan_after: float = 10.0

    def __post_init__(self) -> None:
        if self.do not in ("wait", "approximate"):
            raise UsageError(f"on_excess must be 'wait' or 'approximate', got {self.do!r}")
        for name in ("say_waiting_after", "replan_after"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} cannot be negative, got {getattr(self, name)}")


#: A round waits without a limit.
WAIT_ON = Excess()


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The vector's layout on the wire, and the time limits.

    `head_start`: how long a parent waits for a late share before it asks a replica for it, as a fraction of the
    replica's own time; `least_head_start` is the minimum in seconds.
    """

    length: int
    dtype: Dtype = FLOAT32
    wire: Dtype | None = None  # type of the numbers on the wire, if not their own
    exact: int = 0  # numbers at the end of a vector that always travel in their own type
    chunk: int = CHUNK_ELEMENTS
    window: int = 4
    head_start: float = 0.2
    least_head_start: float = 0.0
    excess: Excess = WAIT_ON
    generation: int = 0
    after: int = 0  # rounds that were over before the run began
    least: int | None = None  # the run begins with so many ranks if the others cannot be reached; None: with all
    unknown_seconds: float = 0.5  # assumed travel time of a vector, until it is measured
    state_chunk: int = STATE_CHUNK  # numbers in a piece of a state; bytes, if the states are real ones
    costs: Costs = OVER_A_NETWORK  # determine the number of reducers
    chunks: int = field(init=False)  # how many chunks a vector has
    itemsize: int = field(init=False)  # bytes of a number on the wire
    exact_itemsize: int = field(init=False)  # bytes of a number that travels in its own type
    audit: Audit | None = None  # which fraction is computed twice and compared; None: nothing
    policy: Policy = DEFAULT_POLICY  # constants of the reaction to stragglers
    announce: bool = True  # offer a pushed sum ahead of its bytes; useless if bytes arrive as fast as offers
    timing: Timing = TIMING  # all durations that no user sets

    def __post_init__(self) -> None:
        for name in ("length", "chunk", "window", "state_chunk"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("head_start", "least_head_start"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} cannot be negative, got {getattr(self, name)}")
        if not 0 <= self.exact <= self.length:
            raise UsageError(f"exact must be from 0 to {self.length}, the length of a vector, got {self.exact}")
        object.__setattr__(self, "chunks", -(-self.length // self.chunk))
        object.__setattr__(self, "itemsize", (self.wire or self.dtype).itemsize)
        object.__setattr__(self, "exact_itemsize", self.dtype.itemsize)

    def to_settle(self, levels: int) -> float:
        """Seconds for so many levels of a tree to send what they have, when a round cannot end."""
        return 0.1 * self.excess.say_waiting_after * levels

    def reducers(self, plan: StripedPlan) -> int:
        """How many ranks reduce a stripe."""
        return plan.reducers(self.length, self.itemsize, self.costs)

    def rounds_held(self, reducers: int) -> int:
        """The number of rounds for which so many reducers hold sums: more if vectors are short. Late ranks request
        them.

        >>> Settings(length=1000).rounds_held(4), Settings(length=10**8).rounds_held(4)
        (64, 4)
        """
        stripe = self.length * self.itemsize // reducers + 1
        return max(LEAST_ROUNDS_HELD, min(MOST_ROUNDS_HELD, HELD_BYTES // stripe))

    def sums_held(self) -> int:
        """The number of rounds for which a rank holds whole sums, for ranks that lost a reducer; at least one.

        >>> Settings(length=1000).sums_held(), Settings(length=10**6).sums_held(), Settings(length=10**8).sums_held()
        (64, 2, 1)
        """
        return max(1, min(MOST_ROUNDS_HELD, HELD_BYTES // (self.length * self.itemsize)))

    def chunk_slice(self, index: int) -> slice:
        """Where chunk `index` lies in the vector."""
        return slice(index * self.chunk, min((index + 1) * self.chunk, self.length))

    def is_chunk(self, index: int, count: int) -> bool:
        """True if there is a chunk with this index and this many numbers."""
        return 0 <= index < self.chunks and count == min(self.chunk, self.length - index * self.chunk)

    def is_state_piece(self, index: int, of: int, count: int) -> bool:
        """True if a piece of a state can have this many numbers: all pieces but the last have the full length."""
        return 0 <= index < of and 0 < count <= self.state_chunk and (count == self.state_chunk or index == of - 1)

    def chunk_bytes(self, index: int) -> int:
        """The size of a chunk on the wire, or -1 if there is no such chunk."""
        if not 0 <= index < self.chunks:
            return -1
        where = self.byte_slice(index)
        return int(where.stop - where.start)

    @property
    def largest_chunk(self) -> int:
        """The maximum size of a chunk in bytes."""
        numbers = min(self.chunk, self.length)
        exact = min(numbers, self.exact)
        return (numbers - exact) * self.itemsize + exact * max(self.itemsize, self.exact_itemsize)

    def exact_in(self, index: int) -> int:
        """How many numbers of a chunk travel in their own type when the others do not."""
        where = self.chunk_slice(index)
        return max(0, int(where.stop) - max(int(where.start), self.length - self.exact))

    def byte_slice(self, index: int) -> slice:
        """Where chunk `index` lies in a vector with the layout of the wire.

        >>> settings = Settings(length=10, wire=np.dtype(np.float16), chunk=4, exact=3)
        >>> [settings.byte_slice(index) for index in range(3)], settings.exact_in(1)
        ([slice(0, 8, None), slice(8, 18, None), slice(18, 26, None)], 1)
        """
        where = self.chunk_slice(index)
        return slice(self._bytes_before(where.start), self._bytes_before(where.stop))

    @property
    def bytes(self) -> int:
        """The size of a vector on the wire."""
        return self._bytes_before(self.length)

    def _bytes_before(self, place: int) -> int:
        exact = max(0, place - (self.length - self.exact))
        return (place - exact) * self.itemsize + exact * self.exact_itemsize
