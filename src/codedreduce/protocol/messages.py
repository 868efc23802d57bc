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


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, gc=False):
    """A message between neighbours."""

    generation: Count = 0
    round: Count = 0


class Hello(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: I am here, with this plan."""

    plan: Words


class Welcome(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: you are in."""


class Refuse(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Parent to child: you cannot be in, for this reason."""

    reason: Words


class Ready(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Child to parent: everyone below me is in."""


class Goodbye(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """Either way: I am leaving; the run is over for you, or for me."""

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


class RingChunk(Message, frozen=True, kw_only=True, array_like=True, tag=True):
    """To the next in the ring: a part of a segment; partial while it is being reduced, then finished."""

    segment: Count
    index: Count
    finished: bool

    @property
    def place(self) -> tuple[int, ...]:
        """What it is a part of, and which."""
        return (self.round, self.segment, self.index, self.finished)


AnyMessage = (
    Hello
    | Welcome
    | Refuse
    | Ready
    | Goodbye
    | ModelChunk
    | ShareChunk
    | Offer
    | Send
    | Next
    | Enough
    | Settle
    | Late
    | RingChunk
)

#: Messages that carry a chunk of a vector; all others are small and must never wait behind these.
DATA = (ModelChunk, ShareChunk, RingChunk)
AnyChunk = ModelChunk | ShareChunk | RingChunk
