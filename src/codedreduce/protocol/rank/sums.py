"""The sum of a round, assembled from the chunks of the reducers; and the whole sums of the last rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from codedreduce.protocol.core.events import Aggregated, Gathered
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.sum_buffers import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.vectors import Vector, empty


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
