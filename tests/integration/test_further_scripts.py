"""Training scripts as strangers write them: each as a plain one does, step by step, or refused in one line."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from bench.forked import run_forked
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset, default_collate

import codedreduce.torch as cr
from codedreduce import Striped
from codedreduce.errors import UsageError

from .test_more_scripts import BATCH, CLASSES, SAMPLES, STEPS, each, labels, mlp

Batch = Any
Losses = Callable[..., Any]


@dataclass
class Script:
    """`plain` is the loss of a plain script; by default the mean of `losses`."""

    model: nn.Module
    losses: Losses = each
    plain: Callable[[nn.Module, Any, int], torch.Tensor] | None = None
    data: Any = CLASSES
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    rate: float = 0.1
    after: Callable[[nn.Module, int], None] = lambda model, round_: None
    options: dict[str, Any] = field(default_factory=dict)


def noted(model: nn.Module, optimizer: torch.optim.Optimizer, seen: list[torch.Tensor]) -> None:
    """A step; its gradients and what the parameters are after it."""
    gradients = [one.grad for one in model.parameters()]
    seen += [torch.zeros(0) if one is None else one.to_dense().clone() for one in gradients]
    optimizer.step()
    seen += [one.detach().clone() for one in model.parameters()]


def alone(script: Script) -> list[torch.Tensor]:
    """In plain PyTorch."""
    model, seen = script.model, []
    optimizer = script.optimizer(model.parameters(), lr=script.rate)
    for round_ in range(1, STEPS + 1):
        samples = [script.data[int(index)] for index in cr.batch_indices(SAMPLES, BATCH, round_)]
        batch = script.options.get("collate_fn", default_collate)(samples)
        loss = script.losses(model, batch).mean() if script.plain is None else script.plain(model, batch, round_)
        optimizer.zero_grad()
        loss.backward()
        noted(model, optimizer, seen)
        script.after(model, round_)
    return seen


def together(script: Script, cluster: cr.Cluster) -> list[torch.Tensor]:
    model, seen = script.model, []
    optimizer = script.optimizer(model.parameters(), lr=script.rate)
    for step in cluster.train(
        model, script.data, script.losses, BATCH, STEPS, state=[optimizer], **script.options
    ):  # fmt: skip
        noted(model, optimizer, seen)
        script.after(model, step.round)
    return seen


class Recomputed(nn.Module):
    """Activations are computed again in the backward pass, as old scripts have it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body[1:], self.body[0](x), use_reentrant=True)


class Sentences(Dataset):
    """Of several lengths, as dictionaries."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": CLASSES[index][0].expand(1 + index % 4, 6), "y": int(CLASSES[index][1])}


def longest_first(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """As packed sequences wanted it."""
    samples = sorted(samples, key=lambda one: -len(one["x"]))
    lengths = torch.tensor([len(one["x"]) for one in samples])
    x = nn.utils.rnn.pad_sequence([one["x"] for one in samples], batch_first=True)
    return {"x": x, "lengths": lengths, "y": torch.tensor([one["y"] for one in samples])}


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.gru, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return {"logits": self.head(self.gru(packed)[1][-1])}


def of_sentences(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"], batch["lengths"])["logits"], batch["y"], reduction="none")


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradient


def of_domains(model: nn.Module, batch: Batch) -> torch.Tensor:
    """DANN: the features are to tell nothing of the domain."""
    features = torch.tanh(model[0](batch[0]))
    domain = Reversal.apply(features).sum(1)
    return each(model, batch) + F.binary_cross_entropy_with_logits(domain, batch[1].double() / 2, reduction="none")


def positives_alone(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Some blocks have none, and then their losses have no graph."""
    found = [
        F.cross_entropy(model(x[None]), y[None]) if x[0] > 0.5 else torch.zeros((), dtype=torch.float64)
        for x, y in zip(*batch, strict=True)
    ]
    return torch.stack(found)


