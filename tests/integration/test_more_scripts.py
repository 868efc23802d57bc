"""Training scripts of many kinds: each as a plain one does, step by step on the same samples, or refused in one line.

Each is written twice, as one would for a single process and with codedreduce; both end with the same parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from bench.forked import run_forked
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce import Striped
from codedreduce.errors import UsageError

SAMPLES, BATCH, STEPS = 48, 12, 5

Batch = Any
Script = Callable[[cr.Cluster | None], nn.Module]


def mlp(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(classes: int = 3) -> torch.Tensor:
    return torch.randint(0, classes, (SAMPLES,), generator=torch.Generator().manual_seed(2))


CLASSES = TensorDataset(drawn(6), labels())


def batches(data: TensorDataset, size: int = BATCH, steps: int = STEPS) -> Iterator[Batch]:
    """Those of a plain script: the same samples as a run has."""
    for round_ in range(1, steps + 1):
        yield data[torch.from_numpy(cr.batch_indices(SAMPLES, size, round_))]


def each(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def clipping_and_one_cycle(cluster: cr.Cluster | None) -> nn.Module:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS)
    if cluster is None:
        for x, y in batches(CLASSES):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
        return model
    for _ in cluster.train(model, CLASSES, each, BATCH, STEPS, state=[optimizer, scheduler]):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
    return model


def average_of_weights(cluster: cr.Cluster | None) -> nn.Module:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    if cluster is None:
        for x, y in batches(CLASSES):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)
        return average
    for _ in cluster.train(model, CLASSES, each, BATCH, STEPS, state=[optimizer, average]):
        optimizer.step()
        average.update_parameters(model)
    return average


def sharpness_aware(cluster: cr.Cluster | None) -> nn.Module:
    """SAM: the step is taken with the gradient at the worst point nearby."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def step(evaluate: Callable[[], Any]) -> None:
        gradients = [one.grad.clone() for one in model.parameters()]
        scale = 0.05 / torch.stack([one.norm() for one in gradients]).norm()
        with torch.no_grad():
            for one, gradient in zip(model.parameters(), gradients, strict=True):
                one += scale * gradient
        evaluate()
        with torch.no_grad():
            for one, gradient in zip(model.parameters(), gradients, strict=True):
                one -= scale * gradient
        optimizer.step()

    if cluster is None:
        for x, y in batches(CLASSES):

            def evaluate(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()

            evaluate()
            step(evaluate)
        return model
    for one in cluster.train(model, CLASSES, each, BATCH, STEPS, state=[optimizer]):
        step(one.evaluate)
    return model


def triplets(cluster: cr.Cluster | None) -> nn.Module:
    model, data = mlp(), TensorDataset(drawn(6), drawn(6, seed=2), drawn(6, seed=3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if cluster is None:
        for anchor, positive, negative in batches(data):
            optimizer.zero_grad()
            F.triplet_margin_loss(model(anchor), model(positive), model(negative)).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.triplet_margin_loss(*(model(one) for one in batch), reduction="none")

    for _ in cluster.train(model, data, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


def distillation(cluster: cr.Cluster | None) -> nn.Module:
    """From a teacher that is frozen, and no part of the model."""
    model, teacher = mlp(), copy.deepcopy(mlp()).requires_grad_(False)
    teacher[0].weight.mul_(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if cluster is None:
        for x, y in batches(CLASSES):
            found = model(x)
            soft = F.kl_div(F.log_softmax(found / 2, 1), F.softmax(teacher(x) / 2, 1), reduction="batchmean")
            optimizer.zero_grad()
            (0.3 * F.cross_entropy(found, y) + 0.7 * 4 * soft).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        found = model(x)
        soft = F.kl_div(F.log_softmax(found / 2, 1), F.softmax(teacher(x) / 2, 1), reduction="none").sum(1)
        return 0.3 * F.cross_entropy(found, y, reduction="none") + 0.7 * 4 * soft

    for _ in cluster.train(model, CLASSES, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


def siamese(cluster: cr.Cluster | None) -> nn.Module:
    """The same model twice a sample; pairs that belong together are drawn together, others pushed apart."""
    model, data = mlp(), TensorDataset(drawn(6), drawn(6, seed=2), labels(2).double() * 2 - 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    if cluster is None:
        for one, other, same in batches(data):
            optimizer.zero_grad()
            F.cosine_embedding_loss(model(one), model(other), same, margin=0.2).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        one, other, same = batch
        return F.cosine_embedding_loss(model(one), model(other), same, margin=0.2, reduction="none")

    for _ in cluster.train(model, data, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


class Tagger(nn.Module):
    """An LSTM over sentences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=7)[0])


def tagging_padded_sentences(cluster: cr.Cluster | None) -> nn.Module:
    """The mean is over the tags of the batch, of which sentences have several."""
    lengths = 1 + labels(7)
    tags = labels(3)[:, None].repeat(1, 7)
    tags[torch.arange(7) >= lengths[:, None]] = -100
    model, data = Tagger().double(), TensorDataset(drawn(7, 6), lengths, tags)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if cluster is None:
        for x, many, y in batches(data):
            optimizer.zero_grad()
            F.cross_entropy(model(x, many).transpose(1, 2), y).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        x, many, y = batch
        return F.cross_entropy(model(x, many).transpose(1, 2), y, reduction="none").sum(1), (y != -100).sum(1)

    for _ in cluster.train(model, data, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


def weighted_classes(cluster: cr.Cluster | None) -> nn.Module:
    """Torch divides by the weights of the batch, and not by the number of its samples."""
    model, weight = mlp(), torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if cluster is None:
        for x, y in batches(CLASSES):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, weight=weight, label_smoothing=0.0).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        return F.cross_entropy(model(x), y, weight=weight, reduction="none"), weight[y]

    for _ in cluster.train(model, CLASSES, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


def unfreezing(cluster: cr.Cluster | None) -> nn.Module:
    """The head first; the rest from the third step on."""
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    if cluster is None:
        for number, (x, y) in enumerate(batches(CLASSES), 1):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            model[0].requires_grad_(number >= 2)
        return model
    for step in cluster.train(model, CLASSES, each, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
        model[0].requires_grad_(step.round >= 2)
    return model


class Experts(nn.Module):
    """Three experts, and a gate that says how much each counts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.experts, self.gate = nn.ModuleList(nn.Linear(6, 3) for _ in range(3)), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = F.softmax(self.gate(x), 1)
        return sum(share[:, None] * expert(x) for share, expert in zip(shares.T, self.experts, strict=True)), shares


def mixture_of_experts(cluster: cr.Cluster | None) -> nn.Module:
    """With a loss beside that keeps the gate from one expert alone."""
    model = Experts().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if cluster is None:
        for x, y in batches(CLASSES):
            found, shares = model(x)
            optimizer.zero_grad()
            (F.cross_entropy(found, y) + 0.1 * (shares * shares.log()).sum(1).mean()).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        found, shares = model(batch[0])
        return F.cross_entropy(found, batch[1], reduction="none") + 0.1 * (shares * shares.log()).sum(1)

    for _ in cluster.train(model, CLASSES, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


def weight_norm_and_decay_by_hand(cluster: cr.Cluster | None) -> nn.Module:
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.02)

    def decay() -> torch.Tensor:
        return 0.01 * sum(one.square().sum() for one in model.parameters())

    if cluster is None:
        for x, y in batches(CLASSES):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + decay()).backward()
            optimizer.step()
        return model
    for _ in cluster.train(model, CLASSES, lambda *given: each(*given) + decay(), BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


def two_optimizers(cluster: cr.Cluster | None) -> nn.Module:
    """One for the head, and one for the rest, which steps every other time."""
    model = mlp()
    head, rest = torch.optim.SGD(model[2].parameters(), lr=0.5), torch.optim.Adam(model[0].parameters(), lr=0.1)
    if cluster is None:
        for number, (x, y) in enumerate(batches(CLASSES), 1):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            head.step()
            if number % 2:
                rest.step()
        return model
    for step in cluster.train(model, CLASSES, each, BATCH, STEPS, state=[head, rest]):
        head.step()
        if step.round % 2:
            rest.step()
    return model


def accumulation(cluster: cr.Cluster | None) -> nn.Module:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if cluster is None:
        for x, y in batches(CLASSES):
            optimizer.zero_grad()
            for some in range(0, BATCH, 4):
                (F.cross_entropy(model(x[some : some + 4]), y[some : some + 4]) * 4 / BATCH).backward()
            optimizer.step()
        return model
    for _ in cluster.train(model, CLASSES, each, BATCH, STEPS, micro_batch=4, state=[optimizer]):
        optimizer.step()
    return model


class TwoTasks(nn.Module):
    """How much each task counts is learnt, too."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.doubt = mlp(outputs=4), nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.trunk(x)
        return found[:, :3], found[:, 3]


def two_tasks_with_learnt_weights(cluster: cr.Cluster | None) -> nn.Module:
    model, data = TwoTasks(), TensorDataset(drawn(6), labels(), drawn(seed=5))
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.05)
    if cluster is None:
        for x, y, target in batches(data):
            classes, number = model(x)
            both = torch.stack([F.cross_entropy(classes, y), F.mse_loss(number, target)])
            optimizer.zero_grad()
            (both * (-model.doubt).exp() + model.doubt).sum().backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y, target = batch
        classes, number = model(x)
        both = torch.stack([F.cross_entropy(classes, y, reduction="none"), (number - target).square()], 1)
        return (both * (-model.doubt).exp() + model.doubt).sum(1)

    for _ in cluster.train(model, data, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


class Factors(nn.Module):
    """Users and films, with gradients of those rows alone that a batch has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.users, self.films = nn.Embedding(9, 4, sparse=True), nn.Embedding(5, 4, sparse=True)

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.films(films)).sum(1)


def factors_with_sparse_gradients(cluster: cr.Cluster | None) -> nn.Module:
    model, data = Factors().double(), TensorDataset(labels(9), labels(5), drawn(seed=5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if cluster is None:
        for users, films, stars in batches(data):
            optimizer.zero_grad()
            F.huber_loss(model(users, films), stars).backward()
            optimizer.step()
        return model

    def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.huber_loss(model(*batch[:2]), batch[2], reduction="none")

    for _ in cluster.train(model, data, losses, BATCH, STEPS, state=[optimizer]):
        optimizer.step()
    return model


SCRIPTS: dict[str, Script] = {
    one.__name__: one
    for one in (
        clipping_and_one_cycle, average_of_weights, sharpness_aware, triplets, distillation, siamese,
        tagging_padded_sentences, weighted_classes, unfreezing, mixture_of_experts, weight_norm_and_decay_by_hand,
        two_optimizers, accumulation, two_tasks_with_learnt_weights, factors_with_sparse_gradients,
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them by two ranks, one after the other in one run; each leaves its parameters."""
    folder = tmp_path_factory.mktemp("ranks")

    def all_of_them() -> None:
        with cr.join(Striped(2)) as cluster:
            for name, script in SCRIPTS.items():
                torch.save(list(script(cluster).parameters()), folder / f"{name}-{cluster.rank}")

    outcome = run_forked(all_of_them, 2)
    assert outcome.codes == {0: 0, 1: 0}, outcome.errors
    return folder


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_a_plain_one_does(name: str, of_ranks: Path) -> None:
    plain = list(SCRIPTS[name](None).parameters())
    with cr.join(Striped(3), environment={}) as cluster:
        alone = list(SCRIPTS[name](cluster).parameters())
    for found in (alone, torch.load(of_ranks / f"{name}-0"), torch.load(of_ranks / f"{name}-1")):
        for one, other in zip(found, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def negatives_of_the_batch(model: nn.Module, batch: Batch) -> torch.Tensor:
    """SimCLR, CLIP."""
    one = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(one @ one.T / 0.5, torch.arange(len(one)), reduction="none")


def balanced_over_the_batch(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss beside of Switch Transformers: how much of the batch each expert has."""
    shares = F.softmax(model(batch[0]), 1)
    return each(model, batch) + 3 * (F.one_hot(shares.argmax(1), 3).double().mean(0) * shares.mean(0)).sum()


class Carried(nn.Module):
    """A recurrent model that goes on from the state it ended with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.gru, self.state = nn.GRUCell(6, 3).double(), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None if self.state is None else self.state[: len(x)]
        found = self.gru(x, state)
        self.state = found.detach()
        return found


def normalised() -> nn.Module:
    return nn.Sequential(mlp(), nn.BatchNorm1d(3).double())


def spectral() -> nn.Module:
    """Each pass in training mode moves on the vectors that the norm is estimated with."""
    model = mlp()
    nn.utils.parametrizations.spectral_norm(model[0])
    return model


@pytest.mark.parametrize(
    ("model", "losses", "said"),
    [
        (mlp, negatives_of_the_batch, "couples samples: the loss of sample"),
        (mlp, balanced_over_the_batch, "couples samples: the loss of sample"),
        (mlp, lambda *given: each(*given).mean(), "one loss per sample.*reduction='none'"),
        (Carried, each, "Something is carried from one call to the next"),
        (normalised, each, "BatchNorm1d in training mode: it couples the samples"),
        (spectral, each, r"carried from one call to the next: the buffers '0.parametrizations.weight.0._u', "),
    ],
)
def test_what_would_not_be_the_same_is_refused(model: Callable[[], nn.Module], losses: Callable, said: str) -> None:
    with cr.join(environment={}) as cluster, pytest.raises(UsageError, match=said) as caught:
        cluster.train(model(), CLASSES, losses, BATCH, STEPS)
    assert "\n" not in str(caught.value)
