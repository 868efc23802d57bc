"""`codedreduce simulate`: all schemes under the same simulated conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from codedreduce.cli.files import open_to_write, write_results
from codedreduce.comparison.names import ALL, scenario_for, scheme_names
from codedreduce.comparison.result import Comparison
from codedreduce.comparison.simulated import simulate_schemes
from codedreduce.report.comparison import comparison_table, write_comparison
from codedreduce.units import rate as parse_rate
from codedreduce.units import seconds as parse_seconds
from codedreduce.worlds.simulated.scenario import Scenario, write_trace


def simulate(
    tree: Annotated[str, typer.Option(help="FANOUTxDEPTH, as 4x3, or WORKERS/FANOUT, as 50/4.")] = "4x3",
    stragglers: Annotated[int, typer.Option(help="Stragglers tolerated under each parent.")] = 1,
    schemes: Annotated[str, typer.Option(help=f"all, or some of {','.join(ALL)}.")] = "all",
    delays: Annotated[
        str, typer.Option(help="calm, exponential, bursty, sticky, stalls:P:SECONDS or a trace FILE.npz:key.")
    ] = "bursty",
    rate: Annotated[str, typer.Option(help="Of each node's interface, each way.")] = "60mbit",
    latency: Annotated[str, typer.Option(help="Between any two nodes.")] = "0.5ms",
    parameters: Annotated[int, typer.Option(help="float32 numbers in the model.")] = 5800,
    samples: Annotated[int, typer.Option(help="In the batch.")] = 6300,
    compute: Annotated[str, typer.Option(help="Time of the whole batch on one worker.")] = "20s",
    rounds: Annotated[int, typer.Option(help="Rounds for each scheme.")] = 200,
    head_start: Annotated[float, typer.Option(help="Before redundant work, as a part of the time taken so far.")] = 0.2,
    code: Annotated[str, typer.Option(help="Of the eager scheme: repetition or cyclic.")] = "repetition",
    seed: Annotated[int, typer.Option(help="The same seed, the same run.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write results here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write DIR/index.html.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write every event of the first scheme here, for replay.")] = None,
) -> None:
    """Compare schemes in virtual time: the same protocol as on a cluster, real vectors, an oracle for every round."""
    base = Scenario(
        tree=tree, stragglers=stragglers, delays=delays, rate=parse_rate(rate), latency=parse_seconds(latency),
        parameters=parameters, samples=samples, compute=parse_seconds(compute), rounds=rounds, seed=seed,
        head_start=head_start, code=code,
    )  # fmt: skip
    names = scheme_names(schemes)
    console = Console()
    if trace is not None:
        with open_to_write(trace) as file:
            write_trace(scenario_for(base, names[0]), file)
        console.print(f"wrote {trace}; step through it with: codedreduce replay {trace}")
    comparison = _simulate(base, names, console)
    console.print(comparison_table(comparison.results))
    if json is not None:
        write_results(json, conditions=base, seed=seed, results=comparison.results)
        console.print(f"wrote {json}")
    if report is not None:
        console.print(f"wrote {write_comparison(report, 'Simulated round times', _lead(base), comparison)}")


def _simulate(base: Scenario, names: list[str], console: Console) -> Comparison:
    """Run all of them behind a bar."""
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"),
        TimeElapsedColumn(), console=console, transient=True,
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
