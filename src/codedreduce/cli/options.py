"""Options that several commands have."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from codedreduce.errors import UsageError
from codedreduce.worlds.protection import VARIABLE, Protection, find_protection, parse_protection

OnExcess = Annotated[
    str,
    typer.Option(help="When more are late than tolerated: wait, or approximate (go on with the rest, and say so)."),
]
Units = Annotated[
    int | None,
    typer.Option(help="Stripes: cut a batch into so many units, from which the bits follow; one a worker, without."),
]
Audit = Annotated[
    float, typer.Option(help="Have such a part of all gradients computed twice, and compared: 0.02 is 2 %.")
]
Quarantine = Annotated[
    int, typer.Option(help="How often a worker may be found to have computed wrongly; then it is not used any more.")
]
SayWaitingAfter = Annotated[str, typer.Option(help="How long a round that cannot end waits before it says for whom.")]

Wire = Annotated[
    str | None,
    typer.Option(
        "--wire",
        help="How chunks travel by TCP: encrypted, or authenticated (in the clear, with a keyed digest); if nothing is "
        "said as CODEDREDUCE_WIRE says, or encrypted.",
    ),
]


def said_of_wire(text: str | None) -> dict[str, str]:
    """What processes are told of how chunks travel; nothing, if nobody has said anything.

    >>> said_of_wire("authenticated")
    {'CODEDREDUCE_WIRE': 'authenticated'}
    """
    found = parse_protection(text) if text is not None else find_protection(os.environ)
    return {VARIABLE: found.value} if text is not None or found is not Protection.ENCRYPTED else {}


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
