"""`codedreduce run`: start a script as all processes of a run, on this host or on others."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

from codedreduce.cli.lab import InLab, LabName, chosen_lab
from codedreduce.cli.on_hosts import Hosts, OnHosts, Python, Ssh
from codedreduce.cli.on_ray import Address, DryRun, On, Resources, SaidOfRay, SpreadOver, Within, launch_on_ray
from codedreduce.cli.terminal.console import Screen, make_console
from codedreduce.cli.terminal.options import (
    MOST_PROCESSES,
    MOST_SIMULATED,
    TOLERATED,
    Audit,
    Inject,
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
from codedreduce.errors import UsageError
from codedreduce.lab import DEFAULT_NAME
from codedreduce.launch.environment import timing_said, variables_of
from codedreduce.launch.launcher import Launch, launch
from codedreduce.launch.placement import Placement
from codedreduce.launch.showing import AlsoInFiles, OnlyFirst, Show
from codedreduce.process.secrets import INSECURE_VARIABLE
from codedreduce.protocol.core.audits import QUARANTINE
from codedreduce.report.palette import group_colour
from codedreduce.run.configuration import DEFAULTS
from codedreduce.run.delays import parse_delays
from codedreduce.schemes import Striped
from codedreduce.schemes.names import DEFAULT_WORKERS, parse_scheme
from codedreduce.units import seconds as parse_seconds


def run(
    script: Annotated[str, typer.Argument(help="Python script, or with -m a module, that every process runs.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    workers: Annotated[
        str | None,
        typer.Option("-n", "--workers", help="Number of computing processes: 12, or MIN:MAX, as 4:12; default 6."),
    ] = None,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")] = False,
    output: Annotated[
        str, typer.Option(help="Output to show: root (rank 0), all (with ranks), or a FOLDER for one file per rank.")
    ] = "root",
    start: Annotated[
        int | None,
        typer.Option(min=1, help="Start only this many processes; others may join, by hand or from other hosts."),
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Use a tree: FANOUTxDEPTH, as 4x2, or WORKERS/FANOUT, as 50/4.")
    ] = None,
    stragglers: Stragglers = None,
    scheme: Annotated[
        str | None,
        typer.Option(help="striped, coded-reduce, master-worker, ...; default striped, or coded-reduce with --tree."),
    ] = None,
    order: Order = None,
    units: Units = None,
    inject: Inject = None,
    on_excess: OnExcess = "wait",
    say_waiting_after: SayWaitingAfter = "30s",
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart processes that die, as often as necessary.")
    ] = False,
    restarts: Annotated[
        int | None, typer.Option(help="Restart processes that die, at most this many times in all.")
    ] = None,
    replan_after: Annotated[
        str,
        typer.Option(
            help="For trees: time to wait for more failed workers than tolerated, before the root does their work."
        ),
    ] = "10s",
    grace: Annotated[str, typer.Option(help="Grace period in which processes leave the run after SIGTERM.")] = "30s",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port at which rank 0 listens; 0 selects a free port.")
    ] = 0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Admit every process that reaches a port: no secret, no encryption.")
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
    within: Within = None,
    dry_run: DryRun = False,
) -> None:
    """Start all processes of a run, show the output of rank 0, and end all processes when the run is over.

    In a striped run every process computes and updates the model. A tree has one more process, the root: it alone
    updates the model.
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
        raise UsageError(f"`-n {workers}`: the tree {tree} has {shape.workers} workers; specify only one of them")
    configuration = DEFAULTS.override(
        on_excess=on_excess, say_waiting_after=parse_seconds(say_waiting_after),
        replan_after=parse_seconds(replan_after), audit=audit, quarantine=quarantine, inject=inject,
    )  # fmt: skip
    chosen = parse_scheme(scheme, tree=shape, stragglers=tolerated, order=order, units=units)
    is_striped = isinstance(chosen, Striped)
    _check(is_striped, on_excess, least, count, start)
    if restarts is not None and restarts < 0:
        raise UsageError(f"`--restarts {restarts}`: the number of restarts must be at least 0")
    if inject is not None:
        parse_delays(inject, workers=shape.workers, unit=1.0, seed=0)
    variables = {
        "CODEDREDUCE_TREE": tree, "CODEDREDUCE_STRAGGLERS": str(tolerated), "CODEDREDUCE_SCHEME": scheme,
        "CODEDREDUCE_ORDER": order, **variables_of(configuration), **({INSECURE_VARIABLE: "1"} if insecure else {}),
        **({"CODEDREDUCE_LEAST": str(least)} if least < count else {}),
        **({"CODEDREDUCE_UNITS": str(units)} if units is not None else {}),
    }  # fmt: skip
    processes = shape.workers + (0 if is_striped else 1)
    lab = chosen_lab(in_lab, lab_name, processes)
    what = Launch(
        command=_python_command(script, arguments or [], is_module=is_module), count=processes, variables=variables,
        has_root=not is_striped, at_first=start, port=port, grace=parse_seconds(grace),
        placement=Placement.at(lab, processes) if lab is not None else None,
        times=restarts if restarts is not None else (None if restart else 0), timing=timing_said(os.environ),
    )  # fmt: skip
    show = _shown(output, has_root=not is_striped)
    if on is not None:
        if lab is not None or start is not None or on_hosts is not None:
            raise UsageError("`--on ray` places all processes itself: leave out --lab, --hosts and --start")
        again = what if restart or restarts is not None else replace(what, times=None, only_lost=True)
        least = least if least < count else processes
        launch_on_ray(said_of_ray, again, chosen.plan(samples=10**6), least, show)
    elif on_hosts is not None:
        on_hosts.launch(what, show)
    else:
        launch(what, show)


