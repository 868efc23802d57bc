"""What `losses` may give beside losses: weights and metrics; and what it may be told. Against plain PyTorch."""

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import codedreduce.torch as cr
from codedreduce import CodedReduce, GradientCoding, MasterWorker, Scheme, Striped, Tree
from codedreduce.errors import Diverged, UsageError
from codedreduce.torch.model.loss_output import takes_step

from .test_torch_striped import bits_of, digest
from .torch_model import Model, data, run_forked

BATCH, STEPS, SAMPLES, IGNORED = 30, 6, 100, -100

TREE = CodedReduce(Tree.regular(fanout=2, depth=2))
SCHEMES: dict[str, tuple[Scheme, int]] = {
    "alone": (MasterWorker(4), 0),
    "striped": (Striped(4), 4),
    "tree": (TREE, 7),
    "cyclic": (GradientCoding(6, 2, code="cyclic"), 7),
}


class Sentences(Dataset):
    """Sequences of 1 to 12 tokens, of which some at the begin are a prompt that is not learnt."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(1, 13, (), generator=generator))
        tokens = torch.randint(0, 17, (length + 1,), generator=generator)
        labels = tokens[1:].clone()
        labels[: int(torch.randint(0, length + 1, (), generator=generator))] = IGNORED
        return tokens[:-1], labels


def padded(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """As long as the longest of those that are computed together."""
    tokens, labels = zip(*samples, strict=True)
    return pad_sequence(list(tokens), True), pad_sequence(list(labels), True, IGNORED)


class LanguageModel(nn.Module):
    """A small GPT-2: causal attention before a layer of its own, normalised first, the head tied to the embedding."""

    def __init__(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.tokens, self.places = nn.Embedding(17, 16), nn.Embedding(12, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(dropout))
        self.first, self.last = nn.LayerNorm(16), nn.LayerNorm(16)
        self.to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        samples, length = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(length))
        q, k, v = (one.view(samples, length, 2, 8).transpose(1, 2) for one in self.qkv(self.first(x)).split(16, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(samples, length, 16))
        return self.last(x + self.mlp(x)) @ self.tokens.weight.T


def by_token(model: nn.Module, batch) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    tokens, labels = batch
    logits = model(tokens)
    each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    counts = labels != IGNORED
    right = ((logits.argmax(-1) == labels) & counts).sum(1)
    return each.sum(1), counts.sum(1), {"right": right, "length": counts.sum(1), "empty": counts.sum(1) == 0}


def compared(folder: Path, scheme: Scheme) -> Callable[[], None]:
    """Loss, gradient and metrics of every step against torch's own mean over the whole padded batch."""

    def script() -> None:
        model, plain = LanguageModel(), LanguageModel()
        optimizer, other = (torch.optim.AdamW(one.parameters(), lr=0.02) for one in (model, plain))
        dataset, seen = Sentences(), 0
        with cr.join(scheme) as cluster:
            for step in cluster.train(
                model, dataset, by_token, BATCH, STEPS, seed=3, collate_fn=padded, micro_batch=4, drop_last=False
            ):
                chosen = cr.batch_indices(SAMPLES, BATCH, step.round, seed=3, drop_last=False)
                tokens, labels = padded([dataset[int(index)] for index in chosen])
                other.zero_grad()
                logits = plain(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
                loss.backward()
                assert math.isclose(step.loss, loss.item(), rel_tol=1e-10)
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-12)
                counts = (labels != IGNORED).sum(1).numpy()
                right = int(((logits.argmax(-1) == labels) & (labels != IGNORED)).sum())
                expected = {"right": right, "length": counts.sum(), "empty": (counts == 0).sum()}
                assert set(step.metrics) == set(expected)
                for name, total in expected.items():
                    assert math.isclose(step.metrics[name], total / len(chosen), rel_tol=1e-9, abs_tol=1e-9)
                assert step.epoch == (1 if step.round <= 4 else 2)
                optimizer.step()
                other.step()
                seen += 1
            (folder / f"{cluster.rank}").write_text(str(seen))

    return script


@pytest.mark.parametrize("name", SCHEMES)
def test_a_padded_language_model_has_the_mean_over_its_tokens(tmp_path: Path, name: str) -> None:
    scheme, processes = SCHEMES[name]
    if processes:
        outcome = run_forked(compared(tmp_path, scheme), processes, {})
        assert outcome.codes == dict.fromkeys(range(processes), 0), outcome.errors
    else:
        compared(tmp_path, scheme)()
    assert (tmp_path / "0").read_text() == str(STEPS)


