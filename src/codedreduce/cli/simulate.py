"""`codedreduce simulate`: all schemes under the same simulated conditions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from codedreduce.cli.terminal.comparison_output import show_comparison
from codedreduce.cli.terminal.console import make_lasting_console
from codedreduce.cli.terminal.options import (
    MOST_ROUNDS,
    MOST_SIMULATED,
    TOLERATED,
    Seed,
    Stragglers,
    check_memory,
    check_scheme_options,
    parse_shape,
)
from codedreduce.cli.terminal.output_files import check_folder, check_writable, write_whole
from codedreduce.comparison.result import Comparison
from codedreduce.comparison.selection import ALL, scenario_for, scheme_names
from codedreduce.comparison.simulated_runs import simulate_schemes
from codedreduce.simulator.scenario import Scenario, write_trace
from codedreduce.units import rate as parse_rate
from codedreduce.units import seconds as parse_seconds


def simulate(
    tree: Annotated[str, typer.Option(help="Tree: FANOUTxDEPTH, as 4x3, or WORKERS/FANOUT, as 50/4.")] = "4x3",
    stragglers: Stragglers = None,
    schemes: Annotated[
        str, typer.Option(help=f"Schemes, separated by commas: all, or some of {','.join(ALL)}.")
    ] = "all",
    delays: Annotated[
        str,
        typer.Option(
            help="Delays of workers: calm (none), exponential, bursty, sticky, stalls:P:SECONDS, or FILE.npz:KEY."
        ),
    ] = "bursty",
    rate: Annotated[str, typer.Option(help="Rate of each node's link, in each direction.")] = "60mbit",
    latency: Annotated[str, typer.Option(help="Latency between any two nodes.")] = "0.5ms",
    parameters: Annotated[int, typer.Option(min=1, help="Number of float32 parameters of the model.")] = 5800,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples in the batch.")] = 6300,
    compute: Annotated[str, typer.Option(help="Time that one worker needs for the whole batch.")] = "20s",
    rounds: Annotated[int, typer.Option(min=1, max=MOST_ROUNDS, help="Number of rounds for each scheme.")] = 200,
    head_start: Annotated[
        float, typer.Option(min=0, max=1000, help="Wait before redundant work, as a fraction of the time taken so far.")
    ] = 0.2,
    code: Annotated[str, typer.Option(help="Gradient code of the eager scheme: repetition or cyclic.")] = "repetition",
    seed: Seed = 0,
    json: Annotated[Path | None, typer.Option(help="File for the results.")] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for the HTML report (index.html).")] = None,
    trace: Annotated[Path | None, typer.Option(help="File for all events of the first scheme, for `replay`.")] = None,
) -> None:
    """Compare schemes in virtual time: the real protocol, real vectors, and a check of every round's result."""
    names, tolerated = scheme_names(schemes), TOLERATED if stragglers is None else stragglers
    check_scheme_options(names, stragglers=stragglers)
    shape = parse_shape(tree, tolerated, most=MOST_SIMULATED, why="to simulate")
    check_memory(samples, parameters)
    check_memory(rounds, shape.workers)  # their delays
    base = Scenario(
        tree=tree, stragglers=tolerated, delays=delays, rate=parse_rate(rate), latency=parse_seconds(latency),
        parameters=parameters, samples=samples, compute=parse_seconds(compute), rounds=rounds, seed=seed,
        head_start=head_start, code=code,
    )  # fmt: skip
    base.delay_model()
    labels = [scenario_for(base, name).plan().scheme.label for name in names]
    check_writable(json, trace)
    check_folder(report)
    console = make_lasting_console()
    if trace is not None:
        text = io.StringIO()
        write_trace(scenario_for(base, names[0]), text)
        write_whole(trace, lambda file: file.write(text.getvalue().encode()))
        console.print(f"wrote {trace}; step through it with: codedreduce replay {trace}")
    comparison = _simulate(base, names, console)
    show_comparison(
        comparison, labels, console, title="Simulated round times", lead=_lead(base), report=report, json=json,
        conditions=base, seed=seed,
    )  # fmt: skip


def _simulate(base: Scenario, names: list[str], console: Console) -> Comparison:
    """Run all schemes with a progress bar."""
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"),
        TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("starting", total=base.rounds)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        return simulate_schemes(base, names, progress=show)


def _lead(base: Scenario) -> str:
    return (
        f"{base.rounds} simulated rounds, tree {base.tree}, s={base.stragglers}, "
        f"delays {base.delays.rpartition('/')[2]}, {base.parameters} parameters, "
        f"{base.samples} samples, {base.compute:g} s of computation, "
        f"{base.rate * 8 / 1e6:g} Mbit/s, {base.latency * 1e3:g} ms, seed {base.seed}"
    )
