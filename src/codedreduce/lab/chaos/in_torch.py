"""A script for `codedreduce run`: trains in PyTorch until the file `stop` exists, or for ROUNDS rounds.

python in_torch.py FOLDER [ROUNDS]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce.lab.chaos.diary import Diary, Failing
from codedreduce.lab.chaos.jobs import BATCH, CHECKPOINT_EVERY, COMPUTE, ENDLESS, SAMPLES, random_rows


def main(folder: Path, rounds: int) -> None:
    """One process of the run."""
    diary, failing = Diary(folder), Failing()
    torch.manual_seed(0)
    x, y = random_rows(SAMPLES, 64)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def losses(model: nn.Module, batch: Any) -> torch.Tensor:
        failing.look()
        inputs, targets = batch
        if rounds == ENDLESS:
            time.sleep(COMPUTE * len(targets) / BATCH)
        return cross_entropy(model(inputs), targets, reduction="none")

    with cr.join() as cluster:
        for step in cluster.train(
            model, dataset, losses, batch_size=BATCH, steps=rounds, seed=7, state=[optimizer],
            checkpoint=folder / "checkpoints", every=CHECKPOINT_EVERY, resume=True,
        ):  # fmt: skip
            optimizer.step()
            diary.round(step.round, leads=cluster.is_root)
            if cluster.is_root and diary.is_to_stop():
                break
    with torch.no_grad():
        diary.end(torch.cat([parameter.flatten() for parameter in model.parameters()]).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ENDLESS)
