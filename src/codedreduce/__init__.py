"""Exact synchronous gradient aggregation that does not wait for its slowest machine.

The layers, each importing only from those before it:

    codes, topology     gradient codes; trees
    schemes             a scheme with workers and samples is a plan: which rank computes what, what each parent needs
    protocol            state machines without I/O: root, worker, ring node, rank
    memory, process     shared memory; processes of this host
    run                 what the nodes of a run agree on, and the events of a run
    net, node           sockets and sessions; one node of a run
    launch, simulator   processes of a run, here and over ssh; the state machines in virtual time
    training            objectives, optimizers, data, the loop
    torch, lab          PyTorch; a cluster of network namespaces on this host
    lightning, transformers   trainers of these libraries, over torch
    comparison          schemes side by side, simulated or in real processes
    report              pictures and tables
    cli                 the command line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from codedreduce.errors import CodedReduceError, MissingExtra, TooManyStragglers, UsageError
from codedreduce.schemes import (
    CodedReduce,
    GradientCoding,
    LiveCompensation,
    MasterWorker,
    Plan,
    RingAllReduce,
    Scheme,
    Striped,
)
from codedreduce.topology import Tree

if TYPE_CHECKING:
    from codedreduce.training import train

__all__ = [
    "CodedReduce",
    "CodedReduceError",
    "GradientCoding",
    "LiveCompensation",
    "MasterWorker",
    "MissingExtra",
    "Plan",
    "RingAllReduce",
    "Scheme",
    "Striped",
    "TooManyStragglers",
    "Tree",
    "UsageError",
    "train",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `train` at its first use: it needs sockets and processes, but plans do not."""
    if name == "train":
        from codedreduce.training import train

        return train
    raise AttributeError(f"module 'codedreduce' has no attribute {name!r}")
