"""What the nodes of a real run agree on, chosen for where they run."""

from __future__ import annotations

from codedreduce.protocol import Settings

#: Elements in a chunk between processes of one machine, where a chunk is a reference into shared memory.
LOCAL_CHUNK = 1 << 20

#: Seconds a worker may be later than another before it counts as late: less is the scheduler's noise.
LEAST_HEAD_START = 0.01

#: Bytes of a vector from which a sum is offered ahead of its bytes. A smaller one is itself as quick as the head start
#: of its replicas, and the offer would only be another message to handle.
WORTH_ANNOUNCING = 1 << 16


def settings_for(length: int, *, shared_memory: bool, itemsize: int = 4) -> Settings:
    """Settings for vectors of so many numbers, each `itemsize` bytes on the wire."""
    if not shared_memory:
        return Settings(
            length=length, itemsize=itemsize, announce=worth_announcing(length, itemsize),
            least_head_start=LEAST_HEAD_START,
        )  # fmt: skip
    return Settings(
        length=length, itemsize=itemsize, chunk=LOCAL_CHUNK, announce=length > LOCAL_CHUNK,
        least_head_start=LEAST_HEAD_START,
    )  # fmt: skip


def worth_announcing(length: int, itemsize: int = 4) -> bool:
    """Whether a sum of so many numbers is offered ahead of its bytes over a network."""
    return length * itemsize >= WORTH_ANNOUNCING
