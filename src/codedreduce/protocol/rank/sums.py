"""The sum of a round: the stripes and their reducers, the sum that is assembled from chunks, and the last rounds' sums.

`SumBuffers`: the memory in which other ranks read sums, and a check that borrowed chunks are unchanged. Between
processes of one host a chunk need not travel. Its owner lends the memory that contains it. Some rounds later the owner
writes into that memory again, even if a borrower has not finished with it. So a result made from borrowed memory is
used only after a check that the memory was not written into meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

from codedreduce.protocol.core.events import Aggregated, Gathered
from codedreduce.protocol.core.messages import Go, NewReducer
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import StripedPlan
from codedreduce.vectors import Vector, empty


class Stripes:
    """The stripes of a round, as its leader defined them, and their reducers."""

    def __init__(self, plan: StripedPlan, settings: Settings) -> None:
        self._plan = plan
        self._chunks = settings.chunks
        self._reducers = settings.reducers(plan)
        self.rounds_held = settings.rounds_held(self._reducers)
        self._stripes: tuple[range, ...] = ()
        self._reducer_of: list[int] = []  # chunk by chunk, in the current round
        self._rounds: OrderedDict[int, list[int]] = OrderedDict()

    def begin(self, go: Go) -> None:
        """A round begins."""
        self._stripes = self._plan.stripes(self._chunks, self._plan.weights(self._reducers, dict(go.reducers)))
        self._reducer_of = [rank for rank, stripe in enumerate(self._stripes) for _ in stripe]
        self._rounds[go.round] = self._reducer_of
        while len(self._rounds) > self.rounds_held:
            self._rounds.popitem(last=False)

    def of(self, rank: int) -> range:
        """The stripe that a rank reduces by plan."""
        return self._stripes[rank]

    def reducer(self, index: int) -> int:
        """The reducer of a chunk in the current round."""
        return self._reducer_of[index]

    def is_reduced_by(self, rank: int) -> bool:
        """True if a rank reduces any chunk in the current round."""
        return rank in self._reducer_of

    def reducers(self, round_: int) -> list[int] | None:
        """The reducers of the chunks of a past round, if they are still known."""
        return self._rounds.get(round_)

    def change(self, message: NewReducer) -> range:
        """Give a stripe another reducer; return its chunks, none if there is no such stripe or rank."""
        if message.stripe >= len(self._stripes) or message.reducer not in self._plan.computing:
            return range(0)
        for index in self._stripes[message.stripe]:
            self._reducer_of[index] = message.reducer
        return self._stripes[message.stripe]

    def in_order(self, rank: int) -> Iterator[int]:
        """The chunks in a rank's order of sending: the first of each stripe, then the second; its own stripe last."""
        ranks = self._plan.workers
        stripes = [self._stripes[(rank + step) % ranks] for step in range(1, ranks + 1)]
        longest = max(len(stripe) for stripe in stripes)
        return (stripe[position] for position in range(longest) for stripe in stripes if position < len(stripe))


class SumBuffers(Protocol):
    """The interface to the memory of vectors."""

    @property
    def lends(self) -> bool:
        """True if received chunks lie in their senders' memory."""

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Memory for a chunk of a round's sum that other ranks can read; None if there is none.

        This rank owns it until it requests memory for a round that is later by the number of rounds for which sums are
        held.
        """

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """True if none of these chunks of a round has been written into since it arrived."""


class OwnSumBuffers:
    """All received chunks are this rank's own: between hosts, and in the simulator."""

    lends: ClassVar[bool] = False

    def sum_room(self, round_: int, index: int) -> Vector | None:
        """Return None: sums stay where they are added up."""
        return None

    def are_intact(self, round_: int, chunks: Iterable[Vector]) -> bool:
        """Return True: no other process can write into them."""
        return True


OWN_SUM_BUFFERS = OwnSumBuffers()


class SumAssembly:
    """The sum of a round, as far as it has arrived: in a vector, or for borrowed chunks in the reducers' memory."""

    def __init__(self, round_: int, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS) -> None:
        self.round = round_
        self._settings = settings
        self._rooms = rooms
        self._here: dict[int, Vector] = {}
        self._vector: Vector | None = None

    def add(self, index: int, data: Vector) -> bool:
        """Add a chunk; return False if it was there already."""
        if index in self._here:
            return False
        if not self._rooms.lends:
            if self._vector is None:
                self._vector = empty(self._settings.length, data.dtype)
            position = self._vector[self._settings.chunk_slice(index)]
            position[:] = data
            data = position
        self._here[index] = data
        return True

    @property
    def count(self) -> int:
        """The number of chunks that have arrived."""
        return len(self._here)

    @property
    def is_complete(self) -> bool:
        """True if all chunks have arrived."""
        return len(self._here) == self._settings.chunks

    def missing(self) -> list[int]:
        """The chunks that have not arrived."""
        return [index for index in range(self._settings.chunks) if index not in self._here]

    def given(self, late: tuple[int, ...]) -> Aggregated | Gathered:
        """The whole sum, for the script."""
        if self._vector is not None:
            return Aggregated(round=self.round, vector=self._vector, late=late)
        return Gathered(round=self.round, chunks=self.in_order(), late=late)

    def in_order(self) -> tuple[Vector, ...]:
        """The chunks of a complete sum, in order."""
        return tuple(self._here[index] for index in range(self._settings.chunks))


class PastSums:
    """The whole sums of the last rounds, for ranks that catch up.

    They are copies, since a script may change its sum. Borrowed chunks are not copied: their readers check that they
    were not overwritten.
    """

    def __init__(self, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS) -> None:
        self._at_most = settings.sums_held()
        self._is_lent = rooms.lends
        self._sums: OrderedDict[int, tuple[Vector, ...]] = OrderedDict()

    def hold(self, total: SumAssembly) -> None:
        """Hold a round's whole sum, and drop the oldest."""
        chunks = total.in_order()
        self._sums[total.round] = chunks if self._is_lent else tuple(chunk.copy() for chunk in chunks)
        self._sums.move_to_end(total.round)
        if len(self._sums) > self._at_most:
            self._sums.popitem(last=False)

    def chunks(self, round_: int, chunks: Iterable[int]) -> Iterator[tuple[int, Vector]]:
        """The requested chunks of a round's sum: all of them, or none if the sum is not held."""
        held = self._sums.get(round_, ())
        return ((index, held[index]) for index in (chunks if held else ()))

    def check_invariants(self) -> None:
        """Raise if more is held than is needed."""
        if len(self._sums) > self._at_most:
            raise AssertionError(f"the whole sums of {len(self._sums)} rounds are held")
