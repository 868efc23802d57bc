"""What scripts ask of PyTorch that cannot be, or that nobody means: one error or warning each, before a run."""

from __future__ import annotations

import json
import logging
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, WeightedRandomSampler

import codedreduce.torch as cr
from codedreduce.errors import Diverged, UsageError
from tests.command import codedreduce
from tests.waiting import PATIENCE

from .torch_model import BATCH, Model, data, losses


def begin(lossy: Callable = losses, dataset: Any = None, model: nn.Module | None = None, **options: Any) -> cr.Step:
    """The first step, alone."""
    model = Model() if model is None else model
    with cr.join(environment={}) as cluster:
        return next(iter(cluster.train(model, data() if dataset is None else dataset, lossy, BATCH, 2, **options)))


@torch.no_grad()
def without_a_graph(model: nn.Module, batch: Any) -> torch.Tensor:
    return losses(model, batch)


def of_another_model(model: nn.Module, batch: Any) -> torch.Tensor:
    return losses(Model().requires_grad_(False), batch)


@pytest.mark.parametrize("lossy", [lambda *given: losses(*given).detach(), without_a_graph, of_another_model])
def test_losses_without_a_graph_are_refused(lossy: Callable) -> None:
    with pytest.raises(UsageError, match="does not depend on any trainable parameter"):
        begin(lossy)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "" if torch.cuda.is_available() else "cuda"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match=f"device='{device}' cannot be used: .*; give a device that this process has"):
        begin(device=device)


class Broken(Dataset):
    """Some of its samples cannot be read, or have another shape than the rest."""

    def __init__(self, broken: set[int], *, raises: bool = True) -> None:
        self.inner, self.broken, self.raises = data(), broken, raises

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index in self.broken and self.raises:
            raise OSError("truncated\nfile")
        x, y = self.inner[index]
        return (x[:3] if index in self.broken else x), y


def test_a_dataset_that_raises_is_one_line_that_names_the_sample() -> None:
    said = r"sample \d+ of Broken could not be read, at test_torch_mistakes.py, line \d+: OSError: truncated file$"
    with pytest.raises(UsageError, match=said):
        begin(dataset=Broken(set(range(200))))
    of_the_second = int(cr.batch_indices(200, BATCH, 2)[0])
    with pytest.raises(UsageError, match=f"sample {of_the_second} of Broken could not be read"):
        for _ in cr.join(environment={}).train(Model(), Broken({of_the_second}), losses, BATCH, 2):
            pass


def test_samples_of_several_shapes_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"8 samples could not be collated into a batch: .*; give collate_fn="):
        begin(dataset=Broken(set(range(0, 200, 2)), raises=False))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_first_loss_that_is_no_number_is_that_and_nothing_else(
    number: float, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Diverged, match="round 1: the gradient is not finite"):
        begin(lambda *given: losses(*given) * number)
    assert not caplog.records


