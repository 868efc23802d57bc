"""`codedreduce lab`: a cluster of network namespaces on this machine."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.table import Table

from codedreduce.cli.terminal.console import make_console
from codedreduce.errors import UsageError
from codedreduce.lab import DEFAULT_NAME, Lab, NodeStatus, check_available
from codedreduce.lab.laboratory import labs, only_lab, remove_probes
from codedreduce.units import rate as parse_rate
from codedreduce.units import seconds as parse_seconds

app = typer.Typer(no_args_is_help=True, help="A cluster of network namespaces on this machine (root, iproute2).")

Name = Annotated[str, typer.Option(help="Which lab.")]
Node = Annotated[int, typer.Argument(help="0 is the root.")]

#: The option by which train, race and run are placed in a lab.
InLab = Annotated[bool, typer.Option("--lab", help="On the nodes of the lab that is up (see `codedreduce lab`).")]
LabName = Annotated[str, typer.Option("--lab-name", help="Which lab, if there are several.")]


def chosen_lab(in_lab: bool, name: str, processes: int) -> Lab | None:
    """The lab that --lab asks for, with room for so many processes."""
    return only_lab(name, processes=processes) if in_lab else None


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="The root and the workers: 85 for a tree of 4x3.")] = 21,
    rate: Annotated[str, typer.Option(help="Of every node's interface, in and out.")] = "60mbit",
    latency: Annotated[str, typer.Option(help="On the way out of a node; needs netem in the kernel.")] = "0ms",
    name: Name = DEFAULT_NAME,
) -> None:
    """Make a lab: a namespace with its own address for every node, on one bridge, limited both ways."""
    begin = time.monotonic()
    lab = Lab.up(nodes=nodes, rate=parse_rate(rate), latency=parse_seconds(latency), name=name)
    last = lab.address(nodes - 1)
    make_console().print(
        f"lab {name}: {nodes} nodes at {rate}, {lab.host} to {last}, up in {time.monotonic() - begin:.1f} s"
    )


@app.command()
def status(name: Annotated[str | None, typer.Option(help="Only this one.")] = None) -> None:
    """Show the labs that are up: limits, traffic, faults and processes."""
    check_available()
    console = make_console()
    found = labs()
    if name is not None:
        Lab.find(name)
    if not found:
        console.print("no lab is up; make one with: codedreduce lab up --nodes 21 --rate 60mbit")
    for one in sorted(found) if name is None else [name]:
        console.print(_table(Lab(one, found[one])))


@app.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    node: Node, command: Annotated[list[str], typer.Argument(help="After --, what to run there.")],
    name: Name = DEFAULT_NAME,
) -> None:  # fmt: skip
    """Run a command on a node."""
    lab = Lab.find(name)
    command = command[1:] if command[0] == "--" else command
    if not command:
        raise UsageError(f"say what to run: codedreduce lab exec {node} -- COMMAND")
    lab.enter(node)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UsageError(f"cannot run {command[0]!r}: {error.strerror}") from None


@app.command()
def rate(node: Node, rate: Annotated[str, typer.Argument(help="As 10mbit.")], name: Name = DEFAULT_NAME) -> None:
    """Change a node's rate."""
    Lab.find(name).set_rate(node, parse_rate(rate))


@app.command()
def link(node: Node, state: Annotated[str, typer.Argument(help="up or down.")], name: Name = DEFAULT_NAME) -> None:
    """Pull a node's cable, or put it back."""
    if state not in ("up", "down"):
        raise UsageError(f"a link is up or down, not {state!r}")
    Lab.find(name).set_link(node, up=state == "up")


@app.command()
def pause(node: Node, name: Name = DEFAULT_NAME) -> None:
    """Stop all processes of a node."""
    _say(Lab.find(name).pause(node), "stopped", node)


@app.command()
def resume(node: Node, name: Name = DEFAULT_NAME) -> None:
    """Let the processes of a node go on."""
    _say(Lab.find(name).pause(node, paused=False), "going on", node)


@app.command()
def down(
    everything: Annotated[bool, typer.Option("--all", help="All labs of this machine, also half made ones.")] = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Take a lab away, and end what still runs on its nodes."""
    check_available()
    console = make_console()
    found = labs()
    if not everything and name not in found:
        raise UsageError(f"there is no lab {name!r}" + (f"; there are {', '.join(sorted(found))}" if found else ""))
    if everything:
        remove_probes()
    for one in sorted(found) if everything else [name]:
        ended = Lab(one, found[one]).down()
        console.print(f"lab {one} is gone" + (f"; {ended} processes were still there and were ended" if ended else ""))
    if not found:
        console.print("no lab was up")


def _say(processes: list[int], what: str, node: int) -> None:
    count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    make_console().print(f"node {node}: {count} {what}")


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
    """Bytes per second as people write a network's rate.

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
