"""Select the default scheme by a cost model of a round without computation.

There are N workers, a vector of V bytes and links of B bytes per second. A node handles a message in c seconds. In
stripes every node carries about two vectors each way and handles 4 (N - 1) messages. In a tree of fan-out n and depth L
an inner node carries 2n vectors. It sends them in C chunks, so that the levels work at the same time. Each level
handles 2n messages:

    striped   2 (N - 1)/N V/B + 4 (N - 1) c
    tree      2 n (1 + (L - 1)/C) V/B + 2 n L c

Stripes suit long vectors, because all links share the bytes. Trees suit short ones, because they send few messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from codedreduce.schemes.names import default_scheme
from codedreduce.schemes.scheme import CodedReduce, Scheme, Striped

#: The default rate of a link, in bytes per second: 1 Gbit/s.
NETWORK_RATE = 125e6

#: Seconds in which a node handles a message.
MESSAGE_SECONDS = 50e-6

#: The largest number of chunks into which a tree cuts a vector, and the smallest size of a chunk in bytes.
TREE_CHUNKS, TREE_CHUNK_BYTES = 16, 1 << 16

#: The largest number of ranks for which PyTorch uses stripes: each rank connects to all others.
MOST_RANKS = 300


@dataclass(frozen=True)
class Choice:
    """A scheme, and the reason for it."""

    scheme: Scheme
    reason: str


def striped_seconds(workers: int, size: float, rate: float) -> float:
    """Seconds of a round in stripes, without computation."""
    return 2 * (workers - 1) / workers * size / rate + 4 * (workers - 1) * MESSAGE_SECONDS


def tree_seconds(fanout: int, depth: int, size: float, rate: float) -> float:
    """Seconds of a round over a tree, without computation."""
    chunks = max(1, min(TREE_CHUNKS, size // TREE_CHUNK_BYTES))
    return 2 * fanout * (1 + (depth - 1) / chunks) * size / rate + 2 * fanout * depth * MESSAGE_SECONDS


def choose(
    workers: int, length: int, *, shared_memory: bool, stragglers: int = 1, rate: float = NETWORK_RATE,
    audited: bool = False,
) -> Choice:  # fmt: skip
    """Stripes or a tree, for this number of workers, length of vectors, and rate of links in bytes per second.

    >>> choose(84, 5_800, shared_memory=False).scheme.label
    'coded-reduce progressive s=1'
    >>> print(choose(84, 2_000_000, shared_memory=False).reason)
    stripes of 8 MB over 84 workers cost about 0.14 s a round, a tree 0.58 s
    >>> choose(84, 5_800, shared_memory=False, rate=60e6 / 8).scheme.label
    'striped'
    >>> choose(6, 5_800, shared_memory=True, audited=True).scheme.label
    'striped'
    """
    if audited:
        return Choice(Striped(workers), "audits need stripes: they compare the partial sums of ranks")
    tree = default_scheme(workers, stragglers)
    assert isinstance(tree, CodedReduce)
    if shared_memory:
        reason = "in shared memory no vector is sent; a tree sends fewer messages, and only its root takes the step"
        return Choice(tree, reason)
    size = length * 4  # float32
    in_stripes = striped_seconds(workers, size, rate)
    over_tree = tree_seconds(tree.tree.fanout, tree.tree.depth, size, rate)
    what = f"stripes of {size / 1e6:.3g} MB over {workers} workers cost about {in_stripes:.2g} s a round, a tree"
    return Choice(Striped(workers) if in_stripes < over_tree else tree, f"{what} {over_tree:.2g} s")


def choose_to_replicate(processes: int, stragglers: int = 1) -> Choice:
    """For PyTorch, where every process should compute and step: stripes, unless there are too many to connect to each.

    >>> choose_to_replicate(8).scheme
    Striped(ranks=8, reach='all', blocks=None, stripes=None, units=None)
    """
    if processes <= MOST_RANKS:
        return Choice(Striped(processes), "every process computes and steps")
    reason = f"{processes} processes are too many for each to connect to all; the first is the root of a tree"
    return Choice(default_scheme(processes - 1, stragglers), reason)
