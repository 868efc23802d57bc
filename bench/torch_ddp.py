"""codedreduce against DistributedDataParallel and torchft: the same model, batches, machine and injected stalls.

python -m bench.torch_ddp [--out bench/results/torch_ddp.json] [--figure docs/torch_ddp.svg]

6 ranks in stripes, and 6 workers and a root as 2x2, s=1 (DDP: 6 ranks over Gloo). Processes are forked from one that
has PyTorch loaded; all sides take turns, and calm is repeated. "10x" stalls last nine times what a worker computes for
in a calm round of DDP.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from bench import torch_ft
from bench.forked import Outcome, run_forked
from bench.measure import save
from bench.torch_overhead import overhead
from codedreduce.report.palette import MUTED, group_colour
from codedreduce.worlds.delays import parse_delays
from codedreduce.worlds.inject import Injection, Injector

WORKERS = 6
BATCH = 64 * WORKERS
SAMPLES = 16 * BATCH
FEATURES = 256
#: Hidden widths by size of the model, and steps.
MODELS = {"1 M": ((1024, 704), 60), "10 M": ((3072, 2944), 20)}
#: The worker that stalls or is killed, in its eighth step: rank 2 of DDP and of stripes, node 3 of a tree.
UNLUCKY = 3
KILLED_AT = 8
REPEATS = 3
#: How each side is drawn: name, colour, and whether its notes stand above or below.
LINES = (
    ("ddp", "DDP", group_colour(5), -1), ("torchft", "torchft", group_colour(1), 1),
    ("codedreduce", "tree 2x2", group_colour(2), 1), ("striped", "striped", group_colour(0), 1),
)  # fmt: skip


def network(size: str) -> nn.Module:
    torch.manual_seed(0)
    widths = (FEATURES, *MODELS[size][0], 10)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(x, (x @ torch.randn(FEATURES, 10, generator=generator)).argmax(1))


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def codedreduce_rank(size: str, steps: int, killed: bool, out: str) -> None:
    """What a user's script does."""
    model, data = network(size), dataset()
    optimizer = optimizer_for(model)
    is_striped = "CODEDREDUCE_TREE" not in os.environ
    is_unlucky = int(os.environ["RANK"]) == (UNLUCKY - 1 if is_striped else UNLUCKY)
    calls = reached = 0

    def lossy(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += torch.is_grad_enabled()
        # a rank computes its unit block by block, and sees its rounds; a worker of a tree in one go, and does not
        step = reached + 1 if is_striped else calls
        if killed and is_unlucky and step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return losses(model, batch)

    begin, log = time.monotonic(), []
    with cr.join() as cluster:
        for step in cluster.train(model, data, lossy, BATCH, steps, state=[optimizer]):
            reached = step.round
            if step.round == 1:
                begin = time.monotonic() - step.seconds
            optimizer.step()
            log.append((time.monotonic() - begin, step.loss.item()))
            if cluster.is_root:
                _write(out, log)


def ddp_rank(size: str, steps: int, delays: str, killed: bool, out: str) -> None:
    """The same training with DistributedDataParallel."""
    rank = int(os.environ["RANK"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo")
    model, data = DistributedDataParallel(network(size)), dataset()
    optimizer = optimizer_for(model)
    injector = Injector(Injection(delays=parse_delays(delays, workers=WORKERS, unit=0.05, seed=0)), rank)
    never = threading.Event()
    mine = BATCH // WORKERS
    dist.barrier()
    begin, log, computing = time.monotonic(), [], []
    for step in range(1, steps + 1):
        injector.before(step, time.monotonic(), never)
        if killed and rank + 1 == UNLUCKY and step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        indices = cr.batch_indices(SAMPLES, BATCH, step)[rank * mine : (rank + 1) * mine]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[indices][0]), data[indices][1])
        computing.append(time.monotonic() - started)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        log.append((time.monotonic() - begin, float(total) / WORKERS))
        if rank == 0:
            _write(out, log)


def torchft_rank(size: str, steps: int, delays: str, killed: bool, out: str) -> None:
    """The same training with torchft, a replica for each worker."""
    data = dataset()

    def loss_of(model: nn.Module, step: int, rank: int, replicas: int) -> torch.Tensor:
        mine = BATCH // replicas
        x, y = data[cr.batch_indices(SAMPLES, BATCH, step)[rank * mine : (rank + 1) * mine]]
        return F.cross_entropy(model(x), y)

    torch_ft.torchft_rank(
        network(size), loss_of, replicas=WORKERS, steps=steps, delays=delays,
        killed=(UNLUCKY, KILLED_AT) if killed else None, write=lambda log: _write(out, log),
    )  # fmt: skip


def _write(path: str, log: list[tuple[float, float]]) -> None:
    with open(path, "a") as file:
        file.write(f"{log[-1][0]!r} {log[-1][1]!r}\n")


def run(side: str, size: str, delays: str, killed: bool = False, steps: int | None = None) -> dict[str, Any]:
    """One training; seconds and loss after each of its steps."""
    steps = steps or MODELS[size][1]
    with tempfile.NamedTemporaryFile() as file:
        begin = time.monotonic()
        outcome: Outcome
        if side == "codedreduce":
            settings = {"CODEDREDUCE_TREE": "2x2", "CODEDREDUCE_INJECT": delays}
            outcome = run_forked(
                lambda: codedreduce_rank(size, steps, killed, file.name), WORKERS + 1, settings, within=300
            )
        elif side == "striped":
            outcome = run_forked(
                lambda: codedreduce_rank(size, steps, killed, file.name), WORKERS, {"CODEDREDUCE_INJECT": delays},
                within=300,
            )  # fmt: skip
        elif side == "torchft":
            with torch_ft.lighthouse(WORKERS) as address:
                outcome = run_forked(
                    lambda: torchft_rank(size, steps, delays, killed, file.name), WORKERS,
                    {"TORCHFT_LIGHTHOUSE": address}, within=300,
                )  # fmt: skip
        else:
            outcome = run_forked(lambda: ddp_rank(size, steps, delays, killed, file.name), WORKERS, within=300)
        wall = time.monotonic() - begin
        lines = [tuple(map(float, line.split())) for line in Path(file.name).read_text().splitlines()]
    if not lines:
        raise SystemExit(f"{side} took no step: {outcome.errors}")
    first = outcome.errors.get(0, "").partition("\n")[0][:120]
    times = np.diff([0.0, *(line[0] for line in lines)])
    return {
        "steps": len(lines), "of": steps, "mean": float(times[2:].mean()), "median": float(np.median(times[2:])),
        "slowest": float(times[2:].max()), "lost": sum(bool(np.isnan(line[1])) for line in lines), "ended": first,
        "wall": wall, "curve": [line for line in lines if not np.isnan(line[1])],
    }  # fmt: skip


def conditions(stall: float) -> dict[str, tuple[str, bool]]:
    return {
        "calm": ("calm", False),
        "one stalls 10x in 1 of 4 rounds": (f"worker:{UNLUCKY}:0.25:{stall:.4f}s", False),
        "one stalls 10x in every round": (f"worker:{UNLUCKY}:1:{stall:.4f}s", False),
        "one is killed": ("calm", True),
    }


def compare(size: str) -> dict[str, Any]:
    sides = ["ddp", "codedreduce", "striped", *(["torchft"] if torch_ft.available() else [])]
    calm: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(REPEATS):
        for side, runs in calm.items():
            runs.append(run(side, size, "calm"))
    ratio = statistics.median(
        mine["mean"] / theirs["mean"] for mine, theirs in zip(calm["codedreduce"], calm["ddp"], strict=True)
    )
    step = statistics.median(one["median"] for one in calm["ddp"])
    striped = statistics.median(
        mine["mean"] / theirs["mean"] for mine, theirs in zip(calm["striped"], calm["ddp"], strict=True)
    )
    found = f"tree / DDP {ratio:.2f}, striped / DDP {striped:.2f}"
    print(f"{size}: calm, DDP {1000 * step:.0f} ms a step, {found}", flush=True)
    results: dict[str, Any] = {}
    for name, (delays, killed) in conditions(9 * step).items():
        if name == "calm":
            results[name] = {side: _middle(found) for side, found in calm.items()}
            continue
        results[name] = {side: run(side, size, delays, killed) for side in sides}
        for side, one in results[name].items():
            steps = f"{one['steps']}/{one['of']} steps, {one['lost']} lost, {1000 * one['mean']:.0f} ms"
            print(f"{size}: {name}, {side}: {steps}, slowest {one['slowest']:.2f} s {one['ended']}", flush=True)
    return {
        "calm_ratio": ratio,
        "striped_calm_ratio": striped,
        "stall": 9 * step,
        "conditions": results,
        "overhead": overhead(network(size)),
    }


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(runs, key=lambda one: one["mean"])[len(runs) // 2]


def table(results: dict[str, Any]) -> str:
    """Milliseconds of a step, as Markdown."""
    lines = [
        "| parameters | condition | DDP | torchft | tree 2x2 | striped | DDP / tree | DDP / striped |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, found in results.items():
        for name, sides in found["conditions"].items():
            order = ("ddp", "torchft", "codedreduce", "striped")
            cells = [_cell(sides[side]) if side in sides else "" for side in order]
            is_over = sides["ddp"]["steps"] < sides["ddp"]["of"]
            for side in order[2:]:
                cells.append("" if is_over else f"{sides['ddp']['mean'] / sides[side]['mean']:.2f}x")
            lines.append("| " + " | ".join([size, name, *cells]) + " |")
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    if one["steps"] < one["of"]:
        return f"the run ends at step {one['steps'] + 1}"
    lost = f", {one['lost']} steps lost" if one["lost"] else ""
    return f"{1000 * one['mean']:.0f} ms (slowest {1000 * one['slowest']:.0f}){lost}"


def draw(results: dict[str, Any], path: Path) -> None:
    """Loss against seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(results), 4, figsize=(12, 2.9 * len(results)), squeeze=False, sharey="row")
    for row, (size, found) in zip(panels, results.items(), strict=True):
        for axes, (name, sides) in zip(row, found["conditions"].items(), strict=True):
            for side, label, colour, up in LINES:
                if side not in sides:
                    continue
                seconds, loss = zip(*sides[side]["curve"], strict=True)
                axes.plot(seconds, loss, color=colour, label=label, linewidth=1.6)
                if sides[side]["steps"] < sides[side]["of"]:
                    axes.plot(seconds[-1], loss[-1], "x", color=colour, markersize=9)
                    where = {"xytext": (6, 8 * up), "textcoords": "offset points", "annotation_clip": False}
                    axes.annotate(f"{label} ends", (seconds[-1], loss[-1]), fontsize=8, color=colour, **where)
            axes.set_title(f"{size}: {name}", fontsize=9)
            axes.set_xlabel("seconds", fontsize=8)
            axes.grid(color=MUTED, alpha=0.2)
            for edge in ("top", "right"):
                axes.spines[edge].set_visible(False)
        row[0].set_ylabel("training loss", fontsize=8)
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results/torch_ddp.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/torch_ddp.svg"))
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    optimizer_for(nn.Linear(1, 1)).step()  # loads what optimizers need
    results = {size: compare(size) for size in options.models.split(",")}
    draw(results, options.figure)
    save(options.out, {"workers": WORKERS, "batch": BATCH, "models": results})
    print(table(results))
    print(json.dumps({size: found["overhead"] for size, found in results.items()}, indent=1))


if __name__ == "__main__":
    main()
