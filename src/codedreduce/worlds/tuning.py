"""What the nodes of a real run agree on, chosen for where they run."""

from __future__ import annotations

from codedreduce.protocol import Settings

#: Elements in a chunk between processes of one machine, where a chunk is a reference into shared memory.
LOCAL_CHUNK = 1 << 20

#: Seconds a worker may be later than another before it counts as late: less is the scheduler's noise.
LEAST_HEAD_START = 0.01


def settings_for(length: int, *, shared_memory: bool, itemsize: int = 4) -> Settings:
    """Settings for vectors of so many numbers, each `itemsize` bytes on the wire."""
    if not shared_memory:
        return Settings(length=length, itemsize=itemsize, least_head_start=LEAST_HEAD_START)
    return Settings(
        length=length, itemsize=itemsize, chunk=LOCAL_CHUNK, announce=length > LOCAL_CHUNK,
        least_head_start=LEAST_HEAD_START,
    )  # fmt: skip
