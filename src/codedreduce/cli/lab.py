"""`codedreduce lab`: a cluster of network namespaces on this host."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.table import Table

from codedreduce.cli.terminal.console import make_console
from codedreduce.errors import UsageError
from codedreduce.lab import DEFAULT_NAME, Lab, NodeStatus, check_available
from codedreduce.lab.laboratory import labs, remove_probes
from codedreduce.units import rate as parse_rate
from codedreduce.units import seconds as parse_seconds

app = typer.Typer(
    no_args_is_help=True, help="A cluster of network namespaces on this host (needs root privileges, iproute2)."
)

Name = Annotated[str, typer.Option(help="Name of the lab.")]
Node = Annotated[int, typer.Argument(help="Number of the node; 0 is the root.")]

#: The options that place train, race and run in a lab.
InLab = Annotated[bool, typer.Option("--lab", help="Run on the nodes of a lab (see `codedreduce lab`).")]
LabName = Annotated[str, typer.Option("--lab-name", help="Name of the lab for --lab.")]


def chosen_lab(in_lab: bool, name: str, processes: int) -> Lab | None:
    """The lab for --lab, checked to have enough nodes; None without --lab."""
    if not in_lab:
        return None
    lab = Lab.find(name)
    lab.check_room(processes)
    return lab


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="Number of nodes, with the root: 85 for a 4x3 tree.")] = 21,
    rate: Annotated[str, typer.Option(help="Rate of every node's link, in each direction.")] = "60mbit",
    latency: Annotated[
        str, typer.Option(help="Latency of packets that leave a node; needs netem in the kernel.")
    ] = "0ms",
    name: Name = DEFAULT_NAME,
) -> None:
    """Create a lab: per node a network namespace with its own address, on one bridge, with a limited rate."""
    begin = time.monotonic()
    lab = Lab.up(nodes=nodes, rate=parse_rate(rate), latency=parse_seconds(latency), name=name)
    last = lab.address(nodes - 1)
    make_console().print(
        f"lab {name}: {nodes} nodes at {rate}, {lab.address(0)} to {last}, up in {time.monotonic() - begin:.1f} s"
    )


@app.command()
def status(name: Annotated[str | None, typer.Option(help="Show only this lab.")] = None) -> None:
    """Show the labs that are up: limits, traffic, faults and processes."""
    check_available()
    console = make_console()
    found = labs()
    if name is not None:
        Lab.find(name)
    if not found:
        console.print("no lab is up; create one with: codedreduce lab up --nodes 21 --rate 60mbit")
    for one in sorted(found) if name is None else [name]:
        console.print(_table(Lab(one, found[one])))


@app.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    node: Node, command: Annotated[list[str], typer.Argument(help="Command to run, after --.")],
    name: Name = DEFAULT_NAME,
) -> None:  # fmt: skip
    """Run a command on a node."""
    lab = Lab.find(name)
    command = command[1:] if command[0] == "--" else command
    if not command:
        raise UsageError(f"the command is missing; write: codedreduce lab exec {node} -- COMMAND")
    lab.enter(node)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UsageError(f"cannot run {command[0]!r}: {error.strerror}") from None


@app.command()
def rate(
    node: Node, rate: Annotated[str, typer.Argument(help="New rate, as 10mbit.")], name: Name = DEFAULT_NAME
) -> None:
    """Change the rate of a node's link."""
    Lab.find(name).set_rate(node, parse_rate(rate))


@app.command()
def link(
    node: Node, state: Annotated[str, typer.Argument(help="State of the link: up or down.")], name: Name = DEFAULT_NAME
) -> None:
    """Take a node's link down, or bring it up again."""
    if state not in ("up", "down"):
        raise UsageError(f"the state of a link is up or down, got {state!r}")
    Lab.find(name).set_link(node, up=state == "up")


@app.command()
def pause(node: Node, name: Name = DEFAULT_NAME) -> None:
    """Stop all processes of a node (SIGSTOP)."""
    _say(Lab.find(name).pause(node), "stopped", node)


@app.command()
def resume(node: Node, name: Name = DEFAULT_NAME) -> None:
    """Continue the stopped processes of a node (SIGCONT)."""
    _say(Lab.find(name).pause(node, paused=False), "running again", node)


@app.command()
def down(
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all labs of this host, also incomplete ones.")
    ] = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Remove a lab, and end the processes that still run on its nodes."""
    check_available()
    console = make_console()
    found = labs()
    if not everything and name not in found:
        raise UsageError(f"there is no lab {name!r}" + (f"; there are {', '.join(sorted(found))}" if found else ""))
    if everything:
        remove_probes()
    for one in sorted(found) if everything else [name]:
        ended = Lab(one, found[one]).down()
        console.print(f"removed lab {one}" + (f"; ended {_processes(ended)} that still ran" if ended else ""))
    if not found:
        console.print("no lab was up")


def _say(processes: list[int], what: str, node: int) -> None:
    make_console().print(f"node {node}: {_processes(len(processes))} {what}")


def _processes(count: int) -> str:
    """The number of processes, in words.

    >>> _processes(1), _processes(2)
    ('1 process', '2 processes')
    """
    return "1 process" if count == 1 else f"{count} processes"


def _table(lab: Lab) -> Table:
    found = lab.status()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1), title=_title(lab, found))
    for column in ("node", "address", "rate", "link", "received", "sent", "dropped", "processes"):
        table.add_column(column, justify="left" if column in ("address", "link") else "right", no_wrap=True)
    for one in found:
        usual = one.link_up and not one.paused
        processes = f"{len(one.processes)} paused" if one.paused else str(len(one.processes))
        table.add_row(
            str(one.node), one.address, human_rate(one.rate), "up" if one.link_up else "down", _bytes(one.received),
            _bytes(one.sent), str(one.dropped), processes, style="" if usual else "bold yellow",
        )  # fmt: skip
    return table


def _title(lab: Lab, found: list[NodeStatus]) -> str:
    latency = f", {1000 * found[0].latency:g} ms" if found and found[0].latency else ""
    return f"lab {lab.name}: {lab.nodes} nodes{latency}"


def human_rate(rate: float | None) -> str:
    """Bytes per second in the usual notation for a network's rate.

    >>> human_rate(60e6 / 8)
    '60mbit'
    """
    if rate is None:
        return "no limit"
    for size, unit in ((1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit")):
        if rate * 8 >= size:
            return f"{rate * 8 / size:g}{unit}"
    return f"{rate * 8:g}bit"


def _bytes(count: int) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
