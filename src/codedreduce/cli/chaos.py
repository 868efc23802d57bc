"""`codedreduce chaos`: inject a fault into a run every second, and check whether the run survives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from codedreduce.cli.terminal.console import make_lasting_console
from codedreduce.cli.terminal.options import parse_shape
from codedreduce.cli.terminal.output_files import check_writable, write_json
from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.lab import check_available
from codedreduce.lab.chaos import chaos_run, schedule
from codedreduce.lab.chaos.chaos_run import ChaosProgress, Outcome, Setup
from codedreduce.lab.chaos.schedule import KINDS, ChaosFault, Kind
from codedreduce.lab.laboratory import MOST_NODES
from codedreduce.units import human_seconds
from codedreduce.units import rate as parse_rate
from codedreduce.units import seconds as parse_seconds

#: The default number of ranks.
WORKERS = 20

#: Limits: seconds of a chaos run, and number of faults.
LONGEST, MOST_FAULTS = 7 * 86400, 1_000_000


def chaos(
    minutes: Annotated[float, typer.Option(help="Duration in minutes.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the schedule of faults.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--workers",
            min=2,
            max=MOST_NODES,
            show_default=str(WORKERS),
            help="Number of ranks of a striped run.",
        ),
    ] = None,
    tree: Annotated[str | None, typer.Option(help="Use a tree instead of stripes: FANOUTxDEPTH.")] = None,
    pytorch: Annotated[bool, typer.Option("--torch", help="Train in PyTorch instead of NumPy.")] = False,
    every: Annotated[str, typer.Option(help="Time between two faults.")] = "1s",
    only: Annotated[
        str | None, typer.Option(help=f"Use only these faults, separated by commas: {', '.join(KINDS)}.")
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate of every node's link.")] = "100mbit",
    trace: Annotated[Path | None, typer.Option(help="File for the schedule of faults, for --replay.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Repeat a schedule that --trace wrote.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder for the logs and results of the processes.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the result, as JSON.")] = None,
    lab_name: Annotated[str, typer.Option("--lab-name", help="Name of the lab that the command creates.")] = "chaos",
) -> None:
    """Kill, stop and disconnect real processes in a lab, the leader too, and compare with a fault-free run.

    Prints rounds, faults, the longest pause, lost rounds, and whether the model is bit-identical. Needs root.
    """
    seconds = 60 * minutes
    if not 0 < seconds <= LONGEST:
        raise UsageError(f"`--minutes {minutes:g}`: the duration must be above 0 minutes and at most a week")
    check_writable(trace, out)
    count = workers or WORKERS
    if tree is not None:
        count = parse_shape(tree, 1, most=MOST_NODES - 1, why="for a lab").workers
        if workers is not None and workers != count:
            raise UsageError(f"`-n {workers}`: the tree {tree} has {count} workers; specify only one of them")
    with tempfile.TemporaryDirectory(prefix="codedreduce-chaos-") as scratch:
        folder = keep or Path(scratch)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
        if any(folder.glob("rounds-*")):
            raise UsageError(f"`--keep {folder}`: the folder has files of another chaos run; specify another folder")
        setup = Setup(
            workers=count, shape=tree, kind="torch" if pytorch else "numpy", rate=parse_rate(rate), folder=folder,
            lab=lab_name, seed=seed,
        )  # fmt: skip
        faults = _faults(setup, replay, seconds, seed, parse_seconds(every), _kinds(only))
        check_available()
        if trace is not None:
            schedule.write(trace, faults)
        outcome = _run(setup, faults, seconds)
    console = make_lasting_console()
    console.print(_summary(outcome))
    if out is not None:
        write_json(out, outcome)
        console.print(f"wrote {out}")
    if not outcome.is_good:
        raise CodedReduceError("the run failed: it lost rounds, left something behind, or its model differs; see above")


def _kinds(only: str | None) -> tuple[Kind, ...]:
    chosen = tuple(kind for kind in KINDS if only is None or kind in only.split(","))
    unknown = set(only.split(",")) - set(KINDS) if only is not None else set()
    if unknown:
        raise UsageError(f"unknown fault {sorted(unknown)[0]!r}; there are {', '.join(KINDS)}")
    return chosen


def _faults(
    setup: Setup, replay: Path | None, seconds: float, seed: int, every: float, kinds: tuple[Kind, ...]
) -> list[ChaosFault]:
    if not every > 0:
        raise UsageError("`--every`: the time between two faults must be above 0; as --every 1s")
    if seconds / every > MOST_FAULTS:
        raise UsageError(
            f"a fault every {every:g} s for {seconds:g} s is more than {MOST_FAULTS:,} faults; use --every 1s"
        )
    found = (
        schedule.read(replay) if replay else schedule.drawn(setup.processes, seconds, seed, every=every, kinds=kinds)
    )
    beyond = sorted({node for fault in found for node in fault.nodes if not 0 <= node < setup.processes})
    if beyond:
        raise UsageError(
            f"the schedule names the nodes {beyond}, but this run has only {setup.processes}; use more workers"
        )
    return found


def _run(setup: Setup, faults: list[ChaosFault], seconds: float) -> Outcome:
    console = make_lasting_console()
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def look(progress: ChaosProgress) -> None:
            live.update(_view(setup, progress))

        return chaos_run.run(setup, faults, seconds, look)


def _view(setup: Setup, progress: ChaosProgress) -> Group:
    """The state of the run: a line of figures, and every node with its current fault."""
    last = progress.pauses()[-20:]
    line = (
        f"{progress.elapsed:4.0f} of {progress.seconds:.0f} s   round {progress.rounds}   "
        f"{sum(progress.faults.values())} of {progress.planned} faults   {progress.lost} rounds lost   "
        f"a round {human_seconds(sum(last) / len(last)) if last else '-'}   "
        f"longest pause {human_seconds(max(progress.pauses(), default=0.0))}   leader: rank {progress.leader}"
    )
    nodes = Text("nodes  ")
    for node in range(setup.processes):
        kind = progress.wrong.get(node)
        nodes.append(f"{node}:{kind} " if kind else f"{node} ", style="bold yellow" if kind else "dim")
    return Group(Text(line), nodes)


def _summary(outcome: Outcome) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.faults.items()))
    rows = [
        ("run", f"{outcome.scheme}, {outcome.workers} workers, {outcome.kind}, {outcome.seconds:.0f} s"),
        ("faults survived", f"{outcome.survived}: {kinds}"),
        ("rounds", f"{outcome.rounds}, a median {human_seconds(outcome.median_round)} each"),
        ("rounds lost", str(outcome.rounds_lost)),
        ("longest pause", human_seconds(outcome.longest_pause)),
    ]
    if outcome.root_kills:
        rows.append(
            (
                "kills of the leader",
                f"{outcome.root_kills}; the next round ended at most "
                f"{human_seconds(outcome.longest_after_root_kill)} later"
                + (f"; {outcome.rounds_again} rounds repeated" if outcome.rounds_again else ""),
            )
        )
    rows += [
        (
            "bit-identical to a fault-free run",
            f"{'yes' if outcome.same_bits else 'NO'}, at {outcome.finished} processes",
        ),
        ("left behind", f"{outcome.left_processes} processes, {outcome.left_files} files in /dev/shm"),
    ]
    for row in rows:
        table.add_row(*row)
    return table