def trained(folder: Path, scheme: Scheme) -> Callable[[], None]:
    """In float32, with dropout."""

    def script() -> None:
        model = LanguageModel(torch.float32, dropout=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        late, seen = 0, []
        with cr.join(scheme) as cluster:
            for step in cluster.train(
                model, Sentences(), by_token, BATCH, STEPS, seed=3, collate_fn=padded, state=[optimizer]
            ):
                optimizer.step()
                late += len(step.late)
                seen.append((step.loss, sorted(step.metrics.items())))
            (folder / f"{cluster.rank}").write_text(f"{digest(*model.parameters())} {seen}")
        if cluster.rank == 0:
            (folder / "late").write_text(str(late))

    return script


@pytest.mark.parametrize("name", ["striped", "tree"])
def test_the_same_bits_whoever_straggles(tmp_path: Path, name: str) -> None:
    scheme, processes = SCHEMES[name]
    found = []
    for inject in ("", "stalls:0.3:0.4s", "one:0.5s"):  # many times a round, also where cores are busy
        variables = {"CODEDREDUCE_INJECT": inject} if inject else {}
        outcome = run_forked(trained(tmp_path, scheme), processes, variables)
        assert outcome.codes == dict.fromkeys(range(processes), 0), outcome.errors
        found.append(bits_of(tmp_path, processes) if name == "striped" else (tmp_path / "0").read_text())
        assert not inject or int((tmp_path / "late").read_text()) > 0, "nobody was late: the test shows nothing"
    assert len(set(found)) == 1
    trained(tmp_path, scheme)()
    assert (tmp_path / "0").read_text() == found[0], "alone, by the plan of the run"


def test_class_weights(tmp_path: Path) -> None:
    of_class = torch.tensor([1.0, 5.0, 0.0, 0.3], dtype=torch.float64)

    def weighted(model: nn.Module, batch) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        return F.cross_entropy(model(x), y, weight=of_class, reduction="none"), of_class[y]

    model, plain = Model(torch.float64), Model(torch.float64)
    dataset = data(torch.float64)
    with cr.join(MasterWorker(3)) as cluster:
        for step in cluster.train(model, dataset, weighted, BATCH, 3):
            x, y = dataset[cr.batch_indices(200, BATCH, step.round)]
            plain.zero_grad()
            loss = F.cross_entropy(plain(x), y, weight=of_class)
            loss.backward()
            assert math.isclose(step.loss, loss.item(), rel_tol=1e-12)
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                if theirs.grad is not None:
                    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-13)
    assert step.round == 3
    assert step.metrics == {}


def squared(model: nn.Module, batch) -> torch.Tensor:
    return model(batch[0]).square().sum(1)


def test_metrics_are_exact_means() -> None:
    """Numbers whose sums are whole come as they are, in float32 too: accuracies, counts."""

    def measured(model: nn.Module, batch):
        x, y = batch
        return squared(model, batch), None, {"one": y == 1, "index": y * 1000, "x": x[:, 0].tolist()}

    dataset = data()
    with cr.join(Striped(5)) as cluster:
        for step in cluster.train(Model(), dataset, measured, 50, 4, seed=1):
            x, y = dataset[cr.batch_indices(200, 50, step.round, seed=1)]
            assert step.metrics["one"] == (y == 1).sum().item() / 50
            assert step.metrics["index"] == y.sum().item() * 1000 / 50
            assert math.isclose(step.metrics["x"], x[:, 0].double().mean().item(), rel_tol=1e-5, abs_tol=1e-7)


def test_the_step_can_be_asked_for() -> None:
    """Annealed by the round and the epoch, in every scheme alike: workers of a tree know them, too."""

    def annealed(model: nn.Module, batch, step) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = squared(model, batch) * 0.5**step.round
        return loss, {"round": torch.full_like(loss, step.round), "epoch": torch.full_like(loss, step.epoch)}

    def script() -> None:
        model = Model(torch.float64)
        with cr.join(TREE if "RANK" in os.environ else None) as cluster:
            for step in cluster.train(model, data(torch.float64), annealed, 50, 6):
                x, _ = data(torch.float64)[cr.batch_indices(200, 50, step.round)]
                assert step.metrics == {"round": step.round, "epoch": 1 if step.round <= 4 else 2}
                assert step.epoch == step.metrics["epoch"]
                expected = model(x).square().sum(1).mean().item() * 0.5**step.round
                assert math.isclose(step.loss, expected, rel_tol=1e-10)

    script()
    outcome = run_forked(script, 7, {})
    assert outcome.codes == dict.fromkeys(range(7), 0), outcome.errors


