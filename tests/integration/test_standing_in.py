"""Real trainings of which more workers are killed than tolerated: the root does their part, to the same bits."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import torch

import codedreduce.torch as cr
from codedreduce import CodedReduce, Tree, train
from codedreduce.run.journal import RoundLog
from codedreduce.torch.model.loss_output import At
from codedreduce.training import LogisticRegression, synthetic

from .torch_model import BATCH, Model, data, losses, run_ranks

STEPS = 8


def is_there(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_numpy_goes_on_without_any_worker() -> None:
    def kill_all(log: RoundLog) -> None:
        if log.round == 3:
            children = psutil.Process().children(recursive=True)
            for child in children:
                child.kill()
            while any(map(is_there, children)):  # else the other rounds may be over before they are gone
                time.sleep(0.01)

    scheme = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
    calm = train(LogisticRegression(), synthetic(120, 40), scheme=scheme, rounds=8, batch=60)
    heard: list[str] = []
    alone = train(
        LogisticRegression(), synthetic(120, 40), scheme=scheme, rounds=8, batch=60, on_round=kill_all,
        replan_after=0.3, on_note=lambda note: heard.append(note.kind), restart=False,
    )  # fmt: skip
    assert alone.parameters.tobytes() == calm.parameters.tobytes()
    assert "stands in" in heard


def trained(folder: Path, *, killed: bool) -> np.ndarray:
    """What a training with dropout ends with; its loop body draws random numbers, too."""

    def lossy(model: torch.nn.Module, batch: object, step: At) -> torch.Tensor:
        if killed and os.environ["RANK"] != "0" and 4 <= step.round < STEPS:  # the last is rehearsed
            os.kill(os.getpid(), signal.SIGKILL)
        return losses(model, batch)

    def script() -> None:
        torch.manual_seed(5)
        model = Model(dropout=0.3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with cr.join() as cluster:
            for _ in cluster.train(model, data(), lossy, BATCH, STEPS):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad += 0.01 * torch.rand(parameter.shape) + 0.01 * np.random.rand()
                optimizer.step()
        if cluster.is_root:
            np.save(folder / "model.npy", np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]))

    outcome = run_ranks(script, workers=2, tree="2x1", replan_after=0.5)
    assert outcome.codes[0] == 0, outcome.errors
    assert (outcome.codes[1] == -signal.SIGKILL) is killed
    return np.load(folder / "model.npy")


def test_torch_goes_on_without_any_worker(tmp_path: Path) -> None:
    np.random.seed(0)
    np.testing.assert_array_equal(trained(tmp_path, killed=True), trained(tmp_path, killed=False))
