"""`codedreduce replay`: run a traced simulation again and step through it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from codedreduce.cli.terminal.console import make_console
from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.simulator.scenario import ENDLESS, Scenario, write_trace


def replay(
    file: Annotated[Path, typer.Argument(help="Trace that `simulate --trace` or a failing test wrote.")],
    node: Annotated[int | None, typer.Option(help="Show only the events at this node.")] = None,
    round: Annotated[int | None, typer.Option(help="Show only this round.")] = None,
    step: Annotated[bool, typer.Option(help="Wait for Enter after every event.")] = False,
) -> None:
    """Run the scenario of a trace again, check that the events are the same, and show them one by one."""
    try:
        recorded = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{str(file)!r} is not a trace; `codedreduce simulate --trace FILE` writes one") from None
    scenario = Scenario.from_json(recorded.partition("\n")[0])
    again = io.StringIO()
    console = make_console()
    failure = ""
    try:
        write_trace(scenario, again, latest=ENDLESS / 2)
    except (CodedReduceError, AssertionError) as error:
        failure = f"{type(error).__name__}: {error}"
    show(console, again.getvalue().splitlines()[1:], node, round, step and sys.stdin.isatty())
    lines = [line for line in recorded.splitlines() if not line.startswith("!!")]
    if failure:
        console.print(f"it ends with {failure}", style="red")
    if lines != again.getvalue().splitlines():
        raise CodedReduceError(
            "the run differs from the trace: another version wrote the trace, or its file was changed"
        )
    console.print("the run is the same as the trace")


def show(console: Console, lines: list[str], node: int | None, round_: int | None, step: bool) -> None:
    """Print events, each followed by its actions."""
    current = 1
    events: list[list[str]] = []
    for line in lines:
        if line.startswith("    "):
            events[-1].append(line)
        else:
            events.append([line])
    for event in events:
        head = event[0]
        ends = head.startswith("== round")
        here = round_ is None or current == round_
        if here and (ends or node is None or head.split(" ")[2] == str(node)):
            console.print("\n".join(event), style="bold" if ends else None, soft_wrap=True)
            if step and not ends and _is_enough():
                return
        if ends:
            current += 1


def _is_enough() -> bool:
    """Wait for Enter. True if the user wants to see no more events."""
    try:
        return input() in ("q", "quit")
    except EOFError:
        return True
