"""Vectors on their way between ranks: parts to their reducers, and sums from reducers to all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from codedreduce.digests import digest
from codedreduce.protocol.core.events import Actions, Transmit
from codedreduce.protocol.core.messages import AnyChunk, DamagedChunk, Go, NewReducer, PartChunk, StateChunk, SumChunk
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.reducer import ChunkDigest, Reducer
from codedreduce.protocol.rank.sums import OWN_SUM_BUFFERS, PastSums, Stripes, SumAssembly, SumBuffers
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector, on_host


class Exchange:
    """A rank's part in the exchange: it sends its results, reduces its stripe, and assembles the sum of its own round.

    It reduces in the current round (`go`). The rank's own round, for which the sum is assembled, may be another.
    """

    def __init__(
        self,
        actions: Actions,
        position: RankPosition,
        plan: StripedPlan,
        settings: Settings,
        links: Outboxes,
        rooms: SumBuffers = OWN_SUM_BUFFERS,
    ) -> None:
        self._actions = actions
        self._position = position
        self._node = position.node
        self._rooms = rooms
        self._ranks = plan.workers
        self._settings = settings
        self._links = links
        self._round = 0  # the current round
        self.stripes = Stripes(plan, settings)
        self.reducer = Reducer(len(plan.all_units), plan.blocks, self.stripes.rounds_held, settings, rooms)
        self.sum = SumAssembly(settings.after + 1, settings, rooms)
        self._next: SumAssembly | None = None  # the sum of the next round, if it arrives before this one is over
        self._past = PastSums(settings, rooms)
        self.own_damage: list[DamagedChunk] = []  # chunks of its own parts that have changed since they were computed
        self._seals: dict[Part, tuple[bytes, ...]] = {}  # digests of the chunks of audited parts
        self._early: OrderedDict[tuple[int, ...], tuple[PartChunk, int, Vector]] = OrderedDict()
        usual = -(-settings.chunks // settings.reducers(plan))
        self._early_at_most = 2 * len(plan.all_units) * usual

    def begin(self, go: Go) -> None:
        """A round begins for reducers; parts of it may have arrived already.

        Under another leader the round may begin again: this rank sends its finished sums to all again, as some may have
        got lost.
        """
        if go.round != self._round:
            self._seals = {}
        self._round = go.round
        self.stripes.begin(go)
        self._links.keep_only(self._is_wanted)
        self.reducer.begin(go.round, self.stripes.of(self._node))
        for index, total in self.reducer.sums(go.round, self.stripes.of(self._node)):
            self._tell_sum(index, total)
        self._replay()

    @property
    def keeps_now(self) -> bool:
        """True if this rank reduces a stripe in the current round, by plan or for another rank."""
        return self.stripes.is_reduced_by(self._node)

    def keep_whole(self) -> None:
        """Hold a copy of the complete sum for ranks that miss some of it: the script may change its own."""
        self._past.hold(self.sum)

    def expect(self, round_: int) -> None:
        """Wait for the sum of this round next; some of it may have arrived."""
        ahead, self._next = self._next, None
        if ahead is None or ahead.round != round_:
            ahead = SumAssembly(round_, self._settings, self._rooms)
        self.sum = ahead

    def _is_wanted(self, message: AnyChunk) -> bool:
        """True if a chunk that waits to be sent is still of use in the round that begins."""
        if isinstance(message, SumChunk):
            return message.round > self._round - self.reducer.rounds_held
        return isinstance(message, StateChunk) or message.round >= self._round

    # -- parts

    def seal(self, part: Part, vector: Vector) -> None:
        """Record the digests of a complete part, to find later damage on the way or in memory."""
        self._seals[part] = tuple(
            digest(on_host(self._cut_out(vector, index))) for index in range(self._settings.chunks)
        )

    def send_if_intact(self, part: Part, vector: Vector, index: int, to: int) -> bool:
        """Send a damaged chunk again; return False if it is damaged here, too, and the part must be computed again."""
        seal = self._seals.get(part)
        if seal is None or index >= len(seal):
            return True
        if to == self._node or self._digest(vector, index) != seal[index]:
            del self._seals[part]
            return False
        self._links.put(to, self._part_chunk(part, index), self._cut_out(vector, index))
        return True

    def send(self, part: Part, vector: Vector) -> None:
        """Send a part to its reducers."""
        self._send(part, vector, self.stripes.in_order(self._node))

    def _send(self, part: Part, vector: Vector, chunks: Iterable[int]) -> None:
        for index in chunks:
            reducer = self.stripes.reducer(index)
            if reducer == self._node:
                self._keep(self._part_chunk(part, index), self._node, self._cut_out(vector, index))
            else:
                self._links.put(reducer, self._part_chunk(part, index), self._cut_out(vector, index))

    def _digest(self, vector: Vector, index: int) -> bytes:
        return digest(on_host(self._cut_out(vector, index)))

    def _cut_out(self, vector: Vector, index: int) -> Vector:
        return vector[self._settings.chunk_slice(index)]

    def _part_chunk(self, part: Part, index: int) -> PartChunk:
        return PartChunk(
            generation=self._position.generation, round=self._round, unit=part.unit, first=part.first, last=part.last,
            index=index, digest=self._seals[part][index] if part in self._seals else b"",
        )  # fmt: skip

    def _sum_chunk(self, round_: int, index: int) -> SumChunk:
        return SumChunk(generation=self._position.generation, round=round_, index=index)

    def change_reducer(self, message: NewReducer, done: Mapping[Part, Vector]) -> None:
        """A stripe has another reducer: send all parts of the stripe again."""
        stripe = self.stripes.change(message)
        if not stripe:
            return
        if message.reducer == self._node:
            self.reducer.take_over(stripe)
            self._replay()
        for part, vector in done.items():
            self._send(part, vector, stripe)

    def send_again(self, peer: int, done: Mapping[Part, Vector]) -> None:
        """Send a rank its chunks of this round again: those in flight on its old connection may be lost."""
        for part, vector in done.items():
            for index in self.stripes.in_order(self._node):
                if self.stripes.reducer(index) == peer:
                    self._links.put(peer, self._part_chunk(part, index), self._cut_out(vector, index))
        kept = self.reducer.sums(self._round, range(self._settings.chunks))
        self._send_chunks(peer, self._round, kept)

    # -- reducing

    def part_came(self, chunk: PartChunk, sender: int, data: Vector) -> None:
        """Add a chunk to a sum of this rank; hold it if it is early, or if this rank does not reduce it yet."""
        if chunk.round == self._round and self.reducer.keeps(chunk.index):
            self._keep(chunk, sender, data)
        elif chunk.round >= self._round:
            self._early[chunk.place] = (chunk, sender, data)
            if len(self._early) > self._early_at_most:
                self._early.popitem(last=False)  # if it was needed, the leader notices, and it is computed again

    def _replay(self) -> None:
        """Process the chunks that arrived before this rank knew that it reduces them."""
        early, self._early = self._early, OrderedDict()
        for position, (chunk, sender, data) in early.items():
            if chunk.round == self._round and self.reducer.keeps(chunk.index):
                self._keep(chunk, sender, data)
            elif chunk.round >= self._round:
                self._early[position] = (chunk, sender, data)

    def _keep(self, chunk: PartChunk, sender: int, data: Vector) -> None:
        part, index = Part(chunk.unit, chunk.first, chunk.last), chunk.index
        seal = ChunkDigest(chunk.digest, sender, part, index) if chunk.digest else None
        total = self.reducer.add(part, index, data, seal)
        if total is not None:
            self._tell_sum(index, total)
        for damaged in self.reducer.take_damaged() if chunk.digest else ():
            self._complain(damaged)

    def _complain(self, seal: ChunkDigest) -> None:
        """Report a damaged chunk to its sender."""
        unit, first, last = seal.part
        damaged = DamagedChunk(
            generation=self._position.generation, round=self._round, unit=unit, first=first, last=last, index=seal.chunk
        )  # fmt: skip
        if seal.sender == self._node:
            self.own_damage.append(damaged)
        else:
            self._actions.append(Transmit(to=seal.sender, message=damaged))

    def _tell_sum(self, index: int, total: Vector) -> None:
        """Send a chunk of the sum to all ranks."""
        message = self._sum_chunk(self._round, index)
        for step in range(1, self._ranks):
            self._links.put((self._node + step) % self._ranks, message, total)
        self.sum_came(self._round, index, total)

    # -- sums

    def on_sum(self, chunk: SumChunk, sender: int, data: Vector, now: float) -> None:
        """A reducer sends a chunk of a sum."""
        self.sum_came(chunk.round, chunk.index, data)

    def sum_came(self, round_: int, index: int, data: Vector) -> None:
        """A chunk of a sum has arrived, for this rank's own round or the next one. It is not sent twice, so hold it."""
        if round_ == self.sum.round:
            self.sum.add(index, data)
        elif round_ == self.sum.round + 1:
            if self._next is None:
                self._next = SumAssembly(round_, self._settings, self._rooms)
            self._next.add(index, data)

    def has(self, chunks: Iterable[int]) -> bool:
        """True if these chunks of the sum of this rank's own round have arrived."""
        return set(chunks).isdisjoint(self.sum.missing())

    def take_own(self, round_: int, chunks: Iterable[int]) -> None:
        """Take the chunks of a past round's sum that this rank reduced itself."""
        for index, data in self.reducer.sums(round_, chunks):
            self.sum_came(round_, index, data)

    def send_sums(self, peer: int, round_: int, chunks: Iterable[int]) -> bool:
        """Send the chunks of a round's sum that are here; return True if these are all that were requested."""
        wanted = [index for index in chunks if index < self._settings.chunks]
        found = dict(self._past.chunks(round_, wanted)) | dict(self.reducer.sums(round_, wanted))
        self._send_chunks(peer, round_, found.items())
        return len(found) == len(wanted)

    def _send_chunks(self, peer: int, round_: int, chunks: Iterable[tuple[int, Vector]]) -> None:
        for index, data in chunks:
            self._links.put(peer, self._sum_chunk(round_, index), data)

    def held(self) -> int:
        """The number of chunks of other ranks' parts that are held or being added up."""
        return self.reducer.held() + len(self._early)

    def check_invariants(self) -> None:
        """Raise if more is held than is needed."""
        self.reducer.check_invariants()
        if len(self._early) > self._early_at_most:
            raise AssertionError(f"rank {self._node} holds {len(self._early)} chunks that came too early")
        if self.sum.count > self._settings.chunks:
            raise AssertionError(f"rank {self._node} holds more chunks than a sum has")
        self._past.check_invariants()
