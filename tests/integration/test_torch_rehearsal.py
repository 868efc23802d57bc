"""The rehearsal: what couples samples, or carries something along, is refused before the first round."""

import logging
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import Dataset, TensorDataset, default_collate, random_split

import codedreduce.torch as cr
from codedreduce import CodedReduce, MasterWorker, Scheme, Striped, Tree
from codedreduce.errors import PlanError, UsageError
from codedreduce.torch.training.fingerprint import fingerprint
from codedreduce.torch.training.fixed_rng import compute_with_fixed_rng
from codedreduce.torch.training.training import Training

from .test_torch_given import LanguageModel, Sentences, by_token, padded
from .test_torch_striped import bits_of, digest
from .torch_model import BATCH, Model, data, losses, run_forked


def begin(model: nn.Module, lossy: Callable, dataset: Dataset | None = None, batch: int = BATCH, **options):
    """Trains one step alone."""
    with cr.join(MasterWorker(3), environment={}) as cluster:
        return next(iter(cluster.train(model, dataset or data(), lossy, batch, 2, **options)))


def contrastive(model: nn.Module, batch) -> torch.Tensor:
    """Every other sample of the batch is a negative."""
    x, _ = batch
    one, other = F.normalize(model(x), dim=1), F.normalize(model(x + 0.1), dim=1)
    return F.cross_entropy(one @ other.T / 0.5, torch.arange(len(x)), reduction="none")


def normalised_by_hand(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(F.batch_norm(model(x), None, None, training=True), y, reduction="none")


def slightly_coupled(by: float) -> Callable:
    def lossy(model: nn.Module, batch) -> torch.Tensor:
        each = losses(model, batch)
        return each * (1 + by * len(each))

    return lossy


@pytest.mark.parametrize("lossy", [contrastive, normalised_by_hand, slightly_coupled(1e-3)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_coupled_samples_are_refused(lossy: Callable, dropout: float) -> None:
    """Also where dropout alone makes every pass another."""
    with pytest.raises(
        UsageError, match=r"couples samples: the loss of sample \d+ was [\d.]+ together with 7 others and"
    ):
        begin(Model(dropout=dropout), lossy)


def test_what_may_be_rounding_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    begin(Model(), slightly_coupled(2e-5))
    assert "may couple samples: the loss of sample" in caplog.text
    caplog.clear()
    begin(Model(), slightly_coupled(1e-7))
    begin(Model(torch.float64), losses, data(torch.float64))
    assert not caplog.records


def test_a_coupled_metric_is_a_warning_and_a_coupled_weight_is_not(caplog: pytest.LogCaptureFixture) -> None:
    """A metric may jump where rounding decides which class is the likeliest, and changes no step."""

    def measured(model: nn.Module, batch):
        each = losses(model, batch)
        return each, {"size": torch.full_like(each, len(each))}

    begin(Model(), measured)
    assert "may couple samples: the metric 'size' of sample" in caplog.text
    with pytest.raises(UsageError, match="couples samples: the weight of sample"):
        begin(Model(), lambda model, batch: (losses(model, batch), torch.full((len(batch[0]),), 1 / len(batch[0]))))


class Recurrent(nn.Module):
    """A language model whose state is carried from batch to batch, as in many scripts; or begins anew."""

    def __init__(self, *, carried: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.head = nn.GRU(10, 8, batch_first=True), nn.Linear(8, 4)
        self.carried = carried
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, state = self.gru(x.unsqueeze(1).expand(-1, 3, -1), self.state)
        if self.carried:
            self.state = state.detach()
        return self.head(out[:, -1])


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + torch.randn(x.shape, generator=self.generator))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.inner(x) * (1 + self.passes)


@pytest.mark.parametrize("model", [Recurrent(carried=True), OwnGenerator(), Counting()])
def test_what_is_carried_from_call_to_call_is_refused(model: nn.Module) -> None:
    with pytest.raises(
        UsageError, match=r"same samples twice, and the loss of sample \d+ was [\d.]+ at first and [\d.]+ again"
    ):
        begin(model, losses)


class Augmented(Dataset):
    """Adds noise: of the generators that everyone has, or of one of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.inner = data()
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.inner[index]
        noise = {
            "own": lambda: self.own.standard_normal(), "numpy": np.random.randn, "random": random.random,
            "torch": lambda: float(torch.rand(())),
        }[self.kind]()  # fmt: skip
        return x + float(noise), y


def test_a_dataset_with_a_generator_of_its_own_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sample \d+ of Augmented differed when it was read again"):
        begin(Model(), losses, Augmented("own"))


class Everything(nn.Module):
    """Randomness of many kinds, none of which couples samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = Model(dropout=0.4)
        self.conv = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.Dropout1d(0.5))
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.unsqueeze(1)).transpose(1, 2)
        y, _ = self.attention(y, y, y, need_weights=False)
        q = y.unsqueeze(1)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2).squeeze(1)
        mean = self.head(y.mean(1))
        drawn = mean + torch.randn_like(mean) * torch.exp(-mean)  # as in a variational autoencoder
        keep = torch.rand(len(x), 1) < 0.9  # as in stochastic depth
        masked = torch.where(torch.bernoulli(torch.full_like(x, 0.15)).bool(), torch.randint(0, 3, x.shape), x)
        return self.inner(F.dropout(drawn, 0.2) * keep + masked)