class Callable3:
    def __call__(self, model, batch, step):
        return step


def test_who_wants_the_step() -> None:
    assert takes_step(lambda model, batch, step=None: 0)
    assert takes_step(lambda model, batch, anything: 0)
    assert takes_step(Callable3())
    assert not takes_step(lambda model, batch: 0)
    assert not takes_step(lambda model, batch, temperature=0.1, *, step=1: 0)
    assert not takes_step(lambda *things: 0)
    assert not takes_step(functools.partial(lambda scale, model, batch: 0, 2.0))
    assert takes_step(functools.partial(lambda scale, model, batch, step: 0, 2.0))
    with pytest.raises(UsageError, match="losses takes 4 parameters"):
        takes_step(lambda model, batch, step, more: 0)
    with pytest.raises(UsageError, match="losses takes 1 parameters"):
        takes_step(lambda model: 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda loss: (loss, torch.ones(3)), "one number per sample in its weights"),
        (lambda loss: (loss, torch.ones(len(loss), 2)), "one number per sample in its weights"),
        (lambda loss: (loss, None, {"all": loss.mean()}), r"in its metric 'all'.*it returned \(\)"),
        (lambda loss: (loss, None, [loss]), "losses.. returned metrics of type list; return a dictionary"),
        (lambda loss: (loss, loss, {}, {}), "returned 4 values"),
        (lambda loss: (loss.mean(), loss), "one loss per sample"),
    ],
)
def test_what_cannot_be_given(given: Callable, message: str) -> None:
    with cr.join() as cluster, pytest.raises(UsageError, match=message):
        cluster.train(Model(), data(), lambda model, batch: given(squared(model, batch)), 50, 6)


def test_weights_that_depend_on_parameters_are_refused() -> None:
    def confident(model: nn.Module, batch) -> tuple[torch.Tensor, torch.Tensor]:
        loss = squared(model, batch)
        return loss, torch.exp(-loss)

    message = r"weights that losses\(\) returned depend on parameters"
    with cr.join() as cluster, pytest.raises(UsageError, match=message):
        next(iter(cluster.train(Model(), data(), confident, 50, 6)))


def test_a_batch_without_any_weight_is_said() -> None:
    def nothing(model: nn.Module, batch) -> tuple[torch.Tensor, torch.Tensor]:
        loss = squared(model, batch)
        return loss * 0, torch.zeros(len(loss))

    with cr.join() as cluster, pytest.raises(Diverged, match=r"round 1: the weights .* sum to 0 over the whole batch"):
        next(iter(cluster.train(Model(), data(), nothing, 50, 6)))
    with cr.join() as cluster:
        step = next(iter(cluster.train(Model(), data(), nothing, 50, 6, nonfinite="pass")))
        assert np.isnan(step.loss), "as torch's own mean over nothing is"


def test_other_metrics_on_another_node_are_refused() -> None:
    def script() -> None:
        with cr.join(Striped(2)) as cluster:
            name = "accuracy" if cluster.rank else "error"

            def measured(model: nn.Module, batch):
                loss = squared(model, batch)
                return loss, {name: loss}

            for _ in cluster.train(Model(), data(), measured, 50, 2):
                pass

    outcome = run_forked(script, 2, {"CODEDREDUCE_ALL_WITHIN": "5", "CODEDREDUCE_TIMING": "0.2"})
    assert outcome.errors[1].startswith("JoinRefused: rank 1 has")
    assert "metrics accuracy" in outcome.errors[1]
    assert "metrics error" in outcome.errors[1]


def test_metrics_that_change_are_an_error() -> None:
    def moody(model: nn.Module, batch, step):
        loss = squared(model, batch)
        return (loss, {"a": loss}) if step.round < 3 else (loss, {"b": loss})

    with (
        cr.join() as cluster,
        pytest.raises(UsageError, match="metrics b in round 3, and losses with metrics a at first"),
    ):
        for _ in cluster.train(Model(), data(), moody, 50, 6):
            pass