def _python_command(script: str, arguments: Sequence[str], *, is_module: bool = False) -> list[str]:
    """The command that runs a script, or a module."""
    if is_module:
        if not _can_be_found(script):
            raise UsageError(f"there is no module {script!r} that can be found from {os.getcwd()}")
        return [sys.executable, "-m", script, *arguments]
    if not os.path.isfile(script):
        hint = f"; for a module write -m {script}" if not script.endswith(".py") and _can_be_found(script) else ""
        raise UsageError(f"there is no script {script!r}{hint}")
    return [sys.executable, script, *arguments]


def _can_be_found(module: str) -> bool:
    """Whether a module exists, without running any of its code."""
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    for name in module.split("."):
        if not name or path is None:
            return False
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None:
            return False
        path = found.submodule_search_locations
    return True


def _usual_tree(scheme: str, count: int, stragglers: int) -> str:
    """The default tree for this number of workers; for stripes only the number counts."""
    if scheme == "striped" or count <= stragglers:
        return f"{count}x1"
    return f"{count}/{max(4, stragglers + 1)}"


def _check(is_striped: bool, on_excess: str, least: int, count: int, start: int | None) -> None:
    """Refuse options that only the other kind of run (striped or tree) supports."""
    if is_striped and on_excess != "wait":
        raise UsageError("--on-excess is for trees: a striped run computes the exact sum as long as one rank is left")
    if not is_striped and (least < count or start is not None):
        raise UsageError("a tree needs all its workers: a minimum (as -n 4:12) and --start are for --scheme striped")
    if start is not None and start < least:
        raise UsageError(f"`--start {start}`: the run needs at least {least} processes; start {least} or more")


def _shown(output: str, *, has_root: bool) -> Show:
    """How the output of the processes is shown."""
    screen = Screen(1)
    say = _printer(screen, has_root=has_root)
    if output == "all":
        return Show(say)
    return OnlyFirst(screen.write, say) if output == "root" else AlsoInFiles(output, screen.write, say)


class _Printing(Console):
    """A console that raises errors of printing, for the caller to handle."""

    def on_broken_pipe(self) -> None:
        """Do not exit."""
        raise


def _printer(screen: Screen, *, has_root: bool) -> Callable[[int, str], None]:
    """Prints a line of a process, with its rank in front."""
    console = make_console(_Printing, file=cast(TextIO, screen))

    def say(rank: int, line: str) -> None:
        name = "root" if rank == 0 and has_root else str(rank)
        ahead = (f"[{name}] ", "bold" if rank == 0 else group_colour(rank))
        console.print(Text.assemble(ahead, line), soft_wrap=True)  # in one write: other processes print there, too

    return say