def test_a_loss_that_is_a_number_only_at_times_is_refused() -> None:
    calls = []

    def second_is_none(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return losses(model, batch) * (float("nan") if len(calls) == 2 else 1.0)

    with pytest.raises(UsageError, match=r"computed the same samples twice, and the loss of sample .* nan again"):
        begin(second_is_none)


Body = Callable[[torch.optim.Optimizer, nn.Module, cr.Step], object]


def trained(body: Body, optimizer: Callable = torch.optim.SGD, steps: int = 4) -> None:
    model = Model()
    its = optimizer(model.parameters(), lr=0.05)
    with cr.join(environment={}) as cluster:
        for step in cluster.train(model, data(), losses, BATCH, steps, state=[its]):
            body(its, model, step)


def test_a_closure_is_a_step(caplog: pytest.LogCaptureFixture) -> None:
    """LBFGS evaluates in the middle of its step."""
    trained(lambda optimizer, model, step: optimizer.step(step.evaluate), torch.optim.LBFGS)
    assert not caplog.records


def by_hand(optimizer: object, model: nn.Module, step: cr.Step) -> None:
    with torch.no_grad():
        model.last.bias -= 0.1 * model.last.bias.grad


def by_data(optimizer: object, model: nn.Module, step: cr.Step) -> None:
    for one in model.parameters():
        if one.grad is not None:
            one.data -= 0.1 * one.grad


def of_another(optimizer: object, model: nn.Module, step: cr.Step) -> None:
    other = nn.Linear(2, 2)
    other(torch.ones(2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("body", "warns"), [(lambda *given: None, True), (of_another, True), (by_hand, False), (by_data, False)]
)
def test_a_run_in_which_nobody_steps_is_told_so(body: Body, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    trained(body)
    assert [record.levelno for record in caplog.records] == ([logging.WARNING] if warns else [])
    assert not warns or "no optimizer stepped: after 4 rounds the model has not changed" in caplog.text


def test_who_leaves_without_a_step_is_told_so_unless_one_gradient_was_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for last, warns in ((1, False), (3, True)):
        for step in cr.join(environment={}).train(Model(), data(), losses, BATCH, 9):
            if step.round == last:
                break
        assert ("no optimizer stepped" in caplog.text) == warns


def test_a_compiled_model_is_not_warned_of_hooks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin(model=torch.compile(Model(), backend="eager"))


def drawn_in(cluster: cr.Cluster, steps: int = 3, **options: Any) -> list[float]:
    """What the body of a training draws."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in cluster.train(model, data(), losses, BATCH, steps, seed=3, state=[optimizer], **options):
        optimizer.step()
        found.append(float(torch.rand(())))
    return found


def test_a_second_training_with_the_same_seed_draws_other_numbers() -> None:
    with cr.join(environment={}) as one, cr.join(environment={}) as other:
        first, second = drawn_in(one), drawn_in(one)
        assert not set(first) & set(second)
        assert (first, second) == (drawn_in(other), drawn_in(other)), "a script that is run again has the same"


def test_trainings_that_take_turns_draw_numbers_of_their_own() -> None:
    with cr.join(environment={}) as cluster:
        steps = [cluster.train(Model(), data(), losses, BATCH, 3, seed=3) for _ in range(2)]
        found = [float(torch.rand(())) for _ in range(3) for one in steps if next(one)]
    assert len(set(found)) == 6


def test_a_resumed_second_training_draws_what_it_would_have(tmp_path: Path) -> None:
    """Also if the script leaves out the first, which is through."""
    kept = {"checkpoint": tmp_path, "every": 1}
    with cr.join(environment={}) as whole:
        drawn_in(whole)
        expected = drawn_in(whole, 5)
    with cr.join(environment={}) as stops:
        drawn_in(stops)
        assert drawn_in(stops, 3, **kept) == expected[:3]
    with cr.join(environment={}) as goes_on:
        assert drawn_in(goes_on, 5, resume=True, **kept) == expected[3:]


def test_a_loss_is_a_float_that_knows_item() -> None:
    step = begin(lambda *given: (losses(*given), {"twice": 2 * losses(*given)}))
    assert step.loss.item() == float(step.loss) == step.loss
    assert step.metrics["twice"].item() == pytest.approx(2 * step.loss)
    assert json.loads(json.dumps({"loss": step.loss})) == {"loss": step.loss.item()}
    assert pickle.loads(pickle.dumps(step.loss)) == step.loss
    assert f"{step.loss:.3f} {step.loss}" == f"{step.loss.item():.3f} {step.loss.item()}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shuffle": True}, r"train\(\) has no shuffle=: use .*sampler=cr.Sequential\(\)"),
        ({"pin_memory": True}, "no pin_memory=: use device="),
        ({"shuffle": False, "prefetch_factor": 4}, "no shuffle=.*; and no prefetch_factor=: use prefetch="),
        ({"optimizer": None}, r"no optimizer=: use optimizer.step\(\) in the loop body"),
        ({"num_epochs": 3}, "no num_epochs=: use epochs="),
        ({"drop_lst": True}, "no drop_lst=: use drop_last="),
        ({"quite_another": True}, "no quite_another=$"),
    ],
)
def test_arguments_of_others_are_told_what_to_use(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        begin(**options)


def collate(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shuffle": True}, "train(model, loader.dataset, losses, batch_size=20, drop_last=False, ...)"),
        ({}, "batch_size=20, drop_last=False, sampler=cr.Sequential(), ...)"),
        (
            {"shuffle": True, "drop_last": True, "num_workers": 2, "collate_fn": collate},
            "batch_size=20, drop_last=True, collate_fn=loader.collate_fn, num_workers=2, ...)",
        ),
        ({"sampler": WeightedRandomSampler([1.0] * 200, 200)}, "sampler=cr.Weighted(weights), ...)"),
        ({"sampler": SubsetRandomSampler(range(100))}, "train(model, Subset(loader.dataset, loader.sampler.indices),"),
    ],
)
def test_a_loader_is_refused_with_what_to_give_instead(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match="the dataset is a DataLoader; give its data") as caught:
        begin(dataset=DataLoader(data(), batch_size=20, **options))
    assert said in str(caught.value)


SCRIPT = """
import os, sys, torch, torch.nn.functional as F
import codedreduce.torch as cr

what, is_other = sys.argv[1], os.environ.get("RANK") == "0"
data = torch.utils.data.TensorDataset(torch.ones(60, 5), torch.zeros(60, dtype=torch.int64))
model = torch.nn.Linear(5, 2 + (what == "model" and is_other))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

with cr.join() as cluster:
    device = "cuda:99" if what == "device" else None
    for step in cluster.train(model, data, losses, batch_size=30, steps=10**6, device=device):
        if what == "script" and is_other and step.round >= 3:  # one that takes a state does not see it the first time
            step.evaluate()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("model", "rank 1 has a model with 2 trainable parameters, 12 numbers"),
        ("script", r"requests of the ranks differ: steps \d+ and \d+, evaluations 0 and 1\. All ranks run"),
    ],
)
def test_ranks_that_differ_are_one_line_and_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:  # fmt: skip
    if what == "model":  # no round begins, so a busy rank is not suspected
        monkeypatch.setenv("CODEDREDUCE_TIMING", "0.2")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = codedreduce("run", "-n", "2", str(path), what, timeout=PATIENCE)
    (line,) = (run.stdout + run.stderr).splitlines()
    assert re.search(said, line), line
    assert run.returncode == 2


def test_without_a_launcher_a_mistake_has_the_same_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = subprocess.run([sys.executable, str(path), "device"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    (line,) = (run.stdout + run.stderr).splitlines()
    assert line.startswith("codedreduce: device='cuda:99' cannot be used: ")
