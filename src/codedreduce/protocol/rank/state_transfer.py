"""State transfer: a rank that cannot catch up, or has drifted, takes the state from several other ranks.

The ranks that the leader asks offer their state: its round, the number of its pieces, and a digest. States after the
same round are bit-identical, so that a rank can take some pieces from each giver. The digests may still differ, since
packing a state need not write the same bytes twice. Then the rank takes all pieces from givers with the same digest, or
from one.

The rank requests a few pieces at a time, so a quick giver gives more. When all pieces are requested, a giver that has
delivered its own is asked for the outstanding pieces of others. So slow givers need not be identified, and a giver that
is gone causes no delay.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from codedreduce.protocol.core.events import Actions, Pack, StatePacked, Transmit
from codedreduce.protocol.core.messages import Give, Past, Renew, StateChunk, StateOffer, Take
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import READY, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.members import Leadership
from codedreduce.vectors import Vector, joined

#: The maximum number of pieces that are requested from one rank at a time.
AT_ONCE = 8


class OfferedState(NamedTuple):
    """A state that a rank offers: after which round, in how many pieces, and the digest that identifies it."""

    round: int
    of: int
    digest: str


#: Which pieces to request from which rank.
Asking = list[tuple[int, tuple[int, ...]]]


class StateTaking:
    """The receiving side: pieces that have arrived, pieces that are requested from each rank, and all offers."""

    def __init__(self) -> None:
        self._offers: dict[int, OfferedState] = {}
        self._taken: OfferedState | None = None
        self._pieces: dict[int, Vector] = {}
        self._asked: dict[int, set[int]] = {}  # by giver: requested, and not arrived
        self._again: deque[int] = deque()  # to be requested again
        self._next = 0  # pieces from this index on have not been requested

    def clear(self) -> dict[int, int]:
        """Reset the transfer; return the ranks that had offered a state, with the round of each."""
        offered = {giver: offer.round for giver, offer in self._offers.items()}
        self._offers, self._pieces, self._asked = {}, {}, {}
        self._taken = None
        self._again.clear()
        self._next = 0
        return offered

    @property
    def is_under_way(self) -> bool:
        """True if pieces of a state have arrived or were requested."""
        return self._taken is not None

    @property
    def round(self) -> int:
        """The round after which the state was packed; -1 if none is being taken."""
        return self._taken.round if self._taken is not None else -1

    def offered(self, giver: int, offer: OfferedState) -> Asking:
        """A rank offers a state; return the requests to send."""
        self._give_up(giver)
        self._offers[giver] = offer
        return self._ask()

    def lost(self, giver: int) -> Asking:
        """A rank is lost, or no longer has its state; return the requests for its outstanding pieces."""
        self._give_up(giver)
        self._offers.pop(giver, None)
        return self._ask()

    def came(self, chunk: StateChunk, giver: int, data: Vector) -> Asking | None:
        """A piece has arrived; return the requests to send, or None if the piece was not requested."""
        taken, asked = self._taken, self._asked.get(giver, set())
        if taken is None or (chunk.round, chunk.of) != (taken.round, taken.of) or chunk.index not in asked:
            return None
        asked.discard(chunk.index)
        self._pieces.setdefault(chunk.index, data)
        return self._ask()

    def whole(self) -> Vector | None:
        """The state, if all pieces have arrived."""
        if self._taken is None or len(self._pieces) < self._taken.of:
            return None
        return joined([self._pieces[index] for index in range(self._taken.of)])

    def _give_up(self, giver: int) -> None:
        """Expect nothing more from a rank."""
        owed = self._asked.pop(giver, set())
        others = set().union(*self._asked.values())
        self._again.extend(sorted(owed - others - set(self._pieces)))

    def _givers(self) -> list[int]:
        """The ranks that offer the state being taken; if there are none left, another state is chosen."""
        givers = [giver for giver, offer in self._offers.items() if offer == self._taken]
        if not givers and self._offers:
            # choose the state with most givers, then the latest; states without a digest cannot be compared
            counts = Counter(self._offers.values())
            offer = max(counts, key=lambda one: (counts[one] if one.digest else 1, one.round))
            givers = [giver for giver, one in self._offers.items() if one == offer]
            self._taken, self._pieces, self._asked = offer, {}, {}
            self._again.clear()
            self._next = 0
        return givers if self._taken is not None and self._taken.digest else givers[:1]

    def _ask(self) -> Asking:
        """Request pieces from every giver; when all are requested, ask idle givers for outstanding pieces of others."""
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
        """Up to so many pieces that are not requested from any rank."""
        assert self._taken is not None
        some = [self._again.popleft() for _ in range(min(count, len(self._again)))]
        first, self._next = self._next, min(self._taken.of, self._next + count - len(some))
        return [*some, *range(first, self._next)]


class StateGiving:
    """The sending side: ranks that wait for this rank's state, and ranks that take it. The script packs it between
    rounds.
    """

    def __init__(
        self, actions: Actions, position: RankPosition, links: Outboxes, settings: Settings, leadership: Leadership
    ) -> None:
        self._actions = actions
        self._position = position
        self._links = links
        self._leadership = leadership
        self._piece = settings.state_chunk
        self._waiting: set[int] = set()
        self._later: dict[int, int] = {}  # by receiver: it gets the state before this future round
        self._offered: dict[int, StatePacked] = {}  # by receiver: offered, and not yet taken

    def promise(self, rank: int, before: int = 0) -> None:
        """Send the state to a rank once it is packed: that before round `before`, if this rank has not reached it."""
        if rank not in self._links:
            return
        if self._position.state in (READY, WORKING) and self._position.round < before:
            self._later[rank] = before
        else:
            if not self._waiting:
                self._actions.append(Pack())
            self._waiting.add(rank)

    def begin(self, round_: int) -> None:
        """The script begins a round: have it pack the states that were promised as they are before this round."""
        for rank in [rank for rank, before in self._later.items() if before <= round_]:
            del self._later[rank]
            self.promise(rank)

    def on_give(self, message: Give, sender: int, now: float) -> None:
        """The leader asks this rank to send its state to another."""
        self.promise(message.to, before=message.round)

    def on_renew(self, message: Renew, sender: int, now: float) -> None:
        """On the leader: a rank needs a state, of other ranks or else of this one."""
        members = self._leadership.members
        assert members is not None
        members.hear_of(sender)
        if not members.find_givers(sender, self._position.round):
            self.promise(sender)

    def on_packed(self, event: StatePacked, now: float) -> None:
        """Offer the packed state to the ranks that wait for it."""
        offer = StateOffer(
            generation=self._position.generation, round=event.round, of=self._count(event), digest=event.digest
        )  # fmt: skip
        for rank in sorted(self._waiting):
            self._offered[rank] = event
            self._actions.append(Transmit(to=rank, message=offer))
        self._waiting.clear()

    def on_take(self, message: Take, sender: int, now: float) -> None:
        """Send the pieces that a rank requests; or forget a state that it no longer needs."""
        event = self._offered.get(sender)
        if event is None or event.round != message.round:
            if message.pieces:
                past = Past(generation=self._position.generation, round=message.round)
                self._actions.append(Transmit(to=sender, message=past))
            return
        if not message.pieces:
            del self._offered[sender]
        count = self._count(event)
        for index in message.pieces:
            if index < count:
                chunk = StateChunk(generation=self._position.generation, round=event.round, index=index, of=count)
                data = event.state[index * self._piece : (index + 1) * self._piece]
                self._links.put(sender, chunk, data)

    def _count(self, event: StatePacked) -> int:
        return -(-len(event.state) // self._piece)

    def lost(self, rank: int) -> None:
        """A rank that waits for the state, or takes it, is lost or begins again."""
        self._waiting.discard(rank)
        self._later.pop(rank, None)
        self._offered.pop(rank, None)

    @property
    def held(self) -> int:
        """The number of states that are held for ranks that take them."""
        return len({id(event) for event in self._offered.values()})
