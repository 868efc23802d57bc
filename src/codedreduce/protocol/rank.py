"""A rank of a striped run: computes its parts, keeps its stripe, and ends every round with the whole sum.

A round, at a rank: it begins when the script says so (`Begin`) and the coordinator, rank 0, does (`Go`). Parts are
computed one after the other, and each goes to the keepers chunk by chunk, beginning with the keeper that follows this
rank. Sums come from keepers. When all of the sum is here the round is over, whatever is still being computed.

Keeping goes on beside that, and does not wait for the rank itself: one that is late with its own work, or whose script
takes its time between two rounds, sums its stripe all the same.

A rank that fell behind (rank 0 has begun a later round) asks keepers for what it misses of the sums, one round after
the other; if they no longer have it, it takes another's state.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from codedreduce.errors import ProtocolError, UsageError
from codedreduce.protocol.coordinating import LATE, TAIL, WAITING, Coordinating
from codedreduce.protocol.events import (
    Advanced,
    Aggregated,
    AnyAction,
    Begin,
    Cancel,
    Compute,
    Computed,
    Drained,
    Ended,
    EveryoneIn,
    Finished,
    Interrupted,
    Leave,
    Note,
    Pack,
    Packed,
    PeerFound,
    PeerLost,
    Renewed,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
)
from codedreduce.protocol.keeping import ROUNDS_HELD, Keeper
from codedreduce.protocol.machine import (
    COORDINATOR,
    FOLLOWER,
    OWN,
    PEER,
    STAY,
    STRANGER,
    From,
    Machine,
    Row,
    State,
)
from codedreduce.protocol.membership import Roster, run_name
from codedreduce.protocol.messages import (
    AnyChunk,
    AnyMessage,
    Cut,
    Do,
    Done,
    End,
    Give,
    Go,
    Goodbye,
    Have,
    Hello,
    Keep,
    Late,
    Message,
    PartChunk,
    Past,
    Refuse,
    Renew,
    StateChunk,
    Status,
    SumChunk,
    Tell,
    Want,
    Welcome,
)
from codedreduce.protocol.outbox import Outbox
from codedreduce.protocol.settings import Settings
from codedreduce.protocol.witness import Witness
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector, empty, joined, rounded


class RankState(State):
    """Where a rank stands."""

    JOINING = "has said hello"
    RESTING = "between rounds: its script has the sum"
    READY = "has begun, and the round has not"
    WORKING = "computes, or waits for the sum"
    RENEWING = "takes another's state"
    ENDING = "is through, and others may not be"
    LEFT = "has left"


JOINING, RESTING, READY, WORKING, RENEWING, ENDING, LEFT = RankState
_IN = (RESTING, READY, WORKING, RENEWING, ENDING)
_ALL = (JOINING, *_IN)
_NOT_WORKING = (RESTING, READY, RENEWING, ENDING)
_LEADING = (RESTING, WORKING, ENDING)  # those that rank 0 is ever in when somebody speaks to it
_ANY_RANK = (COORDINATOR, FOLLOWER, PEER)

#: Timers: a rank that is behind asks again; has not been welcomed; or ends, and has waited long enough for the others.
BEHIND, GREETING, ENDED = "behind", "greeting", "ended"

#: Seconds after which a rank that is behind asks for what it misses, at least; how often it asks before it gives up.
ASK_AFTER = 0.05
TRIES = 5

#: Seconds after which a rank that has not been welcomed says hello again, for the first time.
HELLO_AGAIN = 2.0

#: Seconds that ranks which are behind have to catch up when a run ends.
GRACE = 5.0

#: Bytes in a piece of a state.
STATE_CHUNK = 1 << 18

#: Chunks in a message that asks for some.
ASKED_AT_ONCE = 1024


class Assembly:
    """The sum of a round, as far as it is here."""

    def __init__(self, round_: int, settings: Settings) -> None:
        self.round = round_
        self._settings = settings
        self._here: set[int] = set()
        self.vector: Vector | None = None

    def add(self, index: int, data: Vector) -> bool:
        """A chunk is here; whether that is news."""
        if index in self._here:
            return False
        if self.vector is None:
            self.vector = empty(self._settings.length, data.dtype)
        self.vector[self._settings.chunk_slice(index)] = data
        self._here.add(index)
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


class Task:
    """A part that is computed: since when, and how far it is."""

    __slots__ = ("_under_way", "advanced", "began", "part")

    def __init__(self, part: Part, began: float) -> None:
        self.part = part
        self.began = began
        self.advanced = 0  # blocks that are known to be done
        self._under_way = began  # when the first block was done

    def advance(self, blocks: int, now: float) -> None:
        """So many blocks are done."""
        if not self.advanced:
            self._under_way = now
        self.advanced = blocks

    def block_seconds(self, blocks: int, now: float) -> float:
        """What a block took, of so many; the first one, which may have begun late, left out where there are others."""
        if self.advanced and blocks > 1:
            return (now - self._under_way) / (blocks - 1)
        return (now - self.began) / blocks


class Work:
    """The parts that a rank has been given in a round: what it computes now, what comes next, what it has done."""

    def __init__(self) -> None:
        self.todo: deque[Part] = deque()
        self.now: Part | None = None
        self.task = 0
        self.done: dict[Part, Vector] = {}  # kept until the next round: a new keeper is sent its stripe again
        self.said: list[Done] = []  # and a coordinator told again, over a new connection
        self._tasks: dict[int, Task] = {}

    def clear(self) -> None:
        """A new round."""
        self.todo.clear()
        self.now = None
        self.done = {}
        self.said = []
        self._tasks.clear()

    def next(self, now: float) -> Part | None:
        """Begin with what comes next, if there is something."""
        self.now = self.todo.popleft() if self.todo else None
        if self.now is not None:
            self.task += 1
            self._tasks[self.task] = Task(self.now, now)
        return self.now

    @property
    def advanced(self) -> int:
        """Blocks that are done of what is computed now."""
        return self._tasks[self.task].advanced if self.now is not None else 0

    def advance(self, blocks: int, now: float) -> None:
        """So many blocks are done of what is computed now."""
        self._tasks[self.task].advance(blocks, now)

    def ended(self, task: int) -> Task | None:
        """A task was computed, or stopped; what it was, unless nobody needs it."""
        if task == self.task:
            self.now = None
        return self._tasks.pop(task, None)

    def cut(self, unit: int, end: int) -> bool:
        """Of a unit do the blocks before `end` only; whether what is computed now is to be stopped."""
        kept = [Part(unit, part.first, min(part.last, end)) if part.unit == unit else part for part in self.todo]
        self.todo = deque(part for part in kept if part.blocks > 0)
        if self.now is None or self.now.unit != unit or end >= self.now.last:
            return False
        if end <= self.now.first:
            del self._tasks[self.task]  # nobody needs it
            self.now = None
            return True
        self.now = Part(unit, self.now.first, end)
        return self.is_far_enough

    @property
    def is_far_enough(self) -> bool:
        """Whether what is computed now has been cut, and is done up to there."""
        return self.now is not None and self.advanced >= self.now.blocks


class Rank(Machine):
    """The state machine of a rank; rank 0's has a coordinator in it."""

    ROWS = (
        Row((JOINING,), Started, OWN, "_on_started", (STAY, RESTING)),
        Row((JOINING,), Welcome, COORDINATOR, "_on_welcome", (RESTING,)),
        Row(_IN, Welcome, COORDINATOR, "_on_welcome"),
        Row(_ALL, Refuse, COORDINATOR, "_on_refuse", (LEFT,)),
        # a round
        Row((RESTING,), Begin, OWN, "_on_begin", (READY, WORKING, RESTING, RENEWING)),
        Row((RESTING, WORKING, RENEWING), Go, COORDINATOR, "_on_go"),
        Row((READY,), Go, COORDINATOR, "_on_go", (STAY, WORKING, RESTING, RENEWING)),
        Row((ENDING,), Go, COORDINATOR, "_on_go", (STAY, LEFT)),
        Row(_IN, Do, COORDINATOR, "_on_do"),
        Row(_IN, Cut, COORDINATOR, "_on_cut"),
        Row(_IN, Tell, COORDINATOR, "_on_tell"),
        Row((WORKING,), Keep, COORDINATOR, "_on_keep", (STAY, RESTING)),
        Row(_NOT_WORKING, Keep, COORDINATOR, "_on_keep"),
        Row((WORKING,), Computed, OWN, "_on_computed", (STAY, RESTING)),
        Row((WORKING,), Advanced, OWN, "_on_advanced"),
        Row(_IN, Interrupted, OWN, "_on_interrupted"),
        *(Row((WORKING,), PartChunk, who, "_on_part", (STAY, RESTING)) for who in _ANY_RANK),
        *(Row(_NOT_WORKING, PartChunk, who, "_on_part") for who in _ANY_RANK),
        *(Row((WORKING,), SumChunk, who, "_on_sum", (STAY, RESTING)) for who in _ANY_RANK),
        *(Row((READY,), SumChunk, who, "_on_sum", (STAY, RESTING)) for who in (COORDINATOR, PEER)),
        *(Row((RESTING, RENEWING, ENDING), SumChunk, who, "_on_sum") for who in _ANY_RANK),
        # who is behind, and who helps
        *(Row(_IN, Want, who, "_on_want") for who in _ANY_RANK),
        *(Row((WORKING,), Past, who, "_on_past", (STAY, RENEWING)) for who in (COORDINATOR, PEER)),
        *(Row((RENEWING,), StateChunk, who, "_on_state", (STAY, RESTING)) for who in (COORDINATOR, PEER)),
        Row((RESTING,), Renew, COORDINATOR, "_on_must_renew"),
        Row((READY, WORKING), Renew, COORDINATOR, "_on_must_renew", (RENEWING,)),
        Row(_IN, Give, COORDINATOR, "_on_give"),
        Row(_IN, Packed, OWN, "_on_packed"),
        # what the coordinator hears
        Row(_LEADING, Hello, FOLLOWER, "_on_hello"),
        Row(_LEADING, Status, FOLLOWER, "_on_status"),
        Row(_LEADING, Done, FOLLOWER, "_on_done"),
        Row(_LEADING, Renew, FOLLOWER, "_on_renew"),
        Row(_LEADING, Late, FOLLOWER, "_on_late"),
        Row((ENDING,), Have, FOLLOWER, "_on_have", (STAY, LEFT)),
        Row((RESTING, WORKING), Have, FOLLOWER, "_on_have"),
        Row((RESTING,), Goodbye, FOLLOWER, "_on_follower_left"),
        Row((WORKING,), Goodbye, FOLLOWER, "_on_follower_left", (STAY, RESTING)),
        Row((ENDING,), Goodbye, FOLLOWER, "_on_follower_left", (STAY, LEFT)),
        # time and connections
        Row((JOINING, RESTING, READY, RENEWING), TimerFired, OWN, "_on_timer"),
        Row((WORKING,), TimerFired, OWN, "_on_timer", (STAY, RESTING, RENEWING)),
        Row((ENDING,), TimerFired, OWN, "_on_timer", (STAY, LEFT)),
        Row(_ALL, Drained, OWN, "_on_drained"),
        Row((JOINING, RESTING, READY, RENEWING), PeerLost, OWN, "_on_peer_lost"),
        Row((WORKING,), PeerLost, OWN, "_on_peer_lost", (STAY, RESTING)),
        Row((ENDING,), PeerLost, OWN, "_on_peer_lost", (STAY, LEFT)),
        Row(_ALL, PeerFound, OWN, "_on_peer_found"),
        # the end
        Row((RESTING, WORKING, RENEWING, ENDING), End, COORDINATOR, "_on_end"),
        Row((READY,), End, COORDINATOR, "_on_end", (STAY, RENEWING)),
        Row(_ALL, Goodbye, COORDINATOR, "_on_goodbye", (LEFT,)),
        Row((JOINING,), Leave, OWN, "_on_leave", (LEFT,)),
        Row(_IN, Leave, OWN, "_on_leave", (ENDING, LEFT)),
        *(Row((JOINING, *_NOT_WORKING), what, OWN) for what in (Computed, Advanced)),
        *(
            Row((LEFT,), what, OWN)
            for what in (
                Computed, Advanced, Interrupted, TimerFired, PeerFound, PeerLost, Drained, Packed, Leave,
            )
        ),
    )  # fmt: skip

    def __init__(self, node: int, plan: StripedPlan, settings: Settings) -> None:
        super().__init__()
        if settings.on_excess != "wait":
            raise UsageError("striped computes the exact sum as long as a rank is left; on_excess must be 'wait'")
        self.node = node
        self.plan = plan
        self.settings = settings
        self.generation = settings.generation
        self.state: RankState = JOINING
        self.round = settings.after  # the one this rank's own model is in, or has last been in
        self.refused: str | None = None
        self.left_alone: str | None = None  # why this rank may not leave by itself
        self._model: Vector | None = None
        self._digest = ""
        self._go = Go()
        self._where: list[int] = []  # who keeps each chunk of the round that is on
        self._stripes: OrderedDict[int, list[int]] = OrderedDict()  # who kept them in the last rounds
        self._parts_of: tuple[range, ...] = ()
        self.work = Work()
        self.keeper = Keeper(plan.workers, plan.blocks, settings.wire)
        self._sum = Assembly(settings.after + 1, settings)
        self._early: OrderedDict[tuple[int, ...], tuple[PartChunk, Vector]] = OrderedDict()
        self._early_at_most = 2 * plan.workers * -(-settings.chunks // plan.keepers(settings.length, settings.itemsize))
        self._outboxes = {peer: Outbox(peer, settings.window) for peer in plan.computing if peer != node}
        self._lost: set[int] = set()
        self._hellos = 0  # that were not answered
        self._tries = 0
        self._tried_with = -1
        self._began_at = 0.0
        self._round_took = 0.0
        self._must_renew = False
        self._pieces: dict[int, Vector] = {}  # of a state that is taken
        self._pieces_of: tuple[int, int, int] = (-1, 0, 0)  # from whom, after which round, how many
        self._giving: set[int] = set()
        self._end: int | None = None
        self._why = "the run is over"
        self.lead: Coordinating | None = None
        self._roster = Roster([peer for peer in plan.computing if peer], run_name(plan, settings))
        self._witness = Witness(plan.workers, settings.after + 1)
        self._through: set[int] = set()
        self._odd: set[int] = set()  # ranks whose state nobody should take
        self._taking: set[int] = set()  # ranks to whom others were asked to give their state
        if node == 0:
            self.lead = Coordinating(plan, settings, self._told_by_own_coordinator)

    def lacking(self) -> list[int]:
        """On rank 0: the ranks that are not in."""
        return self._roster.lacking()

    @property
    def ended_after(self) -> int | None:
        """The round after which the run is over, if that is known."""
        return self._end

    @property
    def begun(self) -> int:
        """The last round that the coordinator has let begin, as far as this rank knows."""
        return self._go.round

    def _who(self, sender: int) -> From:
        if sender == self.node or sender not in self.plan.computing:
            return STRANGER
        if self.node == 0:
            return FOLLOWER
        return PEER if sender else COORDINATOR

    def _fits(self, message: AnyMessage, data: Vector) -> bool:
        if isinstance(message, StateChunk):
            return message.index < message.of and 0 < len(data) <= STATE_CHUNK
        if isinstance(message, PartChunk):
            part = Part(message.unit, message.first, message.last)
            return self.plan.is_part(part) and self.settings.is_chunk(message.index, len(data))
        return isinstance(message, SumChunk) and self.settings.is_chunk(message.index, len(data))

    # -- joining

    def _on_started(self, event: Started, now: float, actions: list[AnyAction]) -> None:
        if self.lead is not None:
            self.state = RESTING
            if self.plan.workers == 1:
                actions.append(EveryoneIn())
        else:
            self._say_hello(now, actions)

    def _say_hello(self, now: float, actions: list[AnyAction]) -> None:
        hello = Hello(generation=self.generation, round=self.round, plan=self._roster.run)
        actions.append(Transmit(to=0, message=hello))
        self._hellos += 1
        actions.append(SetTimer(name=GREETING, at=now + HELLO_AGAIN * self._hellos))

    def _on_welcome(self, message: Welcome, sender: int, now: float, actions: list[AnyAction]) -> None:
        self.generation = message.generation
        self._hellos = 0
        if self.state is JOINING:
            self.state = RESTING
            actions.append(EveryoneIn())
        elif self.state is ENDING:
            actions.append(Transmit(to=0, message=Have(generation=self.generation, round=self.round)))
        elif self.state is WORKING and self._go.round == self.round:  # what was said last may not have been heard
            self._repeat_done(actions)
            self._tell_status(actions)

    def _on_refuse(self, message: Refuse, sender: int, now: float, actions: list[AnyAction]) -> None:
        self.refused = message.reason
        self._finish(message.reason, actions)

    def _on_hello(self, message: Hello, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        answer = self._roster.answer(sender, message, self.generation, self.lead.round)
        actions.append(Transmit(to=sender, message=answer))
        if isinstance(answer, Refuse):
            actions.append(Note(kind="refused", reason=answer.reason, round=self.round, nodes=(sender,)))
            return
        self._lost.discard(sender)
        self._outboxes[sender].reset()
        self._through.discard(sender)
        self.lead.came(sender, now, actions)
        self._send_again(sender, actions)
        if self._end is not None:
            actions.append(Transmit(to=sender, message=End(generation=self.generation, round=self._end)))

    # -- a round begins

    def _on_begin(self, event: Begin, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round + 1:
            raise ProtocolError(f"round {event.round} cannot follow round {self.round}")
        self.round = event.round
        self._model = event.model
        self._digest = event.digest
        self._began_at = now
        self.state = READY
        if self._must_renew:
            self._renew(now, actions)
            return
        if self.lead is not None:
            if event.digest:
                self._compare(0, event.round, event.digest, actions)
            self._take_go(self.lead.begin(event.round, now, actions), now, actions)
            return
        if event.round == self.settings.after + 1:  # everyone is in when all have said this
            self._tell_status(actions)
        if self._end is not None and event.round > self._end:
            self._is_over(actions)
        elif not self._finish_round(now, actions):
            self._go_on(now, actions)

    def _go_on(self, now: float, actions: list[AnyAction]) -> None:
        """Work, if the round that the script has begun is on; or get what is missing of it, if it is past."""
        if self._go.round == self.round:
            self._begin_work(now, actions)
        elif self._is_behind:
            self.state = WORKING
            self._catch_up(now, actions)

    def _begin_work(self, now: float, actions: list[AnyAction]) -> None:
        self.state = WORKING
        if self.work.todo:
            self._compute_next(now, actions)
        elif self.lead is None:
            self._tell_status(actions)  # it is here, and could be given something

    def _can_do(self, part: Part) -> bool:
        """Whether there is such a part, and this rank can read its samples."""
        return self.plan.is_part(part) and self.node in self.plan.group(part.unit)

    def _on_go(self, message: Go, sender: int, now: float, actions: list[AnyAction]) -> None:
        if self._end is not None and self.state is ENDING and message.round > self.round:
            self.left_alone = (
                f"rank {self.node} left its loop after round {self.round}, and rank 0 goes on: a run ends on all ranks "
                "when rank 0 leaves its loop, or when all leave it after the same round"
            )
            self._finish(self.left_alone, actions)
            return
        if message.round > self._go.round:
            self._take_go(message, now, actions)

    def _take_go(self, go: Go, now: float, actions: list[AnyAction]) -> None:
        self._go = go
        weights = self.plan.weights(self.plan.keepers(self.settings.length, self.settings.itemsize), dict(go.keepers))
        self._parts_of = self.plan.stripes(self.settings.chunks, weights)
        self._where = [rank for rank, stripe in enumerate(self._parts_of) for _ in stripe]
        self._stripes[go.round] = self._where
        while len(self._stripes) > ROUNDS_HELD:
            self._stripes.popitem(last=False)
        for outbox in self._outboxes.values():
            outbox.keep_only(self._is_wanted)
        if self.round < go.round:
            self._stop_computing("the round is over", actions)
        self.work.clear()
        self._take_on(go.parts)
        self.keeper.begin(go.round, self._parts_of[self.node])
        self._replay(now, actions)
        if self._finish_round(now, actions):
            return
        if self.state is READY:
            self._go_on(now, actions)
        elif self.state is WORKING and self.round < go.round:  # it was overtaken
            self._tries = 0
            self._tried_with = self._sum.count
            self._ask_later(now, actions)

    def _take_on(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Add parts to what is to be done in the round that is on, which this rank may not have come to."""
        known = {*self.work.todo, *self.work.done, self.work.now}
        parts = (Part(*place) for place in places)
        self.work.todo.extend(part for part in parts if part not in known and self._can_do(part))

    def _is_wanted(self, message: AnyChunk) -> bool:
        """Whether a chunk that waits to be sent is of use in a round that begins."""
        if isinstance(message, SumChunk):
            return message.round > self._go.round - ROUNDS_HELD
        return isinstance(message, StateChunk) or message.round >= self._go.round

    # -- computing

    def _compute_next(self, now: float, actions: list[AnyAction]) -> None:
        part = self.work.next(now)
        if part is not None:
            assert self._model is not None
            actions.append(
                Compute(
                    round=self.round, task=self.work.task, pieces=self.plan.pieces(part), model=self._model,
                    salvage=True, watched=part.blocks > 1,
                )
            )  # fmt: skip

    def _stop_computing(self, why: str, actions: list[AnyAction]) -> None:
        if self.round >= self._go.round:
            self.work.todo.clear()
        if self.work.now is not None:
            self.work.now = None
            actions.append(Cancel(reason=why))

    def _on_advanced(self, event: Advanced, now: float, actions: list[AnyAction]) -> None:
        if event.round == self.round and event.task == self.work.task and self.work.now is not None:
            self.work.advance(event.pieces, now)
            if self.work.is_far_enough:
                self._move_on(now, actions)

    def _move_on(self, now: float, actions: list[AnyAction]) -> None:
        """Stop what is computed now, which is reported as far as it is done, and begin with what comes next."""
        if self.work.todo:
            self._compute_next(now, actions)
        else:
            self.work.now = None
            actions.append(Cancel(reason="others do the rest"))

    def _on_computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        if event.round != self.round or self.state is not WORKING or self._go.round != self.round:
            return
        task = self.work.ended(event.task)
        if task is not None:
            part = task.part
            if event.pieces and event.pieces < part.blocks:
                part = Part(part.unit, part.first, part.first + event.pieces)
            if self.plan.is_part(part):
                self._deliver(part, task, event.vector, now, actions)
        if self._finish_round(now, actions):
            return
        if self.work.now is None:
            self._compute_next(now, actions)

    def _deliver(self, part: Part, task: Task, vector: Vector, now: float, actions: list[AnyAction]) -> None:
        """Say that a part is done, and send it to the keepers."""
        vector = rounded(vector, self.settings.wire)  # also what does not travel: it must not matter who did it
        self.work.done[part] = vector
        done = Done(
            generation=self.generation, round=self.round, unit=part.unit, first=part.first, last=part.last,
            worked=max(0.0, now - task.began), block=max(0.0, task.block_seconds(part.blocks, now)),
            digest=self._digest,
        )  # fmt: skip
        self._digest = ""
        self.work.said.append(done)
        if self.lead is not None:
            self.lead.done(0, done, now, actions)
        else:
            actions.append(Transmit(to=0, message=done))
        self._send_part(part, vector, self._in_order(), now, actions)

    def _in_order(self) -> Iterator[int]:
        """Chunks as they are sent: the first of each stripe, then the second; beginning behind this rank's own."""
        ranks = self.plan.workers
        stripes = [self._parts_of[(self.node + step) % ranks] for step in range(1, ranks + 1)]
        longest = max(len(stripe) for stripe in stripes)
        return (stripe[place] for place in range(longest) for stripe in stripes if place < len(stripe))

    def _send_part(
        self, part: Part, vector: Vector, chunks: Iterable[int], now: float, actions: list[AnyAction]
    ) -> None:
        for index in chunks:
            keeper, data = self._where[index], self._cut_out(vector, index)
            if keeper == self.node:
                self._keep(part, index, data, now, actions)
            elif keeper not in self._lost:
                self._outboxes[keeper].put(self._part_chunk(part, index), data, actions)

    def _cut_out(self, vector: Vector, index: int) -> Vector:
        return vector[self.settings.chunk_slice(index)]

    def _part_chunk(self, part: Part, index: int) -> PartChunk:
        return PartChunk(
            generation=self.generation, round=self._go.round, unit=part.unit, first=part.first, last=part.last,
            index=index,
        )  # fmt: skip

    def _sum_chunk(self, index: int) -> SumChunk:
        return SumChunk(generation=self.generation, round=self._go.round, index=index)

    # -- what the coordinator says

    def _told_by_own_coordinator(self, message: Message, now: float, actions: list[AnyAction]) -> None:
        match message:
            case Do():
                self._on_do(message, 0, now, actions)
            case Cut():
                self._on_cut(message, 0, now, actions)
            case Keep():
                self._change_keeper(message, now, actions)
            case Tell() if self.lead is not None:
                status = Status(round=self.round, done=self.work.advanced, lacks=tuple(self.keeper.lacks()))
                self.lead.hear(0, status)

    def _on_do(self, message: Do, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round != self._go.round:
            return
        if self.round > message.round or (self.round == message.round and self.state in (RESTING, ENDING)):
            self._say_it_is_done(message, actions)
            return
        self._take_on(message.parts)
        if self.round != message.round or self.state is not WORKING:
            return
        again = [Part(*place) for place in message.parts if Part(*place) in self.work.done]
        for part in again:  # it has not arrived
            self._send_part(part, self.work.done[part], self._in_order(), now, actions)
        if again:
            self._repeat_done(actions)
        if self.work.now is None:
            self._compute_next(now, actions)

    def _say_it_is_done(self, message: Do, actions: list[AnyAction]) -> None:
        """This rank has the sum of the round, so all of it was done, by whomever."""
        for unit, first, last in message.parts:
            done = Done(generation=self.generation, round=message.round, unit=unit, first=first, last=last)
            actions.append(Transmit(to=0, message=done))

    def _on_cut(self, message: Cut, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round == self._go.round and self.work.cut(message.unit, message.end):
            self._move_on(now, actions)

    def _on_tell(self, message: Tell, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round == self.round:
            self._repeat_done(actions)
        self._tell_status(actions)

    def _repeat_done(self, actions: list[AnyAction]) -> None:
        """Say again what was done in this round: it may not have been heard."""
        if self.lead is None:
            actions.extend(Transmit(to=0, message=done) for done in self.work.said)

    def _tell_status(self, actions: list[AnyAction]) -> None:
        status = Status(
            generation=self.generation, round=self.round, done=self.work.advanced,
            lacks=tuple(self.keeper.lacks())[:4096], digest=self._digest,
        )  # fmt: skip
        self._digest = ""
        actions.append(Transmit(to=0, message=status))

    def _on_keep(self, message: Keep, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._change_keeper(message, now, actions)
        self._finish_round(now, actions)

    def _change_keeper(self, message: Keep, now: float, actions: list[AnyAction]) -> None:
        """A stripe has another keeper: all that was sent of it is sent again."""
        if message.round != self._go.round or message.stripe >= len(self._parts_of):
            return
        if message.keeper not in self.plan.computing:
            return
        stripe = self._parts_of[message.stripe]
        for index in stripe:
            self._where[index] = message.keeper
        if message.keeper == self.node:
            self.keeper.take_over(stripe)
            self._replay(now, actions)
        for part, vector in list(self.work.done.items()):
            self._send_part(part, vector, stripe, now, actions)

    # -- keeping

    def _on_part(self, chunk: PartChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        if chunk.round == self._go.round and self.keeper.keeps(chunk.index):
            self._keep(Part(chunk.unit, chunk.first, chunk.last), chunk.index, data, now, actions)
            self._finish_round(now, actions)
        elif chunk.round >= self._go.round:  # what makes it this rank's to keep is on its way
            self._early[chunk.place] = (chunk, data)
            if len(self._early) > self._early_at_most:
                self._early.popitem(last=False)  # if it was needed, it is found to be missing, and done again

    def _replay(self, now: float, actions: list[AnyAction]) -> None:
        """Take what came before this rank knew that it keeps it."""
        early, self._early = self._early, OrderedDict()
        for place, (chunk, data) in early.items():
            if chunk.round == self._go.round and self.keeper.keeps(chunk.index):
                self._keep(Part(chunk.unit, chunk.first, chunk.last), chunk.index, data, now, actions)
            elif chunk.round >= self._go.round:
                self._early[place] = (chunk, data)

    def _keep(self, part: Part, index: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        total = self.keeper.add(part, index, data)
        if total is None:
            return
        message = self._sum_chunk(index)
        for step in range(1, self.plan.workers):
            peer = (self.node + step) % self.plan.workers
            if peer not in self._lost:
                self._outboxes[peer].put(message, total, actions)
        self._take_sum(self._go.round, index, total)

    # -- the sum

    def _on_sum(self, chunk: SumChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        self._take_sum(chunk.round, chunk.index, data)
        self._finish_round(now, actions)

    def _take_sum(self, round_: int, index: int, data: Vector) -> None:
        if round_ == self._sum.round:
            self._sum.add(index, data)

    def _finish_round(self, now: float, actions: list[AnyAction]) -> bool:
        """End the round if all of its sum is here, and the script waits for it."""
        if self.state not in (READY, WORKING) or self._sum.round != self.round or not self._sum.is_complete:
            return False
        if self.lead is not None and self._go.round != self.round:
            return False
        total = self._sum.vector
        assert total is not None
        late = self.lead.over(now) if self.lead is not None else ()
        self._stop_computing("the round is over", actions)
        self.state = RESTING
        self._model = None
        self._round_took = now - self._began_at
        self._sum = Assembly(self.round + 1, self.settings)
        self._tries = 0
        actions.append(Aggregated(round=self.round, vector=total, late=late))
        return True

    # -- a rank that is behind

    def _ask_later(self, now: float, actions: list[AnyAction]) -> None:
        actions.append(SetTimer(name=BEHIND, at=now + max(ASK_AFTER, 0.5 * self._round_took) * (1 + self._tries)))

    def _catch_up(self, now: float, actions: list[AnyAction]) -> None:
        """Ask keepers for what is missing of a past round's sum."""
        where = self._stripes.get(self.round)
        self._tried_with = self._sum.count
        self._tries += 1
        if where is None or self._tries > TRIES:
            self._renew(now, actions)
            return
        asked: dict[int, list[int]] = {}
        for index in self._sum.missing():
            asked.setdefault(where[index], []).append(index)
        for index, data in self.keeper.sums(self.round, asked.pop(self.node, [])):
            self._take_sum(self.round, index, data)
        if self._finish_round(now, actions):
            return
        if not self._lost.isdisjoint(asked):
            self._renew(now, actions)
            return
        for peer, chunks in asked.items():
            for start in range(0, len(chunks), ASKED_AT_ONCE):
                wanted = tuple(chunks[start : start + ASKED_AT_ONCE])
                actions.append(
                    Transmit(to=peer, message=Want(generation=self.generation, round=self.round, chunks=wanted))
                )
        self._ask_later(now, actions)

    def _on_want(self, message: Want, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Send what is here of a sum. Of a past round all of a stripe is, or none: this rank did not keep it."""
        found = list(self.keeper.sums(message.round, message.chunks))
        if not found and message.round < self._go.round:
            actions.append(Transmit(to=sender, message=Past(generation=self.generation, round=message.round)))
        for index, data in found:
            chunk = SumChunk(generation=self.generation, round=message.round, index=index)
            self._outboxes[sender].put(chunk, data, actions)

    def _on_past(self, message: Past, sender: int, now: float, actions: list[AnyAction]) -> None:
        if message.round == self.round and self._is_behind:
            self._renew(now, actions)

    @property
    def _is_behind(self) -> bool:
        """Whether the round that this rank is in is over."""
        return self.round < self._go.round or (self._end is not None and self.round <= self._end)

    def _renew(self, now: float, actions: list[AnyAction]) -> None:
        """Wait for another's state, and take it."""
        self._stop_computing("this rank takes another's state", actions)
        self.state = RENEWING
        self._model = None
        self._pieces = {}
        self._pieces_of = (-1, 0, 0)
        self._must_renew = False
        actions.append(Transmit(to=0, message=Renew(generation=self.generation, round=self.round)))
        actions.append(SetTimer(name=BEHIND, at=now + max(1.0, 2 * self._round_took)))

    def _on_must_renew(self, message: Renew, sender: int, now: float, actions: list[AnyAction]) -> None:
        """This rank has another model than the others: it takes theirs, at once or when its script goes on."""
        if self.state is RESTING:
            self._must_renew = True
        else:
            self._renew(now, actions)

    def _on_state(self, chunk: StateChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        """A piece of a state, later than this rank's own. Only a still later one takes the place of one that comes."""
        if not self.round - 1 <= chunk.round <= self._go.round:
            return
        if (sender, chunk.round, chunk.of) != self._pieces_of:
            if self._pieces and chunk.round <= self._pieces_of[1]:
                return
            self._pieces_of, self._pieces = (sender, chunk.round, chunk.of), {}
        self._pieces[chunk.index] = data
        actions.append(SetTimer(name=BEHIND, at=now + max(1.0, 2 * self._round_took)))
        if len(self._pieces) == chunk.of:
            state = joined([self._pieces[index] for index in range(chunk.of)])
            self._pieces = {}
            self.state = RESTING
            self.round = chunk.round
            self._sum = Assembly(chunk.round + 1, self.settings)
            self._tries = 0
            actions.append(Renewed(round=chunk.round, state=state))

    def _on_give(self, message: Give, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._give_to(message.to, actions)

    def _give_to(self, rank: int, actions: list[AnyAction]) -> None:
        if rank in self._outboxes:
            if not self._giving:
                actions.append(Pack())
            self._giving.add(rank)

    def _on_packed(self, event: Packed, now: float, actions: list[AnyAction]) -> None:
        pieces = range(0, len(event.state), STATE_CHUNK)
        for rank in sorted(self._giving):
            for index, start in enumerate(pieces):
                chunk = StateChunk(generation=self.generation, round=event.round, index=index, of=len(pieces))
                self._outboxes[rank].put(chunk, event.state[start : start + STATE_CHUNK], actions)
        self._giving.clear()

    # -- the coordinator is told

    def _on_status(self, message: Status, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        is_first = message.round == self.settings.after + 1 and self.lead.round == self.settings.after
        if is_first and self._roster.ready(sender) and self._roster.complete:
            actions.append(EveryoneIn())
        self.lead.status(sender, message, now, actions)
        if self.lead.is_current(sender):
            self._taking.discard(sender)
        if message.digest:
            self._compare(sender, message.round, message.digest, actions)

    def _on_done(self, message: Done, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        self.lead.done(sender, message, now, actions)
        if message.digest:
            self._compare(sender, message.round, message.digest, actions)

    def _compare(self, rank: int, round_: int, digest: str, actions: list[AnyAction]) -> None:
        """Look whether a rank's model is the others', and have it take their state if not."""
        assert self.lead is not None
        if round_ not in (self.lead.round, self.lead.round + 1):
            return
        is_first = round_ == self.settings.after + 1  # then it is rank 0's that counts, and others may differ
        for odd in self._witness.hear(rank, round_, digest, self.lead.current()):
            reason = f"rank {odd} has another model than the others in round {round_}"
            if odd:
                reason += "; it takes their state"
                self._odd.add(odd)
                self.lead.must_renew(odd)
                actions.append(Transmit(to=odd, message=Renew(generation=self.generation, round=round_)))
            if not is_first:
                reason += ". Do all ranks take the same steps, with the same optimizer?"
            kind = "renewed" if is_first else "drift"
            actions.append(Note(kind=kind, reason=reason, round=round_, nodes=(odd,)))

    def _on_renew(self, message: Renew, sender: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        self._odd.discard(sender)
        self.lead.must_renew(sender)
        self._find_giver(sender, actions)

    def _find_giver(self, rank: int, actions: list[AnyAction]) -> None:
        """Whoever is at the current round, not always the same; rank 0 itself, if another was asked in vain."""
        assert self.lead is not None
        current = [one for one in self.lead.current() if one not in (0, rank) and one not in self._odd]
        if not current or self.round <= 1 or rank in self._taking:
            self._taking.discard(rank)
            self._give_to(rank, actions)
            return
        self._taking.add(rank)
        giver = current[(rank + self.round) % len(current)]
        actions.append(Transmit(to=giver, message=Give(generation=self.generation, round=self.round, to=rank)))

    def _on_late(self, message: Late, sender: int, now: float, actions: list[AnyAction]) -> None:
        reason = f"rank {sender} was {message.seconds:.3g} s late in round {message.round}"
        actions.append(Note(kind="late", reason=reason, round=message.round, nodes=(sender,), seconds=message.seconds))

    def _on_interrupted(self, event: Interrupted, now: float, actions: list[AnyAction]) -> None:
        """A computation was stopped; if the round was over without it, so late it would have been."""
        if event.round < self.round or self.state is RESTING:
            late = Late(generation=self.generation, round=event.round, node=self.node, seconds=max(0.0, event.seconds))
            if self.lead is None:
                actions.append(Transmit(to=0, message=late))
            else:
                self._on_late(late, 0, now, actions)

    # -- timers

    def _on_timer(self, event: TimerFired, now: float, actions: list[AnyAction]) -> None:
        if event.name == BEHIND:
            self._is_still_behind(now, actions)
        elif event.name == GREETING and self._hellos:
            self._say_hello(now, actions)
        elif event.name == ENDED and self.state is ENDING:
            self._say_goodbye(actions)
        elif self.lead is not None and self.state in (READY, WORKING):
            if event.name == LATE:
                self.lead.look(now, actions)
            elif event.name == TAIL and not self._sum.is_complete:
                self.lead.sum_is_late(self._sum.missing(), self.keeper.lacks(), now, actions)
            elif event.name == WAITING:
                self._say_waiting(now, actions)
            self._finish_round(now, actions)

    def _is_still_behind(self, now: float, actions: list[AnyAction]) -> None:
        if self.state is RENEWING:
            self._renew(now, actions)
        elif self.state is WORKING and self._is_behind:
            if self._sum.count == self._tried_with:
                self._catch_up(now, actions)
            else:  # it comes
                self._tried_with = self._sum.count
                self._ask_later(now, actions)

    def _say_waiting(self, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        waiting = self.lead.waiting_for(self._sum.missing())
        reason = f"round {self.round} has waited {now - self._began_at:.3g} s for ranks {list(waiting)}"
        actions.append(Note(kind="waiting", reason=reason, round=self.round, nodes=waiting))
        actions.append(SetTimer(name=WAITING, at=now + self.settings.say_waiting_after))

    # -- connections

    def _on_drained(self, event: Drained, now: float, actions: list[AnyAction]) -> None:
        if event.peer in self._outboxes:
            self._outboxes[event.peer].drained(actions)

    def _on_peer_lost(self, event: PeerLost, now: float, actions: list[AnyAction]) -> None:
        if event.peer not in self._outboxes:
            return
        self._lost.add(event.peer)
        self._outboxes[event.peer].reset()
        if self.lead is not None:
            self._is_gone(event.peer, now, actions)

    def _is_gone(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        assert self.lead is not None
        self._roster.gone(rank)
        self.lead.gone(rank, now, actions)
        self._finish_round(now, actions)
        if self.state is ENDING:
            self._leave_if_all_through(actions)

    def _on_peer_found(self, event: PeerFound, now: float, actions: list[AnyAction]) -> None:
        if event.peer not in self._outboxes:
            return
        self._lost.discard(event.peer)
        self._outboxes[event.peer].reset()
        if event.peer == 0:
            self._say_hello(now, actions)
        if self.lead is None:  # whom a coordinator is to talk to says hello
            self._send_again(event.peer, actions)

    def _send_again(self, peer: int, actions: list[AnyAction]) -> None:
        """What was on its way over an old connection may be lost: send what a rank should have of this round."""
        for part, vector in self.work.done.items():
            for index in self._in_order():
                if self._where[index] == peer:
                    self._outboxes[peer].put(self._part_chunk(part, index), self._cut_out(vector, index), actions)
        for index, data in self.keeper.sums(self._go.round, range(self.settings.chunks)):
            self._outboxes[peer].put(self._sum_chunk(index), data, actions)

    # -- the end

    def _on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        """Leave when the others are through, too; or at once."""
        self._stop_computing("this rank leaves", actions)
        self._why = event.reason
        if event.at_once or self.state is JOINING:
            self._say_goodbye(actions)
            return
        through = self.round if self.state in (RESTING, ENDING) else self.round - 1
        self.state = ENDING
        self._model = None
        self._pieces = {}
        self.round = through
        self._end = through
        if self.lead is None:
            actions.append(Transmit(to=0, message=Have(generation=self.generation, round=through)))
            return
        self._tell_all(End(generation=self.generation, round=through), actions)
        actions.append(SetTimer(name=ENDED, at=now + max(GRACE, 3 * self._round_took)))
        self._leave_if_all_through(actions)

    def _tell_all(self, message: AnyMessage, actions: list[AnyAction]) -> None:
        actions.extend(Transmit(to=rank, message=message) for rank in self._roster.present())

    def _on_end(self, message: End, sender: int, now: float, actions: list[AnyAction]) -> None:
        if self.state is ENDING:
            if self.round > message.round:
                self.left_alone = f"rank {self.node} is in round {self.round}, and rank 0 ended with {message.round}"
            return
        self._end = message.round
        if self.state in (READY, WORKING) and self.round > message.round:
            self._stop_computing("the run is over", actions)
            self._is_over(actions)
        elif self.state is WORKING:  # what is missing of the last sum, nobody will send unasked
            self._ask_later(now, actions)
        elif self.state is READY:  # its round is over, and nobody told it that it had begun
            self._go_on(now, actions)

    def _is_over(self, actions: list[AnyAction]) -> None:
        """Tell the script that it has had its last round."""
        assert self._end is not None
        actions.append(Ended(round=self._end))

    def _on_have(self, message: Have, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._through.add(sender)
        if self.state is ENDING:
            self._leave_if_all_through(actions)

    def _on_follower_left(self, message: Goodbye, sender: int, now: float, actions: list[AnyAction]) -> None:
        if self.state is not ENDING:
            reason = f"rank {sender} left: {message.reason}"
            actions.append(Note(kind="left", reason=reason, round=self.round, nodes=(sender,)))
        self._is_gone(sender, now, actions)

    def _leave_if_all_through(self, actions: list[AnyAction]) -> None:
        if self.state is ENDING and self.lead is not None and set(self._roster.present()) <= self._through:
            self._say_goodbye(actions)

    def _on_goodbye(self, message: Goodbye, sender: int, now: float, actions: list[AnyAction]) -> None:
        self._stop_computing("the run is over", actions)
        if self._end is None:
            self._end = message.round
        self._finish(message.reason, actions)

    def _say_goodbye(self, actions: list[AnyAction]) -> None:
        goodbye = Goodbye(generation=self.generation, round=self.round, reason=self._why[:1000])
        if self.lead is not None:
            self._tell_all(goodbye, actions)
        else:
            actions.append(Transmit(to=0, message=goodbye))
        self._finish(self._why, actions)

    def _finish(self, why: str, actions: list[AnyAction]) -> None:
        self.state = LEFT
        self._model = None
        self._pieces = {}
        actions.append(Finished(reason=why))

    def held(self) -> int:
        """How many chunks of others' parts it holds, or sums."""
        return self.keeper.held() + len(self._early)

    def check_invariants(self) -> None:
        """Raise if memory or bookkeeping is out of bounds."""
        self.keeper.check_invariants()
        if len(self._early) > self._early_at_most:
            raise AssertionError(f"rank {self.node} holds {len(self._early)} chunks that came too early")
        if self._sum.count > self.settings.chunks:
            raise AssertionError(f"rank {self.node} has more of the sum than there is")
        if self._pieces and self.state is not RENEWING:
            raise AssertionError(f"rank {self.node} holds pieces of a state that it does not take")
        if self.state is WORKING and self._go.round < self.round and not self._is_behind:
            raise AssertionError(f"rank {self.node} works on round {self.round}, which has not begun")
        if (self._model is not None) is not (self.state in (READY, WORKING)):
            raise AssertionError(f"rank {self.node} has a model in state {self.state.name}, or none")
