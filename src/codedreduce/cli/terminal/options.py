"""Options that several commands have."""

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

#: Stragglers under each parent when nothing is said.
TOLERATED = 1

#: Processes that are started on one machine at most, nodes that are simulated, and rounds that are compared.
MOST_PROCESSES = 2000
MOST_SIMULATED = 100_000
MOST_ROUNDS = 1_000_000

Stragglers = Annotated[
    int | None, typer.Option(min=0, show_default="1", help="Stragglers tolerated under each parent of a tree.")
]
Order = Annotated[str | None, typer.Option(show_default="progressive", help="Of coded-reduce: progressive or eager.")]
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Of data, batches and delays: the same seed, the same run.")
]

OnExcess = Annotated[
    str,
    typer.Option(help="When more are late than tolerated: wait, or approximate (go on with the rest, and say so)."),
]
Units = Annotated[
    int | None,
    typer.Option(
        min=1, help="Stripes: cut a batch into so many units, from which the bits follow; one a worker, without."
    ),
]
Audit = Annotated[
    float,
    typer.Option(min=0, max=1, help="Have such a part of all gradients computed twice, and compared: 0.02 is 2 %."),
]
Quarantine = Annotated[
    int,
    typer.Option(min=1, help="How often a worker may be found to have computed wrongly; then it is not used any more."),
]
SayWaitingAfter = Annotated[str, typer.Option(help="How long a round that cannot end waits before it says for whom.")]


def parse_workers(text: str | None, default: int, most: int) -> tuple[int, int]:
    """How many processes at least and at most: 12, or 4:12; `most` of them can be started.

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
    """Refuse what no machine could start."""
    if count > most:
        raise UsageError(f"`{said}`: {count:,} workers are more than the {most:,} that can be started; take fewer")


def parse_shape(tree: str, stragglers: int | None, *, most: int, why: str) -> Tree:
    """The tree that is named, of so many workers at most."""
    shape = parse_tree(tree, TOLERATED if stragglers is None else stragglers)
    if shape.workers > most:
        raise UsageError(f"`--tree {tree}`: {shape.workers:,} workers are too many {why}; take {most:,} or fewer")
    return shape


def check_scheme_options(
    names: Sequence[str], *, stragglers: int | None = None, order: str | None = None, code: str | None = None
) -> None:
    """Refuse an option that none of these schemes has."""
    for option, value, having in (
        ("--stragglers", stragglers, ("coded-reduce", "gradient-coding", "live-compensation")),
        ("--order", order, ("coded-reduce",)),
        ("--code", code, ("coded-reduce", "gradient-coding")),
    ):
        if value is not None and all(name in SCHEMES and name not in having for name in names):
            raise UsageError(f"`{option} {value}`: {names[0]} has no such option; it is for {', '.join(having)}")


def check_memory(samples: int, parameters: int) -> None:
    """Refuse data that this machine cannot hold."""
    needed, there = 4 * samples * parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UsageError(
            f"{samples:,} samples of {parameters:,} parameters are {human_bytes(needed)}, and this machine has "
            f"{human_bytes(there)} of memory; take fewer with --samples or --parameters"
        )
