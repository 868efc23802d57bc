"""`codedreduce train`: train a model on this host, one process per worker."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from codedreduce.cli.lab import InLab, LabName, chosen_lab
from codedreduce.cli.terminal.console import make_lasting_console
from codedreduce.cli.terminal.options import (
    MOST_PROCESSES,
    TOLERATED,
    Audit,
    Inject,
    OnExcess,
    Order,
    Quarantine,
    SayWaitingAfter,
    Seed,
    Stragglers,
    Units,
    check_processes,
    check_scheme_options,
    parse_shape,
)
from codedreduce.cli.terminal.output_files import check_writable, write_whole
from codedreduce.errors import UsageError
from codedreduce.lab import DEFAULT_NAME
from codedreduce.protocol.core.audits import QUARANTINE
from codedreduce.protocol.core.events import Note
from codedreduce.run.configuration import DEFAULTS
from codedreduce.run.journal import RoundLog
from codedreduce.schemes import Scheme, Striped
from codedreduce.schemes.choice import choose
from codedreduce.schemes.names import parse_scheme
from codedreduce.training.checkpoints import KEPT, saving_to
from codedreduce.training.data import Source, synthetic
from codedreduce.training.files import open_data
from codedreduce.training.loop import Job, TrainingResult, run_job
from codedreduce.training.objectives import LinearRegression, LogisticRegression, Objective, Softmax
from codedreduce.training.optimizers import parse_optimizer
from codedreduce.units import seconds as parse_seconds

#: The default number of workers.
WORKERS = 20

#: Limit of parameters of a model that is trained on one host.
MOST_PARAMETERS = 10**9


def train(
    data: Annotated[Path | None, typer.Option(help="Data file: .npz (x, y), .csv (label last) or LIBSVM text.")] = None,
    model: Annotated[str, typer.Option(help="Model: linear, logistic or softmax:CLASSES.")] = "logistic",
    workers: Annotated[
        int | None,
        typer.Option("-n", "--workers", min=1, help="Number of workers; default 20, or the workers of --tree."),
    ] = None,
    tree: Annotated[str | None, typer.Option(help="Tree: FANOUTxDEPTH, as 4x2, or WORKERS/FANOUT, as 50/4.")] = None,
    stragglers: Stragglers = None,
    scheme: Annotated[
        str | None, typer.Option(help="striped, coded-reduce, master-worker, ring, ...; default chosen for the model.")
    ] = None,
    order: Order = None,
    units: Units = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of steps.")] = 200,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.1,
    optimizer: Annotated[str, typer.Option(help="Optimizer: sgd, momentum, nesterov or adam.")] = "sgd",
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per round; default all.")] = None,
    seed: Seed = 0,
    inject: Inject = None,
    on_excess: OnExcess = "wait",
    say_waiting_after: SayWaitingAfter = "30s",
    save: Annotated[Path | None, typer.Option(help="File for the final parameters, .npz.")] = None,
    log: Annotated[Path | None, typer.Option(help="File for the log: one JSON line per round.")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder for checkpoints.")] = None,
    checkpoint_every: Annotated[
        str, typer.Option(help="Checkpoint interval: rounds, as 100, or a time, as 60s or 5min.")
    ] = "60s",
    keep: Annotated[int, typer.Option(min=1, help="Number of checkpoints to keep.")] = KEPT,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in the folder.")] = False,
    restart: Annotated[bool, typer.Option(help="Restart workers that are killed.")] = True,
    audit: Audit = 0.0,
    quarantine: Quarantine = QUARANTINE,
    in_lab: InLab = False,
    lab_name: LabName = DEFAULT_NAME,
) -> None:
    """Train a model on this host; without --data, on generated data."""
    if not 0 < lr < float("inf"):
        raise UsageError(f"`--lr {lr:g}`: the learning rate must be a number above 0, as 0.1")
    check_writable(save, log)
    made = synthetic(6300, 1000, kind="linear" if model == "linear" else "logistic")
    source, objective = open_data(data) if data else made, _objective(model)
    reason = ""
    if data is not None:
        source = _checked(data, source, objective)
    features = source.shape().features
    if objective.parameters(features) > MOST_PARAMETERS:
        raise UsageError(f"`--model {model}`: {objective.parameters(features):,} parameters are too many for one host")
    if scheme is None and tree is None and units is None and order is None:
        count = workers or WORKERS
        check_processes(count, f"--workers {count}")
        if stragglers is not None and stragglers >= count:
            raise UsageError(f"`--stragglers {stragglers}`: at most {count - 1} of {count} workers can be stragglers")
        length = objective.parameters(source.shape().features) + 1
        tolerated = TOLERATED if stragglers is None else stragglers
        choice = choose(count, length, shared_memory=not in_lab, stragglers=tolerated, audited=audit > 0)
        chosen, reason = choice.scheme, choice.reason
    else:
        chosen = _scheme(scheme, workers, tree, stragglers, order, units)
    job = Job(
        objective=objective, source=source, rounds=rounds, batch=batch, seed=seed, scheme=chosen,
        optimizer=parse_optimizer(optimizer, lr), restart=restart,
        saving=saving_to(checkpoints, checkpoint_every, keep, resume=resume),
        configuration=DEFAULTS.override(
            on_excess=on_excess, say_waiting_after=parse_seconds(say_waiting_after), audit=audit, quarantine=quarantine,
            inject=inject,
        ),
    )  # fmt: skip
    job = replace(job, site=chosen_lab(in_lab, lab_name, len(job.plan().nodes)))
    job.injection()
    if on_excess != "wait" and isinstance(chosen, Striped):
        raise UsageError(
            f"`--on-excess {on_excess}`: a striped run always computes the exact sum; leave the option out"
        )
    console = make_lasting_console()
    result = _run(job, console, f"{chosen}: {reason}" if reason else "")
    _write(result, save, log)
    _sum_up(result, console)
    for path in (save, log):
        if path is not None:
            console.print(f"wrote {path}")
    if result.interrupted:
        raise typer.Exit(130)


def _scheme(
    scheme: str | None, workers: int | None, tree: str | None, stragglers: int | None, order: str | None,
    units: int | None,
) -> Scheme:  # fmt: skip
    """The scheme that --scheme names, or the one that the other options imply."""
    if scheme is None:
        scheme = "coded-reduce" if units is None else "striped"
    check_scheme_options([scheme], stragglers=stragglers, order=order)
    tolerated = TOLERATED if stragglers is None else stragglers
    if tree is None:
        check_processes(workers or WORKERS, f"--workers {workers}")
        tree = f"{workers or WORKERS}/{max(4, tolerated + 1)}"
    shape = parse_shape(tree, stragglers, most=MOST_PROCESSES, why="for one host")
    if workers is not None and workers != shape.workers:
        raise UsageError(f"`-n {workers}`: the tree {tree} has {shape.workers} workers; specify only one of them")
    return parse_scheme(scheme, tree=shape, stragglers=tolerated, order=order or "progressive", units=units)


def _write(result: TrainingResult, save: Path | None, log: Path | None) -> None:
    """Write the results into files; first the parameters, which cost most to compute again."""
    if save is not None:
        write_whole(save, lambda file: np.savez(file, parameters=result.parameters))
    if log is not None:
        write_whole(log, lambda file: file.writelines(_log_lines(result.history)))


def _run(job: Job, console: Console, first: str) -> TrainingResult:
    """Run a job with a progress bar. The first line is printed once all checks of the configuration have passed."""
    columns = (
        TextColumn("{task.completed}/{task.total}"), BarColumn(),
        TextColumn("loss {task.fields[loss]:.5f}  {task.fields[rate]:.1f} rounds/s  {task.fields[late]} late"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=job.rounds, loss=float("nan"), rate=0.0, late=0)
        spent, late = 0.0, 0

        def begin() -> None:
            nonlocal first
            if first:
                console.print(first)
            first = ""

        def on_note(note: Note) -> None:
            begin()
            console.print(note.reason)

        def on_round(log: RoundLog) -> None:
            nonlocal spent, late
            begin()
            spent += log.seconds
            late += len(log.late)
            bar.update(task, completed=log.round, loss=log.loss, rate=log.round / spent, late=late)

        return run_job(job, on_round=on_round, on_note=on_note)


def _sum_up(result: TrainingResult, console: Console) -> None:
    how = "interrupted after" if result.interrupted else "trained for"
    last = result.history[-1].loss if result.history else float("nan")
    spent = sum(log.seconds for log in result.history)
    console.print(f"{how} {len(result.history)} rounds in {spent:.1f} s, loss {last:.6g}")
    seen = sorted({node for log in result.history for node in log.late})
    if seen:
        console.print(f"stragglers seen: {_names(seen)}; {result.saved:.1f} s saved against waiting for all")
    approximate = [log for log in result.history if log.residual]
    if approximate:
        worst = max(log.residual for log in approximate)
        console.print(f"{len(approximate)} rounds continued without the whole batch; residual up to {worst:.3g}")


def _objective(text: str) -> Objective:
    if text == "linear":
        return LinearRegression()
    if text == "logistic":
        return LogisticRegression()
    name, _, classes = text.partition(":")
    if name == "softmax" and re.fullmatch(r"[0-9]{1,9}", classes) and int(classes) > 1:
        return Softmax(int(classes))
    raise UsageError(f"unknown model {text!r}; there are linear, logistic and softmax:CLASSES")


def _checked(path: Path, source: Source, objective: Objective) -> Source:
    """Refuse a file without samples or features, data that exceed the memory, and labels that the model cannot use."""
    samples, features = source.shape()
    if not samples or not features:
        source.read([range(min(1, samples))])  # raises an error that names an invalid line
        raise UsageError(f"{path.name} has no {'features' if samples else 'samples'}; name another file with --data")
    needed, there = 4 * samples * features, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UsageError(f"{path.name}: {samples:,} samples of {features:,} features do not fit into memory")
    if isinstance(objective, LinearRegression):
        return source
    most = objective.classes - 1 if isinstance(objective, Softmax) else 1
    loaded = source.loaded()
    wrong = (loaded.y < 0) | (loaded.y > most) | (isinstance(objective, Softmax) & (loaded.y != np.floor(loaded.y)))
    if wrong.any():
        sample = int(np.argmax(wrong))
        raise UsageError(
            f"{path.name}: sample {sample} has the label {loaded.y[sample]:g}; "
            f"this model needs labels from 0 to {most} (see --model)"
        )
    return loaded


def _log_lines(history: tuple[RoundLog, ...]) -> Iterator[bytes]:
    for entry in history:
        lateness = {str(node): round(seconds, 6) for node, seconds in entry.lateness.items()}
        line = {
            "round": entry.round,
            "seconds": entry.seconds,
            "loss": entry.loss,
            "late": entry.late,
            "lateness": lateness,
            "saved": entry.saved,
            "residual": entry.residual,
        }
        yield msgspec.json.encode(line) + b"\n"


def _names(nodes: list[int]) -> str:
    shown = ", ".join(map(str, nodes[:12]))
    return shown if len(nodes) <= 12 else f"{shown} and {len(nodes) - 12} more"
