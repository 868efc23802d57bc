"""Whether ported scripts learn what plain ones do: ResNet-18 with BatchNorm, and GPT-2 over padded sentences.

python -m bench.ports [--seeds 5] [--out FILE]

Accuracy on pictures that were not trained on: examples/ports/imagenet_plain.py, which normalises over whole batches,
the same with micro-batches as the port has them, and examples/ports/imagenet.py in 3 processes that stall. Loss and
accuracy on sentences that were not trained on: Hugging Face's own loss in one process, and (sums, weights) in 3.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.forked import run_forked
from bench.measure import save
from bench.padded import train_on_ranks, train_plainly

PORTS = Path(__file__).parents[1] / "examples" / "ports"
RANKS, STALLS, STEPS = 3, "stalls:0.1:0.1s", 120
LONG = ("--epochs", "8", "--lr-step", "5", "--lr", "0.03")


def in_processes(function: Callable[[], object], size: int) -> None:
    """All of them must end well."""
    outcome = run_forked(function, size, {"CODEDREDUCE_INJECT": STALLS} if size > 1 else {}, within=600)
    if set(outcome.codes.values()) != {0}:
        raise SystemExit(str(outcome.errors))


def pictures(script: str, seed: int, processes: int, *arguments: str) -> float:
    """The accuracy that a script ends with."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept.pt"

        def run() -> None:
            sys.argv = [script, *LONG, "--seed", str(seed), *arguments, "--save", str(kept)]
            runpy.run_path(str(PORTS / script), run_name="__main__")

        in_processes(run, processes)
        return float(torch.load(kept)["accuracy"])


def words(seed: int, processes: int) -> dict[str, float]:
    """The loss and accuracy that GPT-2 ends with."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept.json"

        def run() -> None:
            def tell(found: Any) -> None:
                kept.write_text(json.dumps(found._asdict()))

            if processes == 1:
                tell(train_plainly(seed, STEPS))
            else:
                train_on_ranks(seed, STEPS, tell)

        in_processes(run, processes)
        found: dict[str, float] = json.loads(kept.read_text())
        return found


def main() -> None:
    """Train, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(arguments.seeds):
        plain, ported = words(seed, 1), words(seed, RANKS)
        row = {
            "seed": seed,
            "ResNet-18, whole batches": pictures("imagenet_plain.py", seed, 1, "--micro-batch", "48"),
            "ResNet-18, micro-batches": pictures("imagenet_plain.py", seed, 1),
            "ResNet-18, ported": pictures("imagenet.py", seed, RANKS),
            "GPT-2 loss, plain": plain["loss"], "GPT-2 loss, ported": ported["loss"],
            "GPT-2 accuracy, plain": plain["accuracy"], "GPT-2 accuracy, ported": ported["accuracy"],
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)
    for name in rows[0]:
        if name != "seed":
            found = [float(row[name]) for row in rows]
            print(f"{name}: mean {statistics.mean(found):.4f}, {min(found):.4f} to {max(found):.4f}")
    if arguments.out is not None:
        save(arguments.out, {"ranks": RANKS, "stalls": STALLS, "rows": rows})


if __name__ == "__main__":
    main()
