"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

OnExcess = Annotated[
    str,
    typer.Option(help="When more are late than tolerated: wait, or approximate (go on with the rest, and say so)."),
]
SayWaitingAfter = Annotated[str, typer.Option(help="How long a round that cannot end waits before it says for whom.")]
