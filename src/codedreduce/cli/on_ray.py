"""`codedreduce run --on ray`: the options for a Ray cluster, and a run on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.table import Table

from codedreduce._extras import require
from codedreduce.cli.terminal.console import make_console
from codedreduce.errors import UsageError
from codedreduce.launch.launcher import Launch
from codedreduce.launch.showing import Show
from codedreduce.schemes import Plan
from codedreduce.units import seconds as parse_seconds

#: The default time limit for placing all processes.
WITHIN = "60s"

On = Annotated[str | None, typer.Option("--on", help="Start the processes on a cluster: ray.")]
Address = Annotated[
    str | None, typer.Option(help="With --on ray: address of the head, HOST:6379; default the local cluster.")
]
Resources = Annotated[
    str | None, typer.Option(help="With --on ray: resources per process, GPU=1,CPU=4; default CPU=1.")
]
SpreadOver = Annotated[
    str | None, typer.Option(help="With --on ray: node label of failure domains (rack, zone); default the node.")
]
Within = Annotated[
    str | None, typer.Option(show_default=WITHIN, help="With --on ray: time limit for placing all processes.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --on ray: show the placement and exit.")]


@dataclass(frozen=True, kw_only=True)
class SaidOfRay:
    """The options for a cluster, from the command line."""

    on: str | None
    address: str | None
    resources: str | None
    spread_over: str | None
    within: str | None
    dry_run: bool

    def __post_init__(self) -> None:
        if self.on not in (None, "ray"):
            raise UsageError(f"`--on`: unknown cluster {self.on!r}; use ray")
        if self.on is None:
            given = {
                "--address": self.address, "--resources": self.resources, "--spread-over": self.spread_over,
                "--within": self.within, "--dry-run": self.dry_run,
            }  # fmt: skip
            for name, value in given.items():
                if value:
                    raise UsageError(f"{name} needs a cluster: add --on ray")


def parse_resources(text: str | None) -> dict[str, float]:
    """Resources by name, from the text of --resources.

    >>> parse_resources("GPU=1,CPU=0.5"), parse_resources(None)
    ({'GPU': 1.0, 'CPU': 0.5}, {})
    """
    found = {}
    for one in (text or "").split(","):
        name, is_said, much = one.strip().partition("=")
        if not name and not is_said:
            continue
        try:
            found[name] = float(much)
        except ValueError:
            raise UsageError(f"`--resources`: write NAME=NUMBER, separated by commas; got {one!r}") from None
    return found


def launch_on_ray(said: SaidOfRay, what: Launch, plan: Plan, least: int, show: Show) -> None:
    """Start the processes on the cluster, or show their placement."""
    require("ray", extra="ray")
    from codedreduce.ray.launch_on_ray import OnRay, launch_on, placement_of, portable
    from codedreduce.ray.reservations import Wanted

    wanted = Wanted(
        least=least, count=what.count, resources=parse_resources(said.resources), spread_over=said.spread_over,
        within=parse_seconds(WITHIN if said.within is None else said.within),
    )  # fmt: skip
    on = OnRay(wanted=wanted, plan=plan, address=said.address)
    if not said.dry_run:
        launch_on(on, replace(what, command=portable(list(what.command))), show)
        return
    spots, wrong = placement_of(on, lambda words: show.note(0, words))
    table = Table("rank", "node", *([said.spread_over] if said.spread_over else []))
    for rank, spot in enumerate(spots):
        where = f"{spot.address} ({spot.node[:8]})"
        table.add_row(str(rank), where, *([spot.domain.partition(" ")[2]] if said.spread_over else []))
    console = make_console()
    console.print(table)
    if what.count > least:
        console.print(f"up to {what.count - least} more when the cluster has room")
    for words in wrong:
        console.print(words)
