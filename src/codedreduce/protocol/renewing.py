"""A rank's state on its way to one that cannot catch up, or has another model than the others."""

from __future__ import annotations

from codedreduce.protocol.events import AnyAction, Pack, Packed
from codedreduce.protocol.messages import Give, StateChunk
from codedreduce.protocol.outboxes import Outboxes
from codedreduce.protocol.place import Place
from codedreduce.vectors import Vector, joined

#: Bytes in a piece of a state.
STATE_CHUNK = 1 << 18


class Taking:
    """The pieces of a state that have come. Only a later state takes the place of one that is coming."""

    def __init__(self) -> None:
        self._pieces: dict[int, Vector] = {}
        self._whose: tuple[int, int, int] = (-1, 0, 0)  # from whom, after which round, how many pieces

    def clear(self) -> None:
        """Nothing is taken, or not yet."""
        self._pieces = {}
        self._whose = (-1, 0, 0)

    @property
    def is_under_way(self) -> bool:
        """Whether some of a state is here."""
        return bool(self._pieces)

    def add(self, chunk: StateChunk, sender: int, data: Vector) -> bool:
        """A piece is here; whether it is of the state that is taken."""
        whose = (sender, chunk.round, chunk.of)
        if whose != self._whose:
            if self._pieces and chunk.round <= self._whose[1]:
                return False
            self._whose, self._pieces = whose, {}
        self._pieces[chunk.index] = data
        return True

    def whole(self) -> Vector | None:
        """The state, if all of it is here."""
        count = self._whose[2]
        if len(self._pieces) < count or not count:
            return None
        return joined([self._pieces[index] for index in range(count)])


class Giving:
    """Those that wait for this rank's state, which its script packs between two rounds."""

    def __init__(self, place: Place, links: Outboxes) -> None:
        self._place = place
        self._links = links
        self._to: set[int] = set()

    def promise(self, rank: int, actions: list[AnyAction]) -> None:
        """Give the state to a rank when it is packed."""
        if rank in self._links:
            if not self._to:
                actions.append(Pack())
            self._to.add(rank)

    def on_give(self, message: Give, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator asks this rank to give its state to another."""
        self.promise(message.to, actions)

    def on_packed(self, event: Packed, now: float, actions: list[AnyAction]) -> None:
        """Send it, piece by piece."""
        generation = self._place.generation
        starts = range(0, len(event.state), STATE_CHUNK)
        for rank in sorted(self._to):
            for index, start in enumerate(starts):
                chunk = StateChunk(generation=generation, round=event.round, index=index, of=len(starts))
                self._links.put(rank, chunk, event.state[start : start + STATE_CHUNK], actions)
        self._to.clear()
