"""`codedreduce run`: start a script as all processes of a run, on this machine or on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

from codedreduce.cli.lab import InLab, LabName, chosen_lab
from codedreduce.cli.on_hosts import Hosts, OnHosts, Python, Ssh
from codedreduce.cli.on_ray import Address, DryRun, On, Resources, SaidOfRay, SpreadOver, Within, launch_on_ray
from codedreduce.cli.terminal.console import make_console
from codedreduce.cli.terminal.options import (
    MOST_PROCESSES,
    MOST_SIMULATED,
    TOLERATED,
    Audit,
    OnExcess,
    Order,
    Quarantine,
    SayWaitingAfter,
    Stragglers,
    Units,
    check_scheme_options,
    parse_shape,
    parse_workers,
)
from codedreduce.cli.terminal.screen import Screen
from codedreduce.errors import UsageError
from codedreduce.lab import DEFAULT_NAME
from codedreduce.launch.launcher import Launch, launch
from codedreduce.launch.placement import Placement
from codedreduce.launch.showing import AlsoInFiles, EveryLine, OnlyFirst, Show
from codedreduce.process.command import python_command
from codedreduce.process.secrets import INSECURE_VARIABLE
from codedreduce.protocol.core.audits import QUARANTINE, Auditing
from codedreduce.protocol.core.settings import Excess
from codedreduce.report.palette import group_colour
from codedreduce.run.delays import parse_delays
from codedreduce.schemes import Striped
from codedreduce.schemes.names import DEFAULT_WORKERS, parse_scheme
from codedreduce.units import seconds as parse_seconds


def run(
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module; every process runs it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script gets.")] = None,
    workers: Annotated[
        str | None, typer.Option("-n", "--workers", help="Processes that compute: 12, or 4:12, least and most.")
    ] = None,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module: python -m.")] = False,
    output: Annotated[
        str, typer.Option(help="What is shown: root (rank 0's), all (with ranks), or a FOLDER with a file a rank.")
    ] = "root",
    start: Annotated[
        int | None, typer.Option(min=1, help="Start only so many; others may join, by hand or from other machines.")
    ] = None,
    tree: Annotated[str | None, typer.Option(help="A tree and its root: FANOUTxDEPTH or WORKERS/FANOUT.")] = None,
    stragglers: Stragglers = None,
    scheme: Annotated[
        str | None,
        typer.Option(help="striped, coded-reduce, master-worker, ...; striped, or coded-reduce with --tree."),
    ] = None,
    order: Order = None,
    units: Units = None,
    inject: Annotated[str | None, typer.Option(help="Make workers late: stalls:0.05:0.5s, bursty, ...")] = None,
    on_excess: OnExcess = "wait",
    say_waiting_after: SayWaitingAfter = "30s",
    restart: Annotated[bool, typer.Option("--restart", help="Start processes again that die.")] = False,
    restarts: Annotated[int | None, typer.Option(help="The same, so many times in all at most.")] = None,
    replan_after: Annotated[
        str, typer.Option(help="How long more lost than tolerated are waited for, before it goes on without them.")
    ] = "10s",
    grace: Annotated[str, typer.Option(help="How long processes have to hand over at SIGTERM.")] = "30s",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the root answers; 0 for any free port.")] = 0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let anybody in who reaches a port: no secret, nothing is encrypted.")
    ] = False,
    audit: Audit = 0.0,
    quarantine: Quarantine = QUARANTINE,
    in_lab: InLab = False,
    lab_name: LabName = DEFAULT_NAME,
    hosts: Hosts = None,
    python: Python = None,
    ssh: Ssh = None,
    on: On = None,
    address: Address = None,
    resources: Resources = None,
    spread_over: SpreadOver = None,
    within: Within = "60s",
    dry_run: DryRun = False,
) -> None:
    """Start all processes of a run, show what rank 0 prints, and end them all when it is over.

    In stripes every process computes and steps; over a tree there is a root beside the workers, which alone steps.
    """
    if script.startswith("-"):
        raise UsageError(f"No such option: {script}; see codedreduce run --help")
    on_hosts = OnHosts.chosen(hosts, python, ssh, in_lab=in_lab)
    said_of_ray = SaidOfRay(
        on=on, address=address, resources=resources, spread_over=spread_over, within=within, dry_run=dry_run
    )  # fmt: skip
    most = MOST_PROCESSES if on is None and on_hosts is None else MOST_SIMULATED
    least, count = parse_workers(workers, on_hosts.slots if on_hosts is not None else DEFAULT_WORKERS, most)
    if scheme is None:
        scheme = "striped" if tree is None and order is None else "coded-reduce"
    check_scheme_options([scheme], stragglers=stragglers, order=order)
    tolerated, order = TOLERATED if stragglers is None else stragglers, order or "progressive"
    tree = tree or _usual_tree(scheme, count, tolerated)
    shape = parse_shape(tree, tolerated, most=most, why="to be started")
    if workers is not None and count != shape.workers:
        raise UsageError(f"a tree {tree} has {shape.workers} workers, and -n says {workers}; leave one of them out")
    excess = Excess(on_excess, parse_seconds(say_waiting_after), parse_seconds(replan_after))
    chosen = parse_scheme(scheme, tree=shape, stragglers=tolerated, order=order, units=units)
    is_striped = isinstance(chosen, Striped)
    _check(is_striped, excess, least, count, start)
    if restarts is not None and restarts < 0:
        raise UsageError(f"processes are started again 0 times or more, got {restarts}")
    if inject is not None:
        parse_delays(inject, workers=shape.workers, unit=1.0, seed=0)
    variables = {
        "CODEDREDUCE_TREE": tree, "CODEDREDUCE_STRAGGLERS": str(tolerated), "CODEDREDUCE_SCHEME": scheme,
        "CODEDREDUCE_ORDER": order, **_said_of_excess(excess),
        **_said_of_audits(Auditing(audit, quarantine)), **({INSECURE_VARIABLE: "1"} if insecure else {}),
        **({"CODEDREDUCE_LEAST": str(least)} if least < count else {}),
        **({"CODEDREDUCE_UNITS": str(units)} if units is not None else {}),
        **({"CODEDREDUCE_INJECT": inject} if inject is not None else {}),
    }  # fmt: skip
    processes = shape.workers + (0 if is_striped else 1)
    lab = chosen_lab(in_lab, lab_name, processes)
    what = Launch(
        command=python_command(script, arguments or [], is_module=is_module), count=processes, variables=variables,
        has_root=not is_striped, at_first=start, port=port, grace=parse_seconds(grace),
        placement=Placement.at(lab, processes) if lab is not None else None,
        times=restarts if restarts is not None else (None if restart else 0),
    )  # fmt: skip
    show = _shown(output, has_root=not is_striped)
    if on is not None:
        if lab is not None or start is not None or on_hosts is not None:
            raise UsageError("a cluster places all processes itself: --lab, --hosts and --start are not for --on ray")
        again = what if restart or restarts is not None else replace(what, times=None, only_lost=True)
        least = least if least < count else processes
        launch_on_ray(said_of_ray, again, chosen.plan(samples=10**6), least, show)
    elif on_hosts is not None:
        on_hosts.launch(what, show)
    else:
        launch(what, show)


def _usual_tree(scheme: str, count: int, stragglers: int) -> str:
    """How so many workers are laid out if nobody says; in stripes that is nothing but their number."""
    if scheme == "striped" or count <= stragglers:
        return f"{count}x1"
    return f"{count}/{max(4, stragglers + 1)}"


def _check(is_striped: bool, excess: Excess, least: int, count: int, start: int | None) -> None:
    """What only one kind of run can do is refused for the other."""
    if is_striped and excess.do != "wait":
        raise UsageError("stripes compute the exact sum as long as a rank is left; --on-excess is for trees")
    if not is_striped and (least < count or start is not None):
        raise UsageError("every place of a tree has work of its own: a run that may be smaller is for --scheme striped")
    if start is not None and start < least:
        raise UsageError(f"a run of at least {least} does not begin with {start}")


def _said_of_excess(excess: Excess) -> dict[str, str]:
    return {
        "CODEDREDUCE_ON_EXCESS": excess.do,
        "CODEDREDUCE_SAY_WAITING_AFTER": str(excess.after),
        "CODEDREDUCE_REPLAN_AFTER": f"{excess.replan_after:g}",
    }


def _said_of_audits(auditing: Auditing) -> dict[str, str]:
    return {"CODEDREDUCE_AUDIT": repr(auditing.fraction), "CODEDREDUCE_QUARANTINE": str(auditing.quarantine)}


def _shown(output: str, *, has_root: bool) -> Show:
    """What is shown of what processes print."""
    screen = Screen(1)
    say = _printer(screen, has_root=has_root)
    if output == "all":
        return EveryLine(say)
    only_first = OnlyFirst(screen.write, say)
    return only_first if output == "root" else AlsoInFiles(output, only_first)


class _Printing(Console):
    """What it cannot print is its caller's to know of."""

    def on_broken_pipe(self) -> None:
        """Do not exit."""
        raise


def _printer(screen: Screen, *, has_root: bool) -> Callable[[int, str], None]:
    """Prints a line of a process, with who it is ahead of it."""
    console = make_console(_Printing, file=cast(TextIO, screen))

    def say(rank: int, line: str) -> None:
        who = "root" if rank == 0 and has_root else str(rank)
        ahead = (f"[{who}] ", "bold" if rank == 0 else group_colour(rank))
        console.print(Text.assemble(ahead, line), soft_wrap=True)  # at once: others print there, too

    return say
