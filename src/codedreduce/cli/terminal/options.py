"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Annotated

import typer

from codedreduce.errors import UsageError
from codedreduce.schemes.names import SCHEMES, parse_tree
from codedreduce.topology import Tree
from codedreduce.units import human_bytes

#: Default number of tolerated stragglers under each parent.
TOLERATED = 1

#: Limits: processes on one host, simulated nodes, and rounds of a comparison.
MOST_PROCESSES = 2000
MOST_SIMULATED = 100_000
MOST_ROUNDS = 1_000_000

Stragglers = Annotated[
    int | None, typer.Option(min=0, show_default="1", help="Stragglers tolerated under each parent of the tree.")
]
Order = Annotated[
    str | None,
    typer.Option(
        show_default="progressive",
        help="For coded-reduce, when to do redundant work: progressive (if needed) or eager (always).",
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Seed of data, batches and delays; the same seed repeats the run.")
]

Inject = Annotated[str | None, typer.Option(help="Delay workers artificially: stalls:0.05:0.5s, bursty, ...")]
OnExcess = Annotated[
    str,
    typer.Option(
        help="For trees, if more workers are late than tolerated: wait, or approximate (go on and report it)."
    ),
]
Units = Annotated[
    int | None,
    typer.Option(
        min=1, help="For striped: units per batch; the same number gives a bit-identical model; default one per worker."
    ),
]
Audit = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Fraction of the gradients that a second worker recomputes for comparison: 0.02 is 2 %."
    ),
]
Quarantine = Annotated[
    int,
    typer.Option(
        min=1, help="Number of wrong results after which a worker is quarantined, that is, gets no more work."
    ),
]
SayWaitingAfter = Annotated[
    str, typer.Option(help="Time after which a blocked round reports the ranks that it waits for.")
]


def parse_workers(text: str | None, default: int, most: int) -> tuple[int, int]:
    """The minimum and maximum number of processes, from 12 or 4:12; `most` is the limit.

    >>> parse_workers("4:12", 6, 1000), parse_workers("12", 6, 1000), parse_workers(None, 6, 1000)
    ((4, 12), (12, 12), (6, 6))
    """
    if text is None:
        return default, default
    match = re.fullmatch(r"(?:(\d{1,18}):)?(\d{1,18})", text)
    if match is None:
        raise UsageError(f"`--workers {text}`: write 12, or 4:12 for at least 4 and at most 12")
    maximum = int(match[2])
    minimum = int(match[1] or maximum)
    if minimum > maximum:
        raise UsageError(f"`--workers {text}`: the minimum ({minimum}) exceeds the maximum ({maximum}); write 4:12")
    if minimum < 1:
        raise UsageError(f"`--workers {text}`: a run needs at least 1 worker")
    check_processes(maximum, f"--workers {text}", most)
    return minimum, maximum


def check_processes(count: int, said: str, most: int = MOST_PROCESSES) -> None:
    """Refuse more processes than can be started."""
    if count > most:
        raise UsageError(f"`{said}`: {count:,} workers exceed the limit of {most:,} processes; use fewer")


def parse_shape(tree: str, stragglers: int | None, *, most: int, why: str) -> Tree:
    """The tree that the text describes, with at most `most` workers."""
    shape = parse_tree(tree, TOLERATED if stragglers is None else stragglers)
    if shape.workers > most:
        raise UsageError(f"`--tree {tree}`: {shape.workers:,} workers are too many {why}; use {most:,} or fewer")
    return shape


def check_scheme_options(
    names: Sequence[str], *, stragglers: int | None = None, order: str | None = None, code: str | None = None
) -> None:
    """Refuse an option that none of these schemes supports."""
    for option, value, having in (
        ("--stragglers", stragglers, ("coded-reduce", "gradient-coding", "live-compensation")),
        ("--order", order, ("coded-reduce",)),
        ("--code", code, ("coded-reduce", "gradient-coding")),
    ):
        if value is not None and all(name in SCHEMES and name not in having for name in names):
            raise UsageError(
                f"`{option} {value}`: {names[0]} does not support this option; use it with {', '.join(having)}"
            )


def check_memory(samples: int, parameters: int) -> None:
    """Refuse data that exceed the memory of this host."""
    needed, there = 4 * samples * parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UsageError(
            f"{samples:,} samples of {parameters:,} parameters need {human_bytes(needed)}, but this host has "
            f"{human_bytes(there)} of memory; reduce --samples or --parameters"
        )
