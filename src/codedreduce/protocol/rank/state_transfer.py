"""A state on its way to a rank that cannot catch up, or has another model than the others, from several that have it.

Those that are asked to give offer what they have: after which round, in how many pieces, and a digest. Ranks that are
after the same round have the same state, to the bit, so that a rank can take some pieces from each. Where digests
differ (what packs a state need not write the same bytes twice) it takes all from those that agree, or from one.

Pieces are asked for, a few at a time: who is quick gives more. When all are asked for, one that has given its own is
asked for what others owe. So nobody has to find out who is slow, and one that is gone is not missed.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from codedreduce.protocol.core.events import AnyAction, Pack, StatePacked, Transmit
from codedreduce.protocol.core.messages import Give, Past, StateChunk, StateOffer, Take
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import READY, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.vectors import Vector, joined

#: Pieces that one rank is asked for at a time, at most.
AT_ONCE = 8


class OfferedState(NamedTuple):
    """A state that somebody has: after which round, in how many pieces, and what tells it from another."""

    round: int
    of: int
    digest: str


#: Which pieces are to be asked of whom.
Asking = list[tuple[int, tuple[int, ...]]]


class StateTaking:
    """The pieces of a state that have come, from whom others are expected, and who could give more."""

    def __init__(self) -> None:
        self._offers: dict[int, OfferedState] = {}
        self._taken: OfferedState | None = None
        self._pieces: dict[int, Vector] = {}
        self._asked: dict[int, set[int]] = {}  # of whom, and has not come
        self._again: deque[int] = deque()  # to be asked for again
        self._next = 0  # what comes after it has not been asked for

    def clear(self) -> dict[int, int]:
        """Nothing is taken, or not yet; who had offered a state until now, and after which round."""
        offered = {giver: offer.round for giver, offer in self._offers.items()}
        self._offers, self._pieces, self._asked = {}, {}, {}
        self._taken = None
        self._again.clear()
        self._next = 0
        return offered

    @property
    def is_under_way(self) -> bool:
        """Whether some of a state is here, or was asked for."""
        return self._taken is not None

    @property
    def round(self) -> int:
        """The state that is taken is as it was after this round."""
        return self._taken.round if self._taken is not None else -1

    def offered(self, giver: int, offer: OfferedState) -> Asking:
        """A rank has a state to give; whom to ask for what."""
        self._give_up(giver)
        self._offers[giver] = offer
        return self._ask()

    def lost(self, giver: int) -> Asking:
        """A rank is gone, or has its state no longer; whom to ask for what it owed."""
        self._give_up(giver)
        self._offers.pop(giver, None)
        return self._ask()

    def came(self, chunk: StateChunk, giver: int, data: Vector) -> Asking | None:
        """A piece is here; whom to ask for what, or None if it is nothing that was asked for."""
        taken, asked = self._taken, self._asked.get(giver, set())
        if taken is None or (chunk.round, chunk.of) != (taken.round, taken.of) or chunk.index not in asked:
            return None
        asked.discard(chunk.index)
        self._pieces.setdefault(chunk.index, data)
        return self._ask()

    def whole(self) -> Vector | None:
        """The state, if all of it is here."""
        if self._taken is None or len(self._pieces) < self._taken.of:
            return None
        return joined([self._pieces[index] for index in range(self._taken.of)])

    def _give_up(self, giver: int) -> None:
        """Expect nothing more of a rank."""
        owed = self._asked.pop(giver, set())
        others = set().union(*self._asked.values())
        self._again.extend(sorted(owed - others - set(self._pieces)))

    def _givers(self) -> list[int]:
        """Those that have the state that is taken; another one is, if there are none left."""
        givers = [giver for giver, offer in self._offers.items() if offer == self._taken]
        if not givers and self._offers:
            # what has most givers, and of those the latest; without a digest it cannot be told from another
            counts = Counter(self._offers.values())
            offer = max(counts, key=lambda one: (counts[one] if one.digest else 1, one.round))
            givers = [giver for giver, one in self._offers.items() if one == offer]
            self._taken, self._pieces, self._asked = offer, {}, {}
            self._again.clear()
            self._next = 0
        return givers if self._taken is not None and self._taken.digest else givers[:1]

    def _ask(self) -> Asking:
        """Ask everyone who has the state for some pieces, and who has given its own for what others owe."""
        asking: Asking = []
        for giver in self._givers():
            asked = self._asked.setdefault(giver, set())
            if len(asked) > AT_ONCE // 2:
                continue
            more = self._some(AT_ONCE - len(asked))
            if not more and not asked:
                owed = set().union(*self._asked.values()) - set(self._pieces)
                more = sorted(owed, reverse=True)[:AT_ONCE]
            if more:
                asked.update(more)
                asking.append((giver, tuple(more)))
        return asking

    def _some(self, count: int) -> list[int]:
        """Up to so many pieces that nobody is asked for."""
        assert self._taken is not None
        some = [self._again.popleft() for _ in range(min(count, len(self._again)))]
        first, self._next = self._next, min(self._taken.of, self._next + count - len(some))
        return [*some, *range(first, self._next)]


class StateGiving:
    """Those that wait for this rank's state, which its script packs between two rounds, and those that take it."""

    def __init__(self, position: RankPosition, links: Outboxes, settings: Settings) -> None:
        self._position = position
        self._links = links
        self._piece = settings.state_chunk
        self._waiting: set[int] = set()
        self._later: dict[int, int] = {}  # to whom, and before which round this rank has not come to
        self._offered: dict[int, StatePacked] = {}  # to whom, and not yet taken

    def promise(self, rank: int, actions: list[AnyAction], before: int = 0) -> None:
        """Give the state to a rank when it is packed; as it is before a round, if this rank has not come to that."""
        if rank not in self._links:
            return
        if self._position.state in (READY, WORKING) and self._position.round < before:
            self._later[rank] = before
        else:
            if not self._waiting:
                actions.append(Pack())
            self._waiting.add(rank)

    def begin(self, round_: int, actions: list[AnyAction]) -> None:
        """The script begins a round: it packs what was to be given as it is before it."""
        for rank in [rank for rank, before in self._later.items() if before <= round_]:
            del self._later[rank]
            self.promise(rank, actions)

    def on_give(self, message: Give, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator asks this rank to give its state to another."""
        self.promise(message.to, actions, before=message.round)

    def on_packed(self, event: StatePacked, now: float, actions: list[AnyAction]) -> None:
        """Offer it to those that wait for it."""
        offer = StateOffer(
            generation=self._position.generation, round=event.round, of=self._count(event), digest=event.digest
        )  # fmt: skip
        for rank in sorted(self._waiting):
            self._offered[rank] = event
            actions.append(Transmit(to=rank, message=offer))
        self._waiting.clear()

    def on_take(self, message: Take, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Send the pieces that a rank asks for; or forget what it needs no more."""
        event = self._offered.get(sender)
        if event is None or event.round != message.round:
            if message.pieces:
                past = Past(generation=self._position.generation, round=message.round)
                actions.append(Transmit(to=sender, message=past))
            return
        if not message.pieces:
            del self._offered[sender]
        count = self._count(event)
        for index in message.pieces:
            if index < count:
                chunk = StateChunk(generation=self._position.generation, round=event.round, index=index, of=count)
                data = event.state[index * self._piece : (index + 1) * self._piece]
                self._links.put(sender, chunk, data, actions)

    def _count(self, event: StatePacked) -> int:
        return -(-len(event.state) // self._piece)

    def lost(self, rank: int) -> None:
        """A rank that waits for the state, or takes it, is gone, or begins anew."""
        self._waiting.discard(rank)
        self._later.pop(rank, None)
        self._offered.pop(rank, None)

    @property
    def held(self) -> int:
        """How many states are kept for those that take them."""
        return len({id(event) for event in self._offered.values()})
