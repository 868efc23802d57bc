"""Losses that are divided by a count of each sample: a warning says what their gradient is."""

import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import codedreduce.torch as cr
from codedreduce.torch.training.denominators import counts_that_differ

from .test_torch_given import IGNORED, LanguageModel, Sentences, by_token, padded


class Bert(LanguageModel):
    """Tells missing words, and whether a second sentence follows the first."""

    def __init__(self) -> None:
        super().__init__()
        self.follows = nn.Linear(17, 2, dtype=torch.float64)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = super().forward(tokens)
        return logits, self.follows(logits[:, 0])


def terms(model: nn.Module, batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of every sentence the loss of its missing words, and how many there are; and the other loss."""
    tokens, labels = batch
    words, follows = model(tokens)
    each = F.cross_entropy(words.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return each.sum(1), (labels != IGNORED).sum(1), F.cross_entropy(follows, tokens[:, 0] % 2, reduction="none")


def of_own_count(model: nn.Module, batch) -> torch.Tensor:
    """The obvious port."""
    words, counts, follows = terms(model, batch)
    return words / counts.clamp(min=1) + follows


def of_constant(model: nn.Module, batch) -> torch.Tensor:
    """What the warning advises."""
    words, _, follows = terms(model, batch)
    return words / 3.5 + follows


def plain_gradients(lossy: Callable, round_: int) -> list[torch.Tensor | None]:
    """Of the mean over a batch of that, whatever it gives."""
    model, dataset = Bert(), Sentences()
    batch = padded([dataset[int(one)] for one in cr.batch_indices(100, 30, round_, seed=3)])
    lossy(model, batch).mean().backward()
    return [one.grad for one in model.parameters()]


def gradients(lossy: Callable) -> list[torch.Tensor | None]:
    model = Bert()
    with cr.join() as cluster:
        next(iter(cluster.train(model, Sentences(), lossy, 30, 1, seed=3, collate_fn=padded, micro_batch=10)))
        return [one.grad for one in model.parameters()]


def differ(found: list, other: list) -> float:
    """The largest difference of gradients, in parts of the largest."""
    one, two = (torch.cat([g.flatten() for g in each if g is not None]) for each in (found, other))
    return float((one - two).abs().max() / two.abs().max())


def test_the_obvious_port_of_a_sum_of_means_has_a_warning_that_tells_its_gradient(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def in_one_process(model: nn.Module, batch) -> torch.Tensor:
        words, counts, follows = terms(model, batch)
        return words.sum() / counts.sum() + follows.mean()

    found = gradients(of_own_count)
    (record,) = caplog.records
    for part in ("by a count of its own (", "mean of these means", "return (sums, counts)", "by a constant"):
        assert part in record.message
    assert "\n" not in record.message
    assert differ(found, plain_gradients(of_own_count, 1)) < 1e-9
    assert differ(found, plain_gradients(in_one_process, 1)) > 0.05


def test_what_the_warning_advises_has_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert differ(gradients(of_constant), plain_gradients(of_constant, 1)) < 1e-9
    with cr.join() as cluster:
        next(iter(cluster.train(LanguageModel(), Sentences(), by_token, 30, 1, collate_fn=padded)))
    assert not caplog.records


CLASS_WEIGHTS = torch.tensor([1.0, 5.0], dtype=torch.float64)


def by_class(model: nn.Module, batch, reduction: str = "none") -> torch.Tensor:
    """Whether a second sentence follows; that it does counts more."""
    tokens, _ = batch
    return F.cross_entropy(model(tokens)[1], tokens[:, 0] % 2, CLASS_WEIGHTS, reduction=reduction)


def by_class_and_weight(model: nn.Module, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """What the warning advises."""
    return by_class(model, batch), CLASS_WEIGHTS[batch[0][:, 0] % 2]


def test_weights_of_classes_have_a_warning_unless_the_mean_is_theirs(caplog: pytest.LogCaptureFixture) -> None:
    def in_one_process(model: nn.Module, batch) -> torch.Tensor:
        return by_class(model, batch, "mean")

    caplog.set_level(logging.WARNING)
    assert differ(gradients(by_class_and_weight), plain_gradients(in_one_process, 1)) < 1e-9
    assert not caplog.records
    assert differ(gradients(by_class), plain_gradients(in_one_process, 1)) > 0.05
    (record,) = caplog.records
    assert "return (losses, weight[targets])" in record.message


# -- which losses

COUNTS = torch.tensor([3, 1, 4])
MASK = torch.arange(4) < COUNTS[:, None]
LABELS = torch.where(MASK, torch.tensor([[0, 1, 2, 3]]), IGNORED)
WEIGHT = torch.linspace(-1, 1, 3 * 4 * 5).view(3, 4, 5).requires_grad_()


def each() -> torch.Tensor:
    return F.cross_entropy((WEIGHT * 2).transpose(1, 2), LABELS, ignore_index=IGNORED, reduction="none")


def by_index() -> torch.Tensor:
    """Of boxes, of which every picture has some."""
    boxes = (WEIGHT * 2)[MASK].square().sum(1)
    picture = torch.arange(3).repeat_interleave(COUNTS)
    return torch.zeros(3).index_add(0, picture, boxes) / COUNTS


DIVIDED: dict[str, Callable[[], torch.Tensor]] = {
    "div": lambda: each().sum(1) / COUNTS,
    "in place": lambda: each().sum(1).div_(COUNTS),
    "float": lambda: each().sum(-1) / MASK.float().sum(1).clamp(min=1.0),
    "something small": lambda: (each() * MASK).sum(1) / (MASK.sum(1) + 1e-6),
    "before the sum": lambda: (each() / COUNTS[:, None]).sum(1),
    "keepdim": lambda: (each().sum(1, keepdim=True) / COUNTS[:, None]).squeeze(1),
    "half of it": lambda: 0.5 * (each().sum(1) / COUNTS).bfloat16().float() + WEIGHT.sum((1, 2)),
    "nanmean": lambda: torch.where(MASK, each(), torch.nan).nanmean(1),
    "index_add": by_index,
    "in a loop": lambda: torch.stack([each()[row].sum() / int(COUNTS[row]) for row in range(3)]),
    "means in a loop": lambda: torch.stack([each()[row][MASK[row]].mean() for row in range(3)]),
    "losses in a loop": lambda: torch.stack([F.cross_entropy(WEIGHT[row] * 2, LABELS[row]) for row in range(3)]),
    "concatenated": lambda: torch.cat(
        [F.mse_loss(WEIGHT[r, : COUNTS[r], 0], torch.ones(int(COUNTS[r]))).view(1) for r in range(3)]
    ),
    "reciprocals": lambda: each().sum(1) * (1.0 / COUNTS),
    "a mask that was divided": lambda: (each() * (MASK / MASK.sum(1, keepdim=True))).sum(1),
    "einsum": lambda: torch.einsum("st,st->s", each(), MASK.float()) / COUNTS,
    "a part of it": lambda: WEIGHT.sum((1, 2)) - torch.where(COUNTS > 1, each().sum(1) / COUNTS, 0.0),
}

NOT_DIVIDED: dict[str, Callable[[], torch.Tensor]] = {
    "sums": lambda: each().sum(1),
    "a mean over all places": lambda: each().mean(1),
    "a constant": lambda: each().sum(1) / 4,
    "alike": lambda: each().sum(1) / torch.full((3,), 4),
    "multiplied again": lambda: each().sum(1) / COUNTS * COUNTS,
    "pooling": lambda: F.cross_entropy((WEIGHT * MASK[..., None]).sum(1) / COUNTS[:, None], COUNTS, reduction="none"),
    "pooled to one number": lambda: ((WEIGHT.sum(2) * MASK).sum(1) / COUNTS - 1) ** 2,
    "a relative error": lambda: (WEIGHT[:, 0, 0] - COUNTS).abs() / COUNTS,
    "weights of samples": lambda: each().sum(1) * torch.tensor([0.5, 1.0, 0.25]),
    "places that weigh less": lambda: (each() * torch.tensor([1.0, 0.5, 0.25, 0.2])).sum(1),
    "noise": lambda: (each() * torch.linspace(0.1, 0.9, 12).view(3, 4)).sum(1),
    "scaled": lambda: each().sum(1) / torch.tensor([0.5, 1.5, 2.5]),
    "a mask": lambda: each().sum(1) * torch.tensor([0, 1, 1]),
    "alike in a loop": lambda: torch.stack([F.mse_loss(WEIGHT[row], torch.ones(4, 5)) for row in range(3)]),
    "ctc": lambda: F.ctc_loss(
        WEIGHT.transpose(0, 1).log_softmax(2), torch.ones(3, 2, dtype=torch.int64), torch.full((3,), 4),
        torch.tensor([1, 2, 1]), reduction="none",
    ) / torch.tensor([1, 2, 1]),  # as its own mean does
    "no graph": lambda: each().detach().sum(1) / COUNTS,
    "a sum": lambda: (each().sum(1) / COUNTS).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVIDED)
def test_counts_are_found(name: str) -> None:
    assert counts_that_differ(DIVIDED[name]()) == (1, 4)


@pytest.mark.parametrize("name", NOT_DIVIDED)
def test_there_is_nothing_to_be_found(name: str) -> None:
    assert counts_that_differ(NOT_DIVIDED[name]()) is None
