"""`codedreduce draw`: a scheme and its allocation as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from codedreduce.cli.options import Units
from codedreduce.errors import UsageError
from codedreduce.report.plan_text import plan_text
from codedreduce.schemes.names import SCHEMES, parse_scheme, parse_tree

#: The paper's comparison.
COMPARISON = ("ring", "gradient-coding", "coded-reduce")


def draw(
    tree: Annotated[str, typer.Option(help="FANOUTxDEPTH, as 4x2, or WORKERS/FANOUT, as 50/4.")] = "4x2",
    stragglers: Annotated[int, typer.Option(help="Stragglers tolerated under each parent.")] = 1,
    scheme: Annotated[str, typer.Option(help=f"{', '.join(SCHEMES)}; or compare.")] = "coded-reduce",
    order: Annotated[str, typer.Option(help="progressive or eager.")] = "progressive",
    code: Annotated[str, typer.Option(help="repetition or cyclic.")] = "repetition",
    units: Units = None,
    samples: Annotated[int | None, typer.Option(help="Samples in the batch.", show_default="60 a worker")] = None,
    out: Annotated[Path | None, typer.Option(help="FILE.svg or FILE.png; without it, text.")] = None,
) -> None:
    """Draw a scheme: the tree, groups in colour, each node's load and shares."""
    topology = parse_tree(tree, stragglers)
    batch = samples if samples is not None else 60 * topology.workers
    names = COMPARISON if scheme == "compare" else (scheme,)
    chosen = (
        parse_scheme(name, tree=topology, stragglers=stragglers, code=code, order=order, units=units) for name in names
    )
    plans = [one.plan(samples=batch) for one in chosen]
    console = Console()
    if out is None:
        for plan in plans:
            console.print(plan_text(plan))
        return
    if out.suffix not in (".svg", ".png"):
        raise UsageError(f"pictures are written as .svg or .png, got {str(out)!r}")
    from codedreduce.report.plan_figure import plan_figure  # matplotlib: no other command should wait for it

    try:
        plan_figure(plans).savefig(out, dpi=150)
    except OSError as error:
        raise UsageError(f"cannot write {str(out)!r}: {error.strerror}") from None
    console.print(f"wrote {out}")
