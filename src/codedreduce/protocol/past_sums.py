"""The whole sums of the last rounds, as every rank has got them.

Who keeps a stripe holds its sums for those that fell behind. When it is killed right after it has sent a sum to some,
they go on to the next round, and nobody computes anything of the last one any more: the others can have it only from
those that got it. So each rank holds the last ones: as many as fit into a few megabytes, one at least.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from codedreduce.protocol.assembly import Assembly
from codedreduce.protocol.rooms import OWN_ROOMS, Rooms
from codedreduce.protocol.settings import Settings
from codedreduce.vectors import Vector


class PastSums:
    """Copies, since a script may do with a sum what it likes; of what is lent, where it lies: its readers see if it is
    no longer what it was.
    """

    def __init__(self, settings: Settings, rooms: Rooms = OWN_ROOMS) -> None:
        self._at_most = settings.sums_held()
        self._is_lent = rooms.lends
        self._sums: OrderedDict[int, tuple[Vector, ...]] = OrderedDict()

    def hold(self, total: Assembly) -> None:
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
