"""`codedreduce run`: start a script as a root and workers on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from codedreduce.cli.lab import InLab, LabName, chosen_lab
from codedreduce.cli.options import OnExcess, SayWaitingAfter
from codedreduce.errors import UsageError
from codedreduce.lab import DEFAULT_NAME
from codedreduce.protocol.settings import Excess
from codedreduce.report.palette import group_colour
from codedreduce.schemes.names import DEFAULT_WORKERS, parse_scheme, parse_tree
from codedreduce.units import seconds as parse_seconds
from codedreduce.worlds.delays import parse_delays
from codedreduce.worlds.launcher import launch, python_command


def run(
    script: Annotated[str, typer.Argument(help="A Python script; every process runs it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script gets.")] = None,
    workers: Annotated[int | None, typer.Option("-n", "--workers", help="As many as the tree has, without.")] = None,
    tree: Annotated[str | None, typer.Option(help="FANOUTxDEPTH or WORKERS/FANOUT; balanced, without.")] = None,
    stragglers: Annotated[int, typer.Option(help="Stragglers tolerated under each parent.")] = 1,
    scheme: Annotated[str, typer.Option(help="coded-reduce, master-worker, gradient-coding, ...")] = "coded-reduce",
    order: Annotated[str, typer.Option(help="progressive or eager.")] = "progressive",
    inject: Annotated[str | None, typer.Option(help="Make workers late: stalls:0.05:0.5s, bursty, ...")] = None,
    on_excess: OnExcess = "wait",
    say_waiting_after: SayWaitingAfter = "30s",
    port: Annotated[int, typer.Option(help="Where the root answers; 0 for any free port.")] = 0,
    in_lab: InLab = False,
    lab_name: LabName = DEFAULT_NAME,
) -> None:
    """Start a root and its workers, prefix what they print, and end them all when the root is done."""
    command = python_command(script, arguments or [])
    count = workers or DEFAULT_WORKERS
    if tree is None:
        tree = f"{count}/{max(4, stragglers + 1)}" if count > stragglers else f"{count}x1"
    shape = parse_tree(tree, stragglers)
    if workers is not None and workers != shape.workers:
        raise UsageError(f"a tree {tree} has {shape.workers} workers, and -n says {workers}")
    excess = Excess(on_excess, parse_seconds(say_waiting_after))
    parse_scheme(scheme, tree=shape, stragglers=stragglers, order=order)
    variables = {
        "CODEDREDUCE_TREE": tree, "CODEDREDUCE_STRAGGLERS": str(stragglers), "CODEDREDUCE_SCHEME": scheme,
        "CODEDREDUCE_ORDER": order, "CODEDREDUCE_ON_EXCESS": excess.do,
        "CODEDREDUCE_SAY_WAITING_AFTER": str(excess.after),
    }  # fmt: skip
    if inject is not None:
        parse_delays(inject, workers=shape.workers, unit=1.0, seed=0)
        variables["CODEDREDUCE_INJECT"] = inject
    console = Console(highlight=False, soft_wrap=True, markup=False)

    def say(who: str, line: str) -> None:
        style = "bold" if who == "root" else group_colour(int(who))
        console.print(f"[{who}] ", style=style, end="")
        console.print(line)

    site = chosen_lab(in_lab, lab_name, shape.workers)
    launch(command, shape.workers, variables, port=port, site=site, say=say)
