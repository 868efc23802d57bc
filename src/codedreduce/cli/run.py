"""`codedreduce run`: start a script as all processes of a run on this machine."""

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
from codedreduce.schemes import Striped
from codedreduce.schemes.names import DEFAULT_WORKERS, parse_scheme, parse_tree
from codedreduce.units import seconds as parse_seconds
from codedreduce.worlds.delays import parse_delays
from codedreduce.worlds.launcher import launch, python_command


def run(
    script: Annotated[str, typer.Argument(help="A Python script; every process runs it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script gets.")] = None,
    workers: Annotated[int | None, typer.Option("-n", "--workers", help="Processes that compute.")] = None,
    tree: Annotated[str | None, typer.Option(help="A tree and its root: FANOUTxDEPTH or WORKERS/FANOUT.")] = None,
    stragglers: Annotated[int, typer.Option(help="Stragglers tolerated under each parent of a tree.")] = 1,
    scheme: Annotated[
        str | None,
        typer.Option(help="striped, coded-reduce, master-worker, ...; striped, or coded-reduce with --tree."),
    ] = None,
    order: Annotated[str, typer.Option(help="progressive or eager.")] = "progressive",
    inject: Annotated[str | None, typer.Option(help="Make workers late: stalls:0.05:0.5s, bursty, ...")] = None,
    on_excess: OnExcess = "wait",
    say_waiting_after: SayWaitingAfter = "30s",
    port: Annotated[int, typer.Option(help="Where the root answers; 0 for any free port.")] = 0,
    in_lab: InLab = False,
    lab_name: LabName = DEFAULT_NAME,
) -> None:
    """Start all processes of a run, prefix what they print, and end them all when the first is done.

    In stripes every process computes and steps; over a tree there is a root beside the workers, which alone steps.
    """
    command = python_command(script, arguments or [])
    count = workers or DEFAULT_WORKERS
    scheme = scheme or ("striped" if tree is None else "coded-reduce")
    if tree is None and scheme == "striped":
        tree = f"{count}x1"
    elif tree is None:
        tree = f"{count}/{max(4, stragglers + 1)}" if count > stragglers else f"{count}x1"
    shape = parse_tree(tree, stragglers)
    if workers is not None and workers != shape.workers:
        raise UsageError(f"a tree {tree} has {shape.workers} workers, and -n says {workers}")
    excess = Excess(on_excess, parse_seconds(say_waiting_after))
    chosen = parse_scheme(scheme, tree=shape, stragglers=stragglers, order=order)
    if isinstance(chosen, Striped) and excess.do != "wait":
        raise UsageError("stripes compute the exact sum as long as a rank is left; --on-excess is for trees")
    processes = shape.workers + (0 if isinstance(chosen, Striped) else 1)
    variables = {
        "CODEDREDUCE_TREE": tree, "CODEDREDUCE_STRAGGLERS": str(stragglers), "CODEDREDUCE_SCHEME": scheme,
        "CODEDREDUCE_ORDER": order, "CODEDREDUCE_ON_EXCESS": excess.do,
        "CODEDREDUCE_SAY_WAITING_AFTER": str(excess.after),
    }  # fmt: skip
    if inject is not None:
        parse_delays(inject, workers=shape.workers, unit=1.0, seed=0)
        variables["CODEDREDUCE_INJECT"] = inject
    console = Console(highlight=False, soft_wrap=True, markup=False)

    def say(rank: int, line: str) -> None:
        who = "root" if rank == 0 and processes > shape.workers else str(rank)
        console.print(f"[{who}] ", style="bold" if rank == 0 else group_colour(rank), end="")
        console.print(line)

    site = chosen_lab(in_lab, lab_name, processes)
    launch(command, processes, variables, port=port, site=site, say=say)