@pytest.mark.parametrize(
    "kind", ["everything", "recurrent", "padded", "autocast", "numpy", "random", "torch", "collated"]
)
def test_what_does_not_couple_passes_without_a_word(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def in_bfloat16(model: nn.Module, batch) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return losses(model, batch)

    if kind == "padded":
        begin(LanguageModel(torch.float32, 0.3), by_token, Sentences(), 30, collate_fn=padded)
    elif kind == "autocast":
        begin(Model(dropout=0.3), in_bfloat16)
    elif kind == "collated":
        begin(
            Model(), losses, collate_fn=lambda samples: default_collate([(x * np.random.rand(), y) for x, y in samples])
        )
    elif kind in ("numpy", "random", "torch"):
        begin(Model(), losses, Augmented(kind))
    else:
        begin(Everything() if kind == "everything" else Recurrent(carried=False), losses)
    assert not caplog.records


def test_a_rehearsal_leaves_no_trace() -> None:
    class Averaging(nn.Module):
        """Buffers that are changed in place, and one that is replaced; none is used."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = Model(dropout=0.3)
            self.register_buffer("mean", torch.zeros(10))
            self.register_buffer("last", torch.zeros(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean += x.mean(0)
            self.last = x[-1]
            return self.inner(x)

    model = Averaging()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    rehearsal = Training(model=model, dataset=data(), losses=losses, batch_size=BATCH, steps=1).rehearsal
    assert rehearsal.warnings == ()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert not model.mean.any()
    assert not model.last.any()
    assert all(one.grad is None for one in model.parameters())


def test_different_data_on_ranks_is_refused_and_named() -> None:
    """A split that is seeded by the rank: as many samples, others."""

    def script() -> None:
        with cr.join(Striped(2)) as cluster:
            split = torch.Generator().manual_seed(int(os.environ["RANK"]))
            part, _ = random_split(data(), [0.8, 0.2], generator=split)
            for _ in cluster.train(Model(), part, losses, BATCH, 2):
                pass

    outcome = run_forked(script, 2, {"CODEDREDUCE_ALL_WITHIN": "5"})
    first, *_ = outcome.errors[1].splitlines()
    assert first.startswith("JoinRefused: rank 1 has data whose samples ")
    assert ", and the root data whose samples " in first
    for same in ("model", "seed", "batches", "160"):
        assert same not in first, "only what differs is named"


def test_other_data_is_not_resumed(tmp_path: Path) -> None:
    with cr.join() as cluster:
        list(cluster.train(Model(), data(), losses, BATCH, 2, checkpoint=tmp_path, every=1))
        x, y = data().tensors
        other = TensorDataset(x + 1, y)
        with pytest.raises(UsageError, match="data 'data whose samples"):
            next(iter(cluster.train(Model(), other, losses, BATCH, 4, checkpoint=tmp_path, resume=True)))


# -- coupled on purpose


def coupled(folder: Path, scheme: Scheme) -> Callable[[], None]:
    """Every step against plain PyTorch: a loop over micro-batches of six, whose gradients are added up."""

    def script() -> None:
        model, plain = Model(torch.float64), Model(torch.float64)
        optimizer, other = (torch.optim.AdamW(one.parameters(), lr=0.05) for one in (model, plain))
        dataset, seen = data(torch.float64), 0
        with cr.join(scheme) as cluster:
            for step in cluster.train(
                model, dataset, contrastive, 60, 5, seed=3, micro_batch=6, coupled="micro-batch", drop_last=False
            ):
                chosen = cr.batch_indices(200, 60, step.round, seed=3, drop_last=False)
                other.zero_grad()
                total = 0.0
                for first in range(0, len(chosen), 6):
                    each = contrastive(plain, dataset[chosen[first : first + 6]])
                    (each.sum() / len(chosen)).backward()
                    total += each.sum().item()
                assert math.isclose(step.loss, total / len(chosen), rel_tol=1e-10)
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    if theirs.grad is not None:
                        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-12)
                optimizer.step()
                other.step()
                seen += 1
            (folder / f"{cluster.rank}").write_text(f"{seen} {digest(*model.parameters())}")

    return script


@pytest.mark.parametrize(
    ("scheme", "processes"),
    [
        (MasterWorker(1), 0),
        (Striped(4), 4),
        (Striped(3, blocks=1), 3),
        (CodedReduce(Tree.regular(fanout=2, depth=2)), 7),
    ],
)
def test_what_is_coupled_is_the_micro_batch_whoever_computes_it(tmp_path: Path, scheme: Scheme, processes: int) -> None:
    found = []
    for inject in ("", "stalls:0.3:0.15s")[: 2 if processes else 1]:
        if processes:
            outcome = run_forked(coupled(tmp_path, scheme), processes, {"CODEDREDUCE_INJECT": inject} if inject else {})
            assert outcome.codes == dict.fromkeys(range(processes), 0), outcome.errors
            if isinstance(scheme, Striped):
                bits_of(tmp_path, processes)
        else:
            coupled(tmp_path, scheme)()
        found.append((tmp_path / "0").read_text())
    assert found[0].startswith("5 ")
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coupled": "batch", "micro_batch": 6}, "coupled='batch': use"),
        ({"coupled": "micro-batch"}, "needs micro_batch="),
        ({"coupled": "micro-batch", "micro_batch": 7}, "is not a multiple of micro_batch=7"),
    ],
)
def test_what_cannot_be_coupled(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        begin(Model(), contrastive, **options)


def test_too_few_micro_batches_for_a_plan_are_said() -> None:
    with cr.join(Striped(7), environment={}) as cluster, pytest.raises(PlanError, match="36 has 6 micro-batches of 6"):
        cluster.train(Model(), data(), contrastive, BATCH, 2, micro_batch=6, coupled="micro-batch")


# -- what it is made of


def test_draws_that_are_held_still_do_not_depend_on_how_many_there_are() -> None:
    def drawn(count: int) -> Callable[[], list[torch.Tensor]]:
        return lambda: [
            torch.rand(count), torch.randn(count), F.dropout(torch.ones(count), 0.5), torch.randint(5, 9, (count,)),
            torch.empty(count).exponential_(), torch.bernoulli(torch.full((count,), 0.3)),
        ]  # fmt: skip

    few, precision, is_still, has_drawn = compute_with_fixed_rng(drawn(3))
    many, *_ = compute_with_fixed_rng(drawn(50))
    assert is_still
    assert has_drawn
    assert precision == torch.finfo(torch.float32).eps
    for one, other in zip(few, many, strict=True):
        assert len(set(other.tolist())) == 1
        assert one[0] == other[0]
    assert not compute_with_fixed_rng(lambda: F.rrelu(-torch.ones(3), training=True)).is_still
    assert few[2][0] == 2.0, "nothing is dropped, and what is left is scaled"


def test_precision_is_that_of_the_narrowest_numbers() -> None:
    x = torch.ones(3, 3, dtype=torch.float64)
    assert compute_with_fixed_rng(lambda: x @ x).precision == torch.finfo(torch.float64).eps
    assert (
        compute_with_fixed_rng(lambda: (x.bfloat16() @ x.bfloat16()).double()).precision
        == torch.finfo(torch.bfloat16).eps
    )


def test_samples_that_differ_have_other_fingerprints() -> None:
    class Picture:
        def __init__(self, value: int) -> None:
            self.value = value

        def tobytes(self) -> bytes:
            return bytes([self.value] * 4)

    base = {"x": torch.arange(4.0), "y": [1, "a", None, b"c"], "z": np.arange(3), "p": Picture(1)}
    changed = [
        base | {"x": torch.arange(4.0) + 1e-6}, base | {"x": torch.arange(4.0).reshape(2, 2)},
        base | {"x": torch.arange(4.0, dtype=torch.float64)}, base | {"y": [1, "b", None, b"c"]},
        base | {"y": [1, "a", None]}, base | {"z": np.arange(3) + 1}, base | {"p": Picture(2)}, {"x": base["x"]},
        base | {"x": torch.tensor(0.0)}, base | {"x": torch.zeros(0)},
    ]  # fmt: skip
    found = {fingerprint([one]) for one in (base, *changed)}
    assert len(found) == 1 + len(changed)
    assert fingerprint([base]) == fingerprint([dict(base)])
    assert fingerprint([1, 2]) != fingerprint([2, 1])
