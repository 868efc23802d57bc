"""The sum of a round, put together from what reducers send; and the whole sums of the last rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from codedreduce.protocol.core.events import Aggregated, Gathered
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.sum_buffers import OWN_SUM_BUFFERS, SumBuffers
from codedreduce.vectors import Vector, empty


class SumAssembly:
    """The sum of a round, as far as it is here: in a vector, or if chunks are lent, where its keepers have it."""

    def __init__(self, round_: int, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS) -> None:
        self.round = round_
        self._settings = settings
        self._rooms = rooms
        self._here: dict[int, Vector] = {}
        self._vector: Vector | None = None

    def add(self, index: int, data: Vector) -> bool:
        """A chunk is here; whether that is news."""
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
        """How many chunks are here."""
        return len(self._here)

    @property
    def is_complete(self) -> bool:
        """Whether all of it is here."""
        return len(self._here) == self._settings.chunks

    def missing(self) -> list[int]:
        """The chunks that are not here."""
        return [index for index in range(self._settings.chunks) if index not in self._here]

    def given(self, late: tuple[int, ...]) -> Aggregated | Gathered:
        """The whole sum, for the script."""
        if self._vector is not None:
            return Aggregated(round=self.round, vector=self._vector, late=late)
        return Gathered(round=self.round, chunks=self.in_order(), late=late)

    def in_order(self) -> tuple[Vector, ...]:
        """The chunks of a sum that is complete."""
        return tuple(self._here[index] for index in range(self._settings.chunks))


class PastSums:
    """Copies, since a script may do with a sum what it likes; of what is lent, where it lies: its readers see if it is
    no longer what it was.
    """

    def __init__(self, settings: Settings, rooms: SumBuffers = OWN_SUM_BUFFERS) -> None:
        self._at_most = settings.sums_held()
        self._is_lent = rooms.lends
        self._sums: OrderedDict[int, tuple[Vector, ...]] = OrderedDict()

    def hold(self, total: SumAssembly) -> None:
        """A round's whole sum, and no longer the oldest."""
        chunks = total.in_order()
        self._sums[total.round] = chunks if self._is_lent else tuple(chunk.copy() for chunk in chunks)
        self._sums.move_to_end(total.round)
        if len(self._sums) > self._at_most:
            self._sums.popitem(last=False)

    def chunks(self, round_: int, chunks: Iterable[int]) -> Iterator[tuple[int, Vector]]:
        """Those of these chunks of a round's sum that are here: all or none."""
        held = self._sums.get(round_, ())
        return ((index, held[index]) for index in (chunks if held else ()))

    def check_invariants(self) -> None:
        """Raise if more is held than is needed."""
        if len(self._sums) > self._at_most:
            raise AssertionError(f"the whole sums of {len(self._sums)} rounds are held")
