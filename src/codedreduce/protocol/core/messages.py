"""Messages between nodes.

Every message carries its round and the generation of its plan. The receiver drops a stale message at once. A message is
a small header. Chunks of vectors travel beside it as raw bytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]
#: The longest duration in a message, in seconds: a hundred years, so that a sum of such durations is still a valid
#: time.
LONGEST = 3.2e9

Seconds = Annotated[float, Meta(ge=0.0, le=LONGEST)]
Words = Annotated[str, Meta(max_length=1000)]
Pieces = Annotated[int, Meta(ge=1, le=2**24)]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, gc=False):
    """A message between neighbours."""

    generation: Count = 0
    round: Count = 0


#: Digest of a vector that was computed or is sent; empty if there is none.
Digest = Annotated[bytes, Meta(max_length=16)]

#: Pairs of a rank and the number of its process.
Processes = Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=4096)]


class Voters(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The voters of an election: `ranks`, and also `coming` once all of `ranks` know about `coming`.

    They have this `number`, and were made in generation `made_in`. Process 0 stands for the first process of a rank.
    """

    made_in: Count = 0
    number: Count = 0
    ranks: Processes = ()
    coming: Processes = ()


class Hello(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: asks to join, with its plan. Round and generation are the highest in the child's subtree.

    Rank to leader: asks to join. `process`: which process of the rank this is. `is_in`: the rank was admitted before.
    """

    plan: Words
    is_in: bool = False
    process: Count = 0


class Stand(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: the sender's round and generation, and whether it has lost the leader of that generation.

    `process`: which process of its rank the sender is. `voters`: the voters as the sender knows them. `asks`: the
    receiver is to answer with its own `Stand`.
    """

    lost: bool = True
    asks: bool = False
    process: Count = 0
    voters: Voters = Voters()


class Lead(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to all: the sender is a candidate for this generation, from this round on; it knows these voters."""

    voters_made_in: Count = 0
    voters_number: Count = 0


class Follow(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to candidate: a vote. The sender follows the candidate in this generation, and no rank of an earlier one.

    It carries the sender's round, and which process of its rank the sender is.
    """

    process: Count = 0


class Welcome(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child, leader to rank: the receiver is admitted. `is_late`: after the run has begun.

    The other ranks must know of a late rank. A rank also receives the voters.
    """

    is_late: bool = False
    voters: Voters = Voters()


class Refuse(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: the child is not admitted, for this reason."""

    reason: Words


class Ready(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: all nodes below have joined, except those in `missing` and all nodes below them."""

    missing: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


class Goodbye(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """In either direction: the sender leaves; the run is over for the sender or for the receiver."""

    reason: Words


class Leaving(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent, rank to leader: the sender leaves after this round and takes no part in the next one."""

    reason: Words


class ModelChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: a chunk of the model. The first chunk of a new round supersedes everything before it."""

    index: Count

    @property
    def place(self) -> tuple[int, ...]:
        """Identifies the vector and the chunk within it."""
        return (self.round, self.index)


class ShareChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: a chunk of the gradient sum of a task.

    `covered`: the fraction of the task in the sum; 1 unless the parent sent `Settle`. `late`: the workers below that
    had not delivered when the sum was complete. `worked`: seconds since the child had its model, or was asked for the
    task.
    """

    task: Count
    index: Count
    covered: Fraction = 1.0
    late: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()
    worked: Seconds = 0.0

    @property
    def place(self) -> tuple[int, ...]:
        """Identifies the vector and the chunk within it."""
        return (self.round, self.task, self.index)


class Offer(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: this task is done, after so many seconds. Its sum is on its way, or can be requested."""

    task: Count
    worked: Seconds = 0.0


class Send(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: send these chunks of an offered task; an empty list means all."""

    task: Count
    chunks: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


class Next(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: do this task next; then push its sum, or offer it."""

    task: Count
    push: bool


class Enough(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: this task is no longer needed."""

    task: Count


class Settle(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: send what is there; too many are missing, and the round goes on without them."""


class Late(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent, up to the root: this worker's result of a past round was late by so many seconds."""

    node: Count
    seconds: Seconds


#: A failed rank or node, and the reason.
Trouble = tuple[Count, Annotated[str, Meta(max_length=400)]]
Troubles = Annotated[tuple[Trouble, ...], Meta(max_length=16)]


class Unable(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: the sender cannot do this task in this round; these workers failed at it."""

    task: Count
    troubles: Troubles = ()


class Failure(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent, up to the root: these workers failed. Others do the task; if none can, the run `ends`."""

    troubles: Troubles
    ends: bool = False


class RingChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """To the next node in the ring: a chunk of a segment; partial while the segment is being reduced, then finished."""

    segment: Count
    index: Count
    finished: bool

    @property
    def place(self) -> tuple[int, ...]:
        """Identifies the vector and the chunk within it."""
        return (self.round, self.segment, self.index, self.finished)


Blocks = Annotated[int, Meta(ge=0, le=4096)]
Ranks = Annotated[tuple[Count, ...], Meta(max_length=4096)]
Places = Annotated[tuple[tuple[Count, Blocks, Blocks], ...], Meta(max_length=4096)]


#: Blocks: pairs of a unit and the number of a block in it.
OneBlocks = Annotated[tuple[tuple[Count, Blocks], ...], Meta(max_length=4096)]


class Go(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: the round begins; compute these parts (unit, first block, last block), in this order.

    `reducers`: ranks with an unusual stripe weight in this round, and that weight. `checks`: blocks that other ranks
    compute as well. The rank reports the digests of these blocks before it begins with its parts.
    """

    parts: Places = ()
    reducers: Annotated[tuple[tuple[Count, Blocks], ...], Meta(max_length=4096)] = ()
    checks: OneBlocks = ()


class Check(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: compute these blocks, which other ranks compute as well, and report their digests."""

    blocks: OneBlocks


class Checked(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to leader: the sender's result for this audited block has this digest."""

    unit: Count
    block: Blocks
    digest: Digest


class Passed(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: other ranks computed the same result for this block; parts that contain it may be sent."""

    unit: Count
    block: Blocks
    digest: Digest


class Mistaken(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to all: this rank computed wrongly in this round; so many of its results have been found wrong by now."""

    node: Count
    times: Count


class DamagedChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Reducer to rank: this chunk of the rank's result does not match its digest."""

    unit: Count
    first: Blocks
    last: Blocks
    index: Count


class Do(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: compute these parts as well."""

    parts: Places


class Cut(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: compute only the blocks of this unit before `end`; other ranks compute the rest."""

    unit: Count
    end: Blocks


class Tell(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: requests a `Status`."""


class Status(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to leader: the sender's round, blocks done in the current computation, and units that its stripe waits for.

    `begun`: the last round for which the rank received `Go`. `is_idle`: the rank knows of no work to do.
    """

    done: Blocks = 0
    lacks: Ranks = ()
    digest: Words = ""  # of the model, if models are compared
    begun: Count = 0
    is_idle: bool = False


class Done(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to leader: these blocks are computed, and on their way to the reducers.

    `worked`: seconds since the rank began with them. `block`: seconds for one block once the computation was under way.
    """

    unit: Count
    first: Blocks
    last: Blocks
    worked: Seconds = 0.0
    block: Seconds = 0.0
    digest: Words = ""  # of the model that they were computed with, if models are compared


class NewReducer(Message, frozen=True, kw_only=True, array_like=True, tag="Keep"):
    """Leader to all: rank `reducer` reduces the stripe of rank `stripe` for the rest of the round."""

    stripe: Count
    reducer: Count


class PartChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to reducer: a chunk of the sum of some blocks of a unit; with a digest if these blocks are audited."""

    unit: Count
    first: Blocks
    last: Blocks
    index: Count
    digest: Digest = b""

    @property
    def place(self) -> tuple[int, ...]:
        """Identifies the vector and the chunk within it."""
        return (0, self.round, self.unit, self.first, self.last, self.index)


class SumChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Reducer to all: a chunk of the round's sum."""

    index: Count

    @property
    def place(self) -> tuple[int, ...]:
        """Identifies the vector and the chunk within it."""
        return (1, self.round, self.index)


class Want(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to reducer: the sender misses these chunks of a past round's sum."""

    chunks: Annotated[tuple[Count, ...], Meta(max_length=4096)]


class Past(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Reducer to rank: the sender does not have the sum of that round, or no longer has it."""


class Renew(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to leader: the sender cannot catch up. Leader to rank: the rank must not go on with its own state.

    In either case the rank takes the state of another.
    """


class Give(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to rank: send the state before this round, or a later one, to rank `to`."""

    to: Count


class StateOffer(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: the sender's state after a round is packed, in `of` pieces; only an equal state has this digest."""

    of: Pieces
    digest: Words = ""


class Take(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: send these pieces of the offered state; an empty list means that no more are needed."""

    pieces: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


class StateChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: piece `index`, of `of` pieces, of the state after a round."""

    index: Count
    of: Pieces

    @property
    def place(self) -> tuple[int, ...]:
        """Identifies the vector and the chunk within it."""
        return (2, self.round, self.index)


class End(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Leader to all: the run is over after this round."""


class Have(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to leader: the sender has finished the last round."""


AnyMessage = (
    Hello
    | Welcome
    | Refuse
    | Ready
    | Goodbye
    | Leaving
    | ModelChunk
    | ShareChunk
    | Offer
    | Send
    | Next
    | Enough
    | Settle
    | Late
    | Unable
    | Failure
    | RingChunk
    | Go
    | Do
    | Cut
    | Tell
    | Status
    | Done
    | NewReducer
    | Check
    | Checked
    | Passed
    | Mistaken
    | DamagedChunk
    | PartChunk
    | SumChunk
    | Want
    | Past
    | Renew
    | Give
    | StateOffer
    | Take
    | StateChunk
    | End
    | Have
    | Stand
    | Lead
    | Follow
)

#: Messages that carry a chunk of a vector. All others are small and must never wait behind these.
DATA = (ModelChunk, ShareChunk, RingChunk, PartChunk, SumChunk, StateChunk)
AnyChunk = ModelChunk | ShareChunk | RingChunk | PartChunk | SumChunk | StateChunk
