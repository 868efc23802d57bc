"""`codedreduce draw`: a scheme and its allocation as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from codedreduce.cli.terminal.console import make_console
from codedreduce.cli.terminal.options import TOLERATED, Order, Stragglers, Units, check_scheme_options, parse_shape
from codedreduce.errors import UsageError
from codedreduce.report.plan_text import plan_text
from codedreduce.schemes.names import SCHEMES, parse_scheme

#: The paper's comparison.
COMPARISON = ("ring", "gradient-coding", "coded-reduce")

#: Limit of workers: planning takes long beyond it, and the drawing would be unreadable.
MOST_DRAWN = 20_000

#: Limit of tasks that a worker may have to compute: its number of replicas, to the power of the levels.
MOST_SHARES = 1_000

#: Limit of samples in a batch.
MOST_SAMPLES = 10**15


def draw(
    tree: Annotated[str, typer.Option(help="Tree: FANOUTxDEPTH, as 4x2, or WORKERS/FANOUT, as 50/4.")] = "4x2",
    stragglers: Stragglers = None,
    scheme: Annotated[
        str, typer.Option(help=f"{', '.join(SCHEMES)}; or compare (three side by side).")
    ] = "coded-reduce",
    order: Order = None,
    code: Annotated[
        str | None, typer.Option(show_default="repetition", help="Gradient code: repetition or cyclic.")
    ] = None,
    units: Units = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_SAMPLES, help="Number of samples in the batch.", show_default="60 per worker"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Picture file, FILE.svg or FILE.png; default: print text.")] = None,
) -> None:
    """Draw a scheme: its tree, the groups in colour, and the load and tasks of each node."""
    if out is not None and out.suffix not in (".svg", ".png"):
        raise UsageError(f"`--out`: a picture is an .svg or .png file, got {str(out)!r}")
    names = COMPARISON if scheme == "compare" else (scheme,)
    check_scheme_options(names, stragglers=stragglers, order=order, code=code)
    topology = parse_shape(tree, stragglers, most=MOST_DRAWN, why="to draw")
    tolerated = TOLERATED if stragglers is None else stragglers
    if "coded-reduce" in names and (tolerated + 1) ** topology.depth > MOST_SHARES:
        raise UsageError(
            f"`--tree {tree}`: with {tolerated} stragglers under each parent a worker may have "
            f"more than {MOST_SHARES:,} tasks, too many to draw; use fewer levels"
        )
    batch = samples if samples is not None else 60 * topology.workers
    chosen = (
        parse_scheme(
            name, tree=topology, stragglers=tolerated,
            code=code or "repetition", order=order or "progressive", units=units,
        )
        for name in names
    )  # fmt: skip
    plans = [one.plan(samples=batch) for one in chosen]
    console = make_console()
    if out is None:
        for plan in plans:
            console.print(plan_text(plan))
        return
    from codedreduce.report.plan_figure import plan_figure  # imports matplotlib, which is slow

    try:
        plan_figure(plans).savefig(out, dpi=150)
    except OSError as error:
        raise UsageError(f"cannot write {str(out)!r}: {error.strerror}") from None
    console.print(f"wrote {out}")