class Sometimes(nn.Module):
    """A layer that is used in every other round."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.extra = mlp(), nn.Linear(6, 3).double()

    def forward(self, x: torch.Tensor, round_: int) -> torch.Tensor:
        return self.body(x) + (self.extra(x) if round_ % 2 == 0 else 0)


def of_round(model: nn.Module, batch: Batch, step: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0], step.round), batch[1], reduction="none")


def attacked_in_evaluation_mode(model: nn.Module, batch: Batch) -> torch.Tensor:
    """TRADES, with BatchNorm: samples are made with what it remembers."""
    model.eval()
    x = batch[0].clone().requires_grad_()
    F.cross_entropy(model(x), batch[1], reduction="sum").backward()
    model.train()
    return each(model, (x.detach() + 0.1 * x.grad.sign(), batch[1]))


def by_micro_batches(model: nn.Module, batch: Batch, round_: int) -> torch.Tensor:
    parts = ([one[cut : cut + 4] for one in batch] for cut in range(0, BATCH, 4))
    return torch.stack([attacked_in_evaluation_mode(model, part).mean() for part in parts]).mean()


def normalised() -> nn.Module:
    model = nn.Sequential(mlp()[0], nn.BatchNorm1d(8, momentum=0.0), nn.Tanh(), nn.Linear(8, 3)).double()
    nn.init.constant_(model[1].running_mean, 0.3)
    nn.init.constant_(model[1].running_var, 2.0)
    return model


def masked() -> nn.Module:
    """Pruned weights have no gradient."""
    model = mlp()
    mask = (torch.arange(48).view(8, 6) % 3 > 0).double()
    model[0].weight.register_hook(lambda gradient: gradient * mask)
    return model


def with_teacher() -> Script:
    """A teacher that follows the model in the loop body."""
    model = mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        return each(model, batch) + (model(-batch[0]) - teacher(batch[0])).square().mean(1)

    @torch.no_grad()
    def follow(model: nn.Module, round_: int) -> None:
        for one, other in zip(teacher.parameters(), model.parameters(), strict=True):
            one.lerp_(other, 0.2)

    return Script(model, losses, after=follow)


def sliced_score(model: nn.Module, batch: Batch) -> torch.Tensor:
    """A derivative of a derivative, along a direction of each sample."""
    x, along = batch[0].clone().requires_grad_(), torch.linspace(-1, 1, 6, dtype=torch.float64)
    score = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0]
    slope = torch.autograd.grad((score * along).sum(), x, create_graph=True)[0]
    return (slope * along).sum(1) + (score * along).sum(1).square() / 2


def sparse() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Embedding(30, 6, sparse=True), nn.Flatten()).double()


SCRIPTS: dict[str, Callable[[], Script]] = {
    "recomputed": lambda: Script(Recomputed()),
    "longest first": lambda: Script(
        Reader().double(), of_sentences, data=Sentences(), options={"collate_fn": longest_first}
    ),
    "reversal": lambda: Script(mlp(), of_domains, optimizer=torch.optim.Adam),
    "positives alone": lambda: Script(mlp(), positives_alone),
    "sometimes": lambda: Script(
        Sometimes(), of_round, lambda model, batch, round_: F.cross_entropy(model(batch[0], round_), batch[1]),
        optimizer=torch.optim.AdamW,
    ),
    "attacked in evaluation mode": lambda: Script(
        normalised(), attacked_in_evaluation_mode, by_micro_batches,
        options={"coupled": "micro-batch", "micro_batch": 4},
    ),
    "masked": lambda: Script(masked()),
    "teacher": with_teacher,
    "sliced score": lambda: Script(mlp(outputs=1), sliced_score),
    "sparse": lambda: Script(
        sparse(), data=TensorDataset(labels(30), labels(6)), optimizer=torch.optim.SparseAdam
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them by three ranks, one after the other in one run."""
    folder = tmp_path_factory.mktemp("ranks")

    def all_of_them() -> None:
        with cr.join(Striped(3)) as cluster:
            for name, script in SCRIPTS.items():
                torch.save(together(script(), cluster), folder / f"{name}-{cluster.rank}")

    outcome = run_forked(all_of_them, 3)
    assert outcome.codes == dict.fromkeys(range(3), 0), outcome.errors
    return folder


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_a_plain_one_does(name: str, of_ranks: Path) -> None:
    plain = alone(SCRIPTS[name]())
    for rank in range(3):
        found = torch.load(of_ranks / f"{name}-{rank}")
        assert len(found) == len(plain) > 0
        for one, other in zip(found, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def clipped() -> nn.Module:
    """Gradients are clipped by hooks."""
    model = mlp()
    for one in model.parameters():
        one.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    return model


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / gradient.norm()


def stepping_in_the_backward_pass() -> nn.Module:
    model = mlp()
    for one in model.parameters():
        optimizer = torch.optim.SGD([one], lr=0.1)
        one.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    return model


def mixed_from_the_second_epoch(model: nn.Module, batch: Batch, step: Any) -> torch.Tensor:
    x = batch[0]
    return each(model, (0.7 * x + 0.3 * x.roll(1, 0) if step.epoch > 1 else x, batch[1]))


@pytest.mark.parametrize(
    ("model", "losses", "said"),
    [
        (clipped, each, "gradient of '0.weight' does not scale with the losses: a hook"),
        (mlp, lambda model, batch: each(lambda x: Normalised.apply(model(x)), batch), "clips or normalises gradients"),
        (stepping_in_the_backward_pass, each, "the backward pass changed the parameter '0.weight', probably by a hook"),
        (mlp, mixed_from_the_second_epoch, "couples samples: the loss of sample"),
        (lambda: (mlp(), mlp()), each, r"the model is a tuple; train\(...\) takes one torch"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), each, "the parameter '0.weight' has no shape yet"),
    ],
)
def test_what_would_be_wrong_is_refused_in_one_line(model: Callable, losses: Losses, said: str) -> None:
    with cr.join(environment={}) as cluster, pytest.raises(UsageError, match=said) as caught:
        cluster.train(model(), CLASSES, losses, BATCH, 9)
    assert "\n" not in str(caught.value)


