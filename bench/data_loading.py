"""How long a step takes whose samples take as long to load as to compute: a plain DataLoader, and training with it.

    python -m bench.data_loading --out bench/results/data_loading.json

Loading and computing are waits, so that nothing but their overlap is measured. Every side has a batch of its own to
load and compute in every step: a process alone, and each rank of several. Sides take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import codedreduce.torch as cr
from bench.forked import run_forked
from bench.measure import save
from codedreduce import MasterWorker, Striped

SAMPLES, LOADING, COMPUTING = 8, 0.020, 0.020  # of a batch
STEPS, SKIPPED, REPEATS, RANKS = 60, 10, 5, 2


class Slow(Dataset[torch.Tensor]):
    """A dataset whose samples take some time to load."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(LOADING / SAMPLES)
        return torch.full((100,), index / 10_000)


def losses(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A pass that takes some time."""
    time.sleep(COMPUTING * len(batch) / SAMPLES)
    found: torch.Tensor = model(batch)[:, 0]
    return found


def plain(workers: int) -> list[float]:
    """A loop over a DataLoader."""
    model = torch.nn.Linear(100, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds: list[float] = []
    loader: DataLoader[torch.Tensor] = DataLoader(
        Slow(),
        batch_size=SAMPLES,
        shuffle=True,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
    )
    begin = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        losses(model, batch).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        if len(seconds) == STEPS:
            return seconds
    raise AssertionError("there are more samples than that")


def trained(ranks: int, workers: int) -> list[float]:
    """The same with a cluster: its first rank's steps, of a process alone or of several ranks."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "seconds"

        def script() -> None:
            model = torch.nn.Linear(100, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            seconds: list[float] = []
            with cr.join(Striped(ranks) if ranks > 1 else MasterWorker(1)) as cluster:
                begin = time.perf_counter()
                for _ in cluster.train(model, Slow(), losses, SAMPLES * ranks, STEPS, num_workers=workers):
                    optimizer.step()
                    seconds.append(time.perf_counter() - begin)
                    begin = time.perf_counter()
                if cluster.rank == 0:
                    found.write_text(json.dumps(seconds))

        if ranks == 1:
            script()
        else:
            outcome = run_forked(script, ranks)
            assert not any(outcome.codes.values()), outcome.errors
        seconds: list[float] = json.loads(found.read_text())
        return seconds


SIDES: dict[str, Callable[[int], list[float]]] = {
    "plain DataLoader": plain,
    "alone": lambda workers: trained(1, workers),
    f"{RANKS} ranks": lambda workers: trained(RANKS, workers),
}


def main() -> None:
    """Print and keep the median step of each side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[int, list[float]]] = {name: {0: [], 1: [], 2: []} for name in SIDES}
    for _ in range(arguments.repeats):
        for workers in (0, 1, 2):
            for name, side in SIDES.items():
                found[name][workers].append(1000 * statistics.mean(side(workers)[SKIPPED:]))
    rows = []
    for name, by_workers in found.items():
        for workers, each in by_workers.items():
            over = statistics.median(a / b for a, b in zip(each, found["plain DataLoader"][workers], strict=True))
            rows.append({"side": name, "num_workers": workers, "ms": statistics.median(each), "of plain": over})
            print(f"{name:18} num_workers={workers}  {rows[-1]['ms']:6.1f} ms  {over:.3f} of plain")
    save(arguments.out, {"loading_ms": 1000 * LOADING, "computing_ms": 1000 * COMPUTING, "rows": rows})


if __name__ == "__main__":
    main()
