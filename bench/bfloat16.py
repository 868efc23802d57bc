"""What `wire="bfloat16"` costs and saves: converting on the host, steps of ranks on one machine, and over links.

python -m bench.bfloat16 [--numbers 20000000] [--steps 12] [--repeats 3] [--lab] [--out bench/results/bfloat16.json]

Ranks of one machine pass vectors by reference either way. Both sides compute units in one block, so that nothing but
the type of what is passed differs; runs alternate, and medians of their steps are taken. `--lab` (as root): 4 ranks
behind links of 100 Mbit/s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from bench import sides
from bench.forked import run_forked
from bench.measure import interleaved, save
from codedreduce import Striped
from codedreduce.torch.device.tensors import convert_arrays

RANKS = 4
FEATURES = 256
BATCH = 32
NOT_COUNTED = 3  # first steps of a run
LINK = sides.Case(ranks=RANKS, parameters=2_000_000, rate=100e6)
WIRES: dict[str, str | None] = {"float32": None, "bfloat16": "bfloat16"}


def converting(numbers: int, repeats: int = 5) -> dict[str, float]:
    """Milliseconds for so many numbers: as NumPy does it with ml_dtypes' type, and as ranks do it."""
    torch.set_num_threads(1)
    wide = np.random.default_rng(0).standard_normal(numbers).astype(np.float32)
    narrow, again = np.zeros(numbers, ml_dtypes.bfloat16), np.zeros_like(wide)
    ways = {
        "narrowed by NumPy": lambda: np.copyto(narrow, wide, casting="unsafe"),
        "narrowed": lambda: convert_arrays(wide, narrow),
        "widened by NumPy": lambda: np.copyto(again, narrow, casting="unsafe"),
        "widened": lambda: convert_arrays(narrow, again),
        "copied": lambda: np.copyto(again, wide),
    }
    times = interleaved(repeats, *ways.values())
    return {name: 1000 * statistics.median(log) for name, log in zip(ways, times, strict=True)}


def network(numbers: int) -> nn.Module:
    """Two layers with about so many parameters."""
    torch.manual_seed(0)
    hidden = numbers // (FEATURES + 10 + 1)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(numbers: int, steps: int, wire: str | None, out: str) -> None:
    """A script, on each rank; rank 0 says how long each step took."""
    torch.set_num_threads(1)
    model = network(numbers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(256, FEATURES, generator=generator), torch.randint(0, 10, (256,)))
    ends, rounds, found = [time.monotonic()], [], 0.0
    with cr.join(Striped(RANKS, blocks=1)) as cluster:
        for step in cluster.train(model, data, losses, BATCH, steps, wire=wire, state=[optimizer]):
            optimizer.step()
            ends.append(time.monotonic())
            rounds.append(step.seconds)
            found = step.loss if step.round == 1 else found
        if cluster.rank == 0:
            took = [after - before for before, after in itertools.pairwise(ends)]
            Path(out).write_text(json.dumps({"steps": took, "rounds": rounds, "first loss": found}))


def on_one_machine(numbers: int, steps: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of a step, and of the round in it, by what numbers travel as."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WIRES}
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        for _ in range(repeats):
            for name, wire in WIRES.items():
                outcome = run_forked(lambda wire=wire: train(numbers, steps, wire, out), RANKS, within=300.0)  # type: ignore[misc]
                if any(outcome.codes.values()):
                    raise RuntimeError(f"{name}: {outcome.errors}")
                runs[name].append(json.loads(Path(out).read_text()))
    return {
        name: {
            "step": 1000 * statistics.median(one for run in each for one in run["steps"][NOT_COUNTED:]),
            "round": 1000 * statistics.median(one for run in each for one in run["rounds"][NOT_COUNTED:]),
            "first loss": each[0]["first loss"],
        }
        for name, each in runs.items()
    }


def over_links(repeats: int) -> dict[str, Any]:
    """Seconds of a step where each rank has a link of its own."""
    runs: dict[str, list[float]] = {name: [] for name in WIRES}
    for _ in range(repeats):
        for name, wire in WIRES.items():
            side = "striped, bfloat16" if wire else "striped"
            runs[name] += sides.run_side(side, LINK)["seconds"][NOT_COUNTED:]
    return {name: statistics.median(each) for name, each in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=20_000_000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"numbers": arguments.numbers, "converting": converting(arguments.numbers)}
    results["on one machine"] = on_one_machine(arguments.numbers, arguments.steps, arguments.repeats)
    if arguments.lab:
        results["over links"] = {"case": str(LINK), "seconds": over_links(arguments.repeats)}
    print(json.dumps(results, indent=1))
    save(arguments.out, results)


if __name__ == "__main__":
    main()