def of_the_script(
    body: Callable[[nn.Module, Any, cr.Step], object], model: nn.Module | None = None, losses: Losses = each,
    outside: list[nn.Parameter] | None = None, **options: Any,
) -> None:  # fmt: skip
    model = model or mlp()
    optimizer = torch.optim.SGD([*model.parameters(), *(outside or [])], lr=0.1)
    with cr.join(environment={}) as cluster:
        for step in cluster.train(model, CLASSES, losses, BATCH, STEPS, state=[optimizer], **options):
            body(model, optimizer, step)


def test_parameters_of_a_loss_function_are_not_left_out_silently() -> None:
    """Their gradient would be the sum of what this rank has computed."""
    scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]) * scale, batch[1], reduction="none")

    with pytest.raises(UsageError, match=r"^SGD has 1 parameter that losses\(\) uses and the model does not have"):
        of_the_script(lambda model, optimizer, step: optimizer.step(), losses=losses, outside=[scale])
    assert scale.grad is None


def test_parameters_that_a_loop_body_trains_by_itself_are_its_own() -> None:
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def body(model: nn.Module, optimizer: Any, step: cr.Step) -> None:
        assert scale.grad is None or scale.grad == 1
        scale.grad = torch.ones_like(scale)
        optimizer.step()

    of_the_script(body, losses=lambda model, batch: each(model, batch) * scale, outside=[scale])
    torch.testing.assert_close(scale.detach(), torch.tensor(1 - 0.1 * STEPS, dtype=torch.float64))


def test_a_backward_pass_on_the_loss_of_a_step_is_told_that_it_is_over() -> None:
    with pytest.raises(UsageError, match=r"^step.loss.backward\(\) has no effect: .grad of every parameter is set"):
        of_the_script(lambda model, optimizer, step: step.loss.backward())


def test_a_round_without_any_graph_is_named() -> None:
    def losses(model: nn.Module, batch: Batch, step: Any) -> torch.Tensor:
        return each(model, batch) if step.round < 3 else each(model, batch).detach()

    with pytest.raises(UsageError, match=r"^round 3: no loss of the batch depends on a trainable parameter"):
        of_the_script(lambda model, optimizer, step: optimizer.step(), losses=losses)


def test_a_model_in_evaluation_mode_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    of_the_script(lambda model, optimizer, step: optimizer.step(), mlp().append(nn.Dropout(0.5)).eval())
    assert [one.message[:31] for one in caplog.records] == ["the model is in evaluation mode"]


def test_batch_normalisation_that_begins_in_the_loop_body_is_refused() -> None:
    def body(model: nn.Module, optimizer: Any, step: cr.Step) -> None:
        model.train()
        optimizer.step()

    with pytest.raises(UsageError, match=r"^1 is BatchNorm1d in training mode: it couples the samples"):
        of_the_script(body, normalised().eval())


@pytest.mark.parametrize("where", ["losses", "body"])
def test_what_batch_normalisation_remembers_is_of_all_samples_or_refused(where: str) -> None:
    """Coupled within micro-batches it may normalise over them, but nobody would bring together what it remembers."""

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        return each(model.train() if where == "losses" else model, batch)

    options = {"micro_batch": 4, "coupled": "micro-batch"}
    with pytest.raises(UsageError, match=r"^1 is BatchNorm1d, and was not in training mode when train"):
        of_the_script(lambda model, optimizer, step: model.train(), normalised().eval(), losses, **options)


def test_a_teacher_that_moves_within_losses_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """At first it is the model, so that nothing is seen of it in the losses."""
    teacher = copy.deepcopy(mlp()).requires_grad_(False)

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), model.parameters(), strict=True):
                one.lerp_(other, 0.1)
        return each(model, batch) + (model(batch[0]) - teacher(batch[0])).square().mean(1)

    of_the_script(lambda model, optimizer, step: optimizer.step(), losses=losses)
    assert [one.message[:52] for one in caplog.records] == ["losses() writes to the parameter 'Linear.weight' in "]
