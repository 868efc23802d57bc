"""The settings of a real run, chosen for the hosts and connections it uses."""

from __future__ import annotations

import math
import os

from codedreduce.protocol import Settings
from codedreduce.protocol.core.settings import CHUNK_ELEMENTS, Dtype
from codedreduce.schemes import Plan, StripedPlan
from codedreduce.schemes.striped import OVER_A_NETWORK, Costs

#: Elements in a chunk between processes of one host, where a chunk is a reference into shared memory.
LOCAL_CHUNK = 1 << 20

#: Number of chunks of a vector over a network, unless they would be smaller than `LEAST_CHUNK` elements.
CHUNKS = 16
LEAST_CHUNK = 1 << 14

#: Approximate bytes of a chunk of a stripe over a network: small, since all sums grow at the same time.
STRIPE_CHUNK = 1 << 16

#: Bytes that a core adds up in shared memory while all ranks handle the messages to and from one more reducer. With 8
#: ranks on two cores a second reducer pays from about 1 million float32 on.
LOCAL_BYTES_A_MESSAGE = 16e6

#: Bytes in flight to a neighbour over a network, and limits on the number of chunks.
IN_FLIGHT = 1 << 18
LEAST_WINDOW, MOST_WINDOW = 4, 16

#: References in flight to a rank with shared memory: they are small, and acknowledgements are messages, too.
LENT_WINDOW = 32

#: Seconds that a worker may be behind another before it counts as late: less is noise of the OS scheduler.
LEAST_HEAD_START = 0.01

#: Timeout in seconds for vectors while their usual time is unknown, on one host and over a network.
UNKNOWN_LOCAL, UNKNOWN_NETWORK = 1.0, 5.0

#: Bytes of a vector from which a sum is announced before it is sent. A smaller one arrives within the head start of its
#: replicas, and the announcement would only be another message to handle.
WORTH_ANNOUNCING = 1 << 16


def settings_for(
    plan: Plan, length: int, *, shared_memory: bool, same_machine: bool, dtype: Dtype, wire: Dtype | None
) -> Settings:
    """Settings for vectors of `length` numbers."""
    itemsize = (wire or dtype).itemsize
    costs = Costs(LOCAL_BYTES_A_MESSAGE, os.cpu_count() or 1) if shared_memory else OVER_A_NETWORK
    if isinstance(plan, StripedPlan):
        about = math.inf if shared_memory else LOCAL_CHUNK * itemsize if same_machine else STRIPE_CHUNK
        chunk = plan.chunk(length, itemsize, about, costs)
    else:
        chunk = LOCAL_CHUNK if shared_memory else chunk_over_network(length)
    if isinstance(plan, StripedPlan) and shared_memory:
        window = LENT_WINDOW
    else:
        window = LEAST_WINDOW if shared_memory or same_machine else window_over_network(min(chunk, length) * itemsize)
    return Settings(
        length=length, dtype=dtype, wire=wire, chunk=chunk, least_head_start=LEAST_HEAD_START, costs=costs,
        unknown_seconds=UNKNOWN_LOCAL if shared_memory or same_machine else UNKNOWN_NETWORK,
        window=window, announce=length > LOCAL_CHUNK if shared_memory else worth_announcing(length, itemsize),
    )  # fmt: skip


def chunk_over_network(length: int) -> int:
    """Elements in a chunk over a network: few enough that the levels of a tree work at the same time.

    >>> chunk_over_network(50_000), chunk_over_network(1_000_000), chunk_over_network(100_000_000)
    (16384, 62500, 262144)
    """
    return min(CHUNK_ELEMENTS, max(LEAST_CHUNK, -(-length // CHUNKS)))


def window_over_network(chunk_bytes: int) -> int:
    """Chunks in flight over a network: more if they are small, for fewer acknowledgements.

    >>> window_over_network(23_000), window_over_network(1 << 20)
    (11, 4)
    """
    return max(LEAST_WINDOW, min(MOST_WINDOW, IN_FLIGHT // chunk_bytes))


def worth_announcing(length: int, itemsize: int) -> bool:
    """Whether a sum of `length` numbers is announced before it is sent over a network."""
    return length * itemsize >= WORTH_ANNOUNCING
