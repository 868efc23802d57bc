"""Options that several commands have."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from codedreduce.errors import UsageError

OnExcess = Annotated[
    str,
    typer.Option(help="When more are late than tolerated: wait, or approximate (go on with the rest, and say so)."),
]
Units = Annotated[
    int | None,
    typer.Option(help="Stripes: cut a batch into so many units, from which the bits follow; one a worker, without."),
]
SayWaitingAfter = Annotated[str, typer.Option(help="How long a round that cannot end waits before it says for whom.")]


def parse_workers(text: str | None, default: int) -> tuple[int, int]:
    """How many processes at least and at most: 12, or 4:12.

    >>> parse_workers("4:12", 6), parse_workers("12", 6), parse_workers(None, 6)
    ((4, 12), (12, 12), (6, 6))
    """
    if text is None:
        return default, default
    match = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
    if match is None:
        raise UsageError(f"workers are written as 12, or 4:12 for at least 4 and at most 12; got {text!r}")
    most = int(match[2])
    least = int(match[1] or most)
    if not 1 <= least <= most:
        raise UsageError(f"at least {least} of at most {most} workers cannot be; write it as 4:12")
    return least, most
