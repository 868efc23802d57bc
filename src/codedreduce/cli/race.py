"""`codedreduce race`: all schemes in real processes on this host, under the same injected delays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from codedreduce.cli.lab import InLab, LabName, chosen_lab
from codedreduce.cli.terminal.comparison_output import show_comparison
from codedreduce.cli.terminal.console import make_lasting_console
from codedreduce.cli.terminal.options import (
    MOST_PROCESSES,
    MOST_ROUNDS,
    TOLERATED,
    Seed,
    Stragglers,
    check_memory,
    check_scheme_options,
    parse_shape,
)
from codedreduce.cli.terminal.output_files import check_folder, check_writable
from codedreduce.comparison.race_runs import race_schemes, racing_schemes
from codedreduce.comparison.result import Comparison
from codedreduce.comparison.selection import ALL, scenario_for, scheme_names
from codedreduce.lab import DEFAULT_NAME
from codedreduce.run.configuration import Configuration
from codedreduce.run.delays import parse_delays
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme
from codedreduce.simulator.scenario import Scenario
from codedreduce.training.data import synthetic
from codedreduce.training.loop import Job
from codedreduce.training.objectives import LogisticRegression
from codedreduce.training.optimizers import SGD
from codedreduce.units import human_seconds
from codedreduce.units import seconds as parse_seconds


def race(
    tree: Annotated[str, typer.Option(help="Tree: FANOUTxDEPTH, as 4x2, or WORKERS/FANOUT, as 50/4.")] = "4x2",
    stragglers: Stragglers = None,
    schemes: Annotated[
        str, typer.Option(help=f"Schemes, separated by commas: all, or some of {','.join(ALL)}.")
    ] = "all",
    delays: Annotated[
        str, typer.Option(help="Delays of workers; the same values as for `simulate`.")
    ] = "stalls:0.05:0.5s",
    compute: Annotated[str, typer.Option(help="Minimum time that one worker needs for the whole batch.")] = "2s",
    parameters: Annotated[int, typer.Option(min=1, help="Number of features of the logistic regression.")] = 1000,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples in the batch.")] = 6300,
    rounds: Annotated[int, typer.Option(min=1, max=MOST_ROUNDS, help="Number of rounds for each scheme.")] = 25,
    seed: Seed = 0,
    json: Annotated[Path | None, typer.Option(help="File for the results.")] = None,
    report: Annotated[Path, typer.Option(help="Folder for the HTML report (index.html).")] = Path("report"),
    in_lab: InLab = False,
    lab_name: LabName = DEFAULT_NAME,
) -> None:
    """Train the same model with every scheme in real processes, and compare what stragglers cost each scheme."""
    names, tolerated = scheme_names(schemes), TOLERATED if stragglers is None else stragglers
    check_scheme_options(names, stragglers=stragglers)
    shape = parse_shape(tree, tolerated, most=MOST_PROCESSES, why="for one host")
    check_memory(samples, parameters)
    batch_seconds = parse_seconds(compute)
    parse_delays(delays, workers=shape.workers, unit=1.0, seed=seed)
    base = Scenario(
        tree=tree, stragglers=tolerated, delays=delays, compute=batch_seconds or 1.0, samples=samples, seed=seed
    )  # fmt: skip
    for name in names:
        scenario_for(base, name).plan()
    check_writable(json)
    check_folder(report)
    chosen = racing_schemes(base, names)
    data = synthetic(samples, parameters, seed=seed)
    processes = max(len(scheme.plan(samples=samples).nodes) for scheme in chosen.values())
    job = Job(
        objective=LogisticRegression(), source=data, rounds=rounds,
        scheme=next(iter(chosen.values())), optimizer=SGD(1.0), seed=seed, compute=batch_seconds,
        configuration=Configuration(inject=delays), site=chosen_lab(in_lab, lab_name, processes),
    )  # fmt: skip
    console = make_lasting_console()
    comparison = _race(job, chosen, console)
    lead = (
        f"{rounds} rounds of logistic regression in real processes, {samples} samples, {parameters} parameters, "
        f"{shape.workers} workers ({tree}, s={tolerated}), delays {delays.rpartition('/')[2]}, "
        f"{batch_seconds:g} s of computation, seed {seed}"
    )
    conditions = {
        "tree": tree, "stragglers": tolerated, "delays": delays, "compute": batch_seconds, "rounds": rounds,
        "parameters": parameters, "samples": samples,
    }  # fmt: skip
    show_comparison(
        comparison, [scheme.label for scheme in chosen.values()], console, title="Race", lead=lead, report=report,
        json=json, conditions=conditions, seed=seed,
    )  # fmt: skip


def _race(job: Job, schemes: dict[str, Scheme], console: Console) -> Comparison:
    """Run the schemes and update a live table after every round."""
    logs: dict[str, list[RoundLog]] = {name: [] for name in schemes}
    comparison = None
    try:
        with Live(console=console, refresh_per_second=8, transient=True) as live:

            def show() -> None:
                live.update(_progress({schemes[name].label: found for name, found in logs.items()}, job.rounds))

            def on_round(name: str, log: RoundLog) -> None:
                logs[name].append(log)
                show()

            show()
            comparison = race_schemes(
                job, schemes, on_round=on_round, on_note=lambda note: live.console.print(note.reason)
            )
    except KeyboardInterrupt as interrupt:  # while the live table closes: all schemes are finished
        if comparison is None:
            raise
        return replace(comparison, stopped_by=interrupt)
    return comparison


def _progress(logs: dict[str, list[RoundLog]], rounds: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("scheme", no_wrap=True)
    for column in ("rounds", "mean", "slowest", "loss", "late"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, found in logs.items():
        if not found:
            table.add_row(label, f"0/{rounds}", style="dim")
            continue
        seconds = [log.seconds for log in found]
        late = sum(len(log.late) for log in found)
        mean, slowest = human_seconds(sum(seconds) / len(seconds)), human_seconds(max(seconds))
        table.add_row(
            label, f"{len(found)}/{rounds}", mean, slowest, f"{found[-1].loss:.5f}", str(late),
            style="" if len(found) == rounds else "bold",
        )  # fmt: skip
    return table
