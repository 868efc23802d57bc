"""What nodes say to each other.

Every message carries its round and the generation of the plan it speaks of; whatever is stale is dropped on sight.
A message is a small header. Chunks of vectors travel beside it as raw bytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]
#: Seconds that anything may be said to have taken: a hundred years, so that sums of them are moments still.
LONGEST = 3.2e9

Seconds = Annotated[float, Meta(ge=0.0, le=LONGEST)]
Words = Annotated[str, Meta(max_length=1000)]
Pieces = Annotated[int, Meta(ge=1, le=2**24)]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, gc=False):
    """A message between neighbours."""

    generation: Count = 0
    round: Count = 0


#: Of what was computed, or is sent; none is empty.
Digest = Annotated[bytes, Meta(max_length=16)]

#: Ranks, and which process of each.
Processes = Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=4096)]


class Voters(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Whose word counts when it is decided who leads: `ranks`, and when all of those know of them, `coming`, too.

    They are the `number`th, and were made in generation `made_in`. A process that is 0 is whichever was there first.
    """

    made_in: Count = 0
    number: Count = 0
    ranks: Processes = ()
    coming: Processes = ()


class Hello(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: I am here, with this plan; round and generation are the highest that were seen here or below.

    Rank to coordinator: I am here, and which process of mine; `is_in`: and have been let in before.
    """

    plan: Words
    is_in: bool = False
    process: Count = 0


class Stand(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: the round I am in, and the generation I follow; I have lost its coordinator, or have not.

    Beside it, which process of its rank this is, and whose word counts as far as it knows. `asks`: say how it is with
    you.
    """

    lost: bool = True
    asks: bool = False
    process: Count = 0
    voters: Voters = Voters()


class Lead(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to all: I would lead this generation, from this round on; the voters that I know are of that number."""

    voters_made_in: Count = 0
    voters_number: Count = 0


class Follow(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to one that would lead: I follow you in this generation, and nobody of an earlier one.

    My round, and which process of my rank I am.
    """

    process: Count = 0


class Welcome(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child, coordinator to rank: you are in. `is_late`: into a run that is on, and the others must know.

    A rank is told whose word counts when it is decided who leads.
    """

    is_late: bool = False
    voters: Voters = Voters()


class Refuse(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: you cannot be in, for this reason."""

    reason: Words


class Ready(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: everyone below me is in, but for those that are missing, and for all below them."""

    missing: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


class Goodbye(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Either way: I am leaving; the run is over for you, or for me."""

    reason: Words


class Leaving(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent, rank to coordinator: I leave after this round; do not count on me in the next."""

    reason: Words


class ModelChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: a part of the model. The first chunk of a new round supersedes everything before it."""

    index: Count

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (self.round, self.index)


class ShareChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: a part of the gradient sum of a task.

    `covered` is the part of the task that is in it: 1 unless somebody asked to settle for less. `late` names the
    workers below that had not delivered when the sum was complete. `worked`: how long the child has had its model, or
    has been asked for the task.
    """

    task: Count
    index: Count
    covered: Fraction = 1.0
    late: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()
    worked: Seconds = 0.0

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (self.round, self.task, self.index)


class Offer(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: this task is done, after so much work, and its sum is on its way or yours for the asking."""

    task: Count
    worked: Seconds = 0.0


class Send(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: send me these chunks of a task you offered; none named means all."""

    task: Count
    chunks: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


class Next(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: do this task next; push its sum when it is done, or offer it."""

    task: Count
    push: bool


class Enough(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: this task is no longer needed."""

    task: Count


class Settle(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: send what you have; too many are missing and the round goes on without them."""


class Late(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent, up to the root: this worker's result of a past round came this long after it was over."""

    node: Count
    seconds: Seconds


#: Who failed, and for which reason.
Trouble = tuple[Count, Annotated[str, Meta(max_length=400)]]
Troubles = Annotated[tuple[Trouble, ...], Meta(max_length=16)]


class Unable(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: this task will not come from me in this round; these workers failed at it."""

    task: Count
    troubles: Troubles = ()


class Failure(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent, up to the root: these workers failed, and others do it; or nobody can: the run `ends`."""

    troubles: Troubles
    ends: bool = False


class RingChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """To the next in the ring: a part of a segment; partial while it is being reduced, then finished."""

    segment: Count
    index: Count
    finished: bool

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (self.round, self.segment, self.index, self.finished)


Blocks = Annotated[int, Meta(ge=0, le=4096)]
Ranks = Annotated[tuple[Count, ...], Meta(max_length=4096)]
Places = Annotated[tuple[tuple[Count, Blocks, Blocks], ...], Meta(max_length=4096)]


#: Blocks: of which unit, and which.
OneBlocks = Annotated[tuple[tuple[Count, Blocks], ...], Meta(max_length=4096)]


class Go(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: the round begins; do these parts (unit, first block, last block), in this order.

    `keepers`: ranks whose stripes weigh something else than usual in this round, and what they weigh. `checks`: blocks
    that others compute, and whose digests the rank is to say before it begins with its parts.
    """

    parts: Places = ()
    keepers: Annotated[tuple[tuple[Count, Blocks], ...], Meta(max_length=4096)] = ()
    checks: OneBlocks = ()


class Check(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: compute these blocks, which others compute, too, and say their digests."""

    blocks: OneBlocks


class Checked(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to coordinator: what I computed of this block, which is audited, has this digest."""

    unit: Count
    block: Blocks
    digest: Digest


class Passed(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: others have computed the same of this block; you may send what it is in."""

    unit: Count
    block: Blocks
    digest: Digest


class Mistaken(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to all: this rank computed wrongly in this round, and has been found to so many times."""

    node: Count
    times: Count


class DamagedChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Keeper to rank: this chunk of what you computed is not what you said it is."""

    unit: Count
    first: Blocks
    last: Blocks
    index: Count


class Do(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: do these parts, too."""

    parts: Places


class Cut(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: of this unit do the blocks before `end` only; others do the rest, or have done it."""

    unit: Count
    end: Blocks


class Tell(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: how far are you?"""


class Status(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to coordinator: the round it is in; blocks it has done of what it computes; units its stripe waits for.

    `begun`: the last round it was told to begin. `is_idle`: it knows of nothing that it is to do.
    """

    done: Blocks = 0
    lacks: Ranks = ()
    digest: Words = ""  # of its model, where that is to be compared
    begun: Count = 0
    is_idle: bool = False


class Done(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to coordinator: these blocks are computed, and on their way to the keepers.

    `worked`: seconds since the rank began with them. `block`: seconds that a block took once it was under way.
    """

    unit: Count
    first: Blocks
    last: Blocks
    worked: Seconds = 0.0
    block: Seconds = 0.0
    digest: Words = ""  # of the model they were computed with, where that is to be compared


class Keep(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to all: the stripe of this rank is kept by that one, for the rest of the round."""

    stripe: Count
    keeper: Count


class PartChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to keeper: a chunk of the sum of some blocks of a unit, and where these are audited its digest."""

    unit: Count
    first: Blocks
    last: Blocks
    index: Count
    digest: Digest = b""

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (0, self.round, self.unit, self.first, self.last, self.index)


class SumChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Keeper to all: a chunk of the round's sum."""

    index: Count

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (1, self.round, self.index)


class Want(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to keeper: I have not got these chunks of a past round's sum."""

    chunks: Annotated[tuple[Count, ...], Meta(max_length=4096)]


class Past(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Keeper to rank: I do not have the sum of that round, or no longer."""


class Renew(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to coordinator: I cannot catch up, or coordinator to rank: you must not go on as you are.

    Either way the rank takes the state of another.
    """


class Give(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to rank: give your state to that one, as it is before this round, or later."""

    to: Count


class StateOffer(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: my state after a round is packed, in so many pieces; only the same state has this digest."""

    of: Pieces
    digest: Words = ""


class Take(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: send me these pieces of the state that you offered; none: I need no more of it."""

    pieces: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


class StateChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to rank: a piece, `index` of `of`, of the state after a round."""

    index: Count
    of: Pieces

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (2, self.round, self.index)


class End(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Coordinator to all: the run is over after this round."""


class Have(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Rank to coordinator: I am through with the last round."""


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
    | Keep
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

#: Messages that carry a chunk of a vector; all others are small and must never wait behind these.
DATA = (ModelChunk, ShareChunk, RingChunk, PartChunk, SumChunk, StateChunk)
AnyChunk = ModelChunk | ShareChunk | RingChunk | PartChunk | SumChunk | StateChunk
