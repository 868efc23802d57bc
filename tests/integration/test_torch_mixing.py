"""Samples that are mixed by what is drawn (mixup, CutMix) are refused; what is drawn for each of them is not."""

import itertools
import logging
import random
from collections.abc import Callable
from random import shuffle, uniform

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

import codedreduce.torch as cr
from codedreduce.errors import UsageError
from codedreduce.torch.model.seeding import random_state_kept, seed_everything
from codedreduce.torch.training.fixed_rng import compute_with_fixed_rng

from .torch_model import BATCH, Model, data, losses


def begin(lossy: Callable, **options) -> None:
    """Trains one step alone."""
    with cr.join() as cluster:
        next(iter(cluster.train(Model(), data(), lossy, BATCH, 2, **options)))


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.shuffle(order)
    return order


def shuffled_by_name(count: int) -> list[int]:
    order = list(range(count))
    shuffle(order)
    return order


def shuffled_unseen(count: int, kept: Callable = random.shuffle) -> list[int]:
    order = list(range(count))
    kept(order)
    return order


#: Which other sample each is mixed with.
PARTNERS = {
    "torch.randperm": torch.randperm,
    "torch.rand().argsort": lambda count: torch.rand(count).argsort(),
    "torch.randn().sort": lambda count: torch.randn(count).sort()[1],
    "torch.rand().topk": lambda count: torch.rand(count).topk(count)[1],
    "torch.randint": lambda count: torch.randint(count, (count,)),
    "Tensor.random_": lambda count: torch.empty(count, dtype=torch.int64).random_(count),
    "Tensor.random_().argsort": lambda count: torch.empty(count, dtype=torch.int64).random_().argsort(),
    "torch.multinomial": lambda count: torch.multinomial(torch.ones(count), count),
    "np.permutation": lambda count: np.random.permutation(count),
    "np.permutation of a range": lambda count: np.random.permutation(np.arange(count)),
    "np.choice": lambda count: np.random.choice(count, count, replace=False),
    "np.randint": lambda count: np.random.randint(0, count, size=count),
    "np.rand().argsort": lambda count: np.random.rand(count).argsort(),
    "random.shuffle": shuffled,
    "shuffle": shuffled_by_name,
    "random.sample": lambda count: random.sample(range(count), count),
    "random.randrange": lambda count: [random.randrange(count) for _ in range(count)],
    "sorted by random": lambda count: sorted(range(count), key=lambda _: random.random()),
}

#: How much of itself a sample keeps.
SHARES = {
    "torch.Beta": lambda: torch.distributions.Beta(0.2, 0.2).sample(),
    "torch.Dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(2)).sample()[0],
    "np.beta": lambda: np.random.beta(0.2, 0.2),
    "random.betavariate": lambda: random.betavariate(0.2, 0.2),
    "random": lambda: random.uniform(0.1, 0.9),
}


def mixup(partner: str, share: str = "np.beta") -> Callable:
    """With two losses, as its authors have it."""

    def lossy(model: nn.Module, batch) -> torch.Tensor:
        x, y = batch
        kept, other = float(SHARES[share]()), torch.as_tensor(np.asarray(PARTNERS[partner](len(x))))
        mixed = kept * x + (1 - kept) * x[other]
        return kept * losses(model, (mixed, y)) + (1 - kept) * losses(model, (mixed, y[other]))

    return lossy


def cutmix(model: nn.Module, batch) -> torch.Tensor:
    """A part of another sample, in every other batch; as its authors have it."""
    x, y = batch
    if np.random.rand(1) < 0.5:
        other = torch.randperm(len(x))
        begin, end = sorted(np.random.randint(11, size=2).tolist())
        x = x.clone()
        x[:, begin : max(end, begin + 3)] = x[other, begin : max(end, begin + 3)]
    return losses(model, (x, y))


def of_collate(samples: list) -> list[torch.Tensor]:
    """Mixup where samples are put together."""
    x, y = default_collate(samples)
    return [0.6 * x + 0.4 * x[torch.randperm(len(x))], y]


@pytest.mark.parametrize("partner", PARTNERS)
def test_mixup_is_refused_whatever_draws_the_partner(partner: str) -> None:
    with pytest.raises(UsageError, match=r"the loss of sample .* \(mixup and CutMix.*micro_batch=") as refused:
        begin(mixup(partner))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("share", SHARES)
def test_mixup_is_refused_whatever_draws_the_share(share: str) -> None:
    with pytest.raises(UsageError, match="couples samples"):
        begin(mixup("torch.randperm", share))


SOMETIMES = {
    "random() below": lambda: random.random() < 0.3,
    "random() above": lambda: random.random() > 0.7,
    "np.rand below": lambda: np.random.rand() < 0.3,
    "torch above": lambda: torch.rand(1) > 0.8,
    "torch below": lambda: torch.rand(()) < 0.2,
    "a coin": lambda: random.randint(0, 1),
    "the other side": lambda: not torch.randint(2, ()),
    "np.choice": lambda: np.random.choice([True, False]),
    "random.choice": lambda: random.choice([True, False]),
}


@pytest.mark.parametrize("when", SOMETIMES)
def test_what_is_mixed_in_some_batches_only_is_refused(when: str) -> None:
    def lossy(model: nn.Module, batch) -> torch.Tensor:
        x, y = batch
        return losses(model, (x + x[torch.randperm(len(x))] if SOMETIMES[when]() else x, y))

    with pytest.raises(UsageError, match="couples samples"):
        begin(lossy)


def test_cutmix_is_refused_and_so_is_what_collate_fn_mixes() -> None:
    with pytest.raises(UsageError, match="couples samples"):
        begin(cutmix)
    with pytest.raises(UsageError, match="couples samples"):
        begin(losses, collate_fn=of_collate)


def test_what_cannot_be_held_still_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Once: a function that is kept where nobody looks draws as it does."""
    PARTNERS["unseen"] = shuffled_unseen
    try:
        begin(mixup("unseen"))
    finally:
        del PARTNERS["unseen"]
    (record,) = caplog.records
    assert record.message.startswith("could not test whether losses() couples samples: the loss of sample ")
    assert 'coupled="micro-batch"' in record.message


def test_mixup_within_micro_batches_is_what_plain_pytorch_computes() -> None:
    model, plain = Model(torch.float64), Model(torch.float64)
    optimizer, other = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain))
    dataset, lossy = data(torch.float64), mixup("torch.randperm")
    with cr.join() as cluster:
        for step in cluster.train(model, dataset, lossy, BATCH, 3, seed=3, micro_batch=6, coupled="micro-batch"):
            chosen = cr.batch_indices(200, BATCH, step.round, seed=3)
            other.zero_grad()
            for first in range(0, BATCH, 6):
                with random_state_kept():
                    seed_everything(3, step.round, first)
                    (lossy(plain, dataset[chosen[first : first + 6]]).sum() / BATCH).backward()
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                if theirs.grad is not None:
                    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-12)
            optimizer.step()
            other.step()


# -- what is drawn for each sample


def noise(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return losses(model, (x + 0.1 * torch.randn_like(x) + 0.1 * torch.empty_like(x).normal_(1, 0.2), y))


def drop_path(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    keep = torch.empty(len(x), 1).bernoulli_(0.8) / 0.8
    return losses(model, (x * keep * (torch.rand(len(x), 1) < 0.9), y))


def diffusion(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    time = torch.randint(0, 1000, (len(x),)) / 1000
    kept = time.sqrt()[:, None]
    return losses(model, (kept * x + (1 - kept) * torch.randn(x.shape), y))


def masked(model: nn.Module, batch) -> torch.Tensor:
    """Of every sample's features some, in an order that is drawn for it, as masked autoencoders do."""
    x, y = batch
    kept = torch.rand(x.shape).argsort(dim=1)[:, :4]
    return losses(model, (torch.zeros_like(x).scatter(1, kept, x.gather(1, kept)), y))


def variational(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    mean = torch.tanh(x)
    drawn = torch.distributions.Normal(mean, torch.exp(-mean)).rsample() + torch.distributions.Gamma(2.0, 3.0).sample()
    return losses(model, (drawn, y)) + mean.square().sum(1)


def augmented(samples: list) -> list[torch.Tensor]:
    """Each sample by itself: scaled, shifted, turned round, cut out; and with a negative that is not its own label."""
    found = []
    for x, y in samples:
        x = x * uniform(0.8, 1.2) + np.random.normal(0, 0.1)
        x = x.flip(0) if random.random() < 0.5 else x
        x = x.roll(int(np.random.randint(3)) + random.choice([0, 1]))
        begin = random.randint(0, 5)
        x[begin : begin + 2] = float(np.random.uniform(-1, 1))
        negative = random.randrange(4)
        while negative == y or np.random.randint(4) == 7:
            negative = random.randrange(4)
        noise = torch.from_numpy(np.random.randn(len(x))) * 0.1 + torch.tensor(np.random.rand(len(x)))
        found.append((x + noise.float() + torch.tensor(random.sample(range(10), 10)) * 0.01 + negative, y))
    return default_collate(found)


@pytest.mark.parametrize("lossy", [noise, drop_path, diffusion, masked, variational])
def test_what_is_drawn_for_each_sample_passes_without_a_word(lossy: Callable, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    begin(lossy)
    assert not caplog.records


def test_augmentation_of_each_sample_passes_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Also with a loop that draws until it finds another number, which it never would if all were one."""
    caplog.set_level(logging.WARNING)
    begin(losses, collate_fn=augmented)
    assert [one.message for one in caplog.records if "could not be fixed" not in one.message] == []


def test_generators_draw_as_before_when_it_is_over() -> None:
    functions = {**vars(random)}, {**vars(np.random)}
    with pytest.raises(ZeroDivisionError):
        compute_with_fixed_rng(lambda: 1 // 0)
    assert ({**vars(random)}, {**vars(np.random)}) == functions


def test_a_loop_that_waits_for_another_number_ends() -> None:
    for draw in (random.random, np.random.rand, lambda: float(torch.rand(()))):

        def wait(draw: Callable[[], float] = draw) -> int:
            return next(count for count in itertools.count() if draw() < 0.4)

        assert compute_with_fixed_rng(wait).found >= 0


@pytest.mark.parametrize("level", [0.02, 0.5, 0.98])
def test_fixed_numbers_are_some_that_might_be_drawn(level: float) -> None:
    def drawn() -> list:
        return [
            (random.random(), 0, 1), (random.uniform(3, 5), 3, 5), (random.randint(3, 5), 3, 5),
            (random.randrange(3, 9, 2), 3, 8), (random.choice([3, 4]), 3, 4), (random.choices([3, 4], k=2)[1], 3, 4),
            (random.choices([3, 4], [0, 1])[0], 4, 4), (random.sample([3, 4, 5], 2)[0], 3, 5),
            (random.choices([3, 4], cum_weights=[1, 1])[0], 3, 3), (random.betavariate(2, 3), 0, 1),
            (random.gauss(5, 1), 2, 8), (random.expovariate(2), 0, 9), (random.gammavariate(2, 3), 0, 9),
            (np.random.rand(), 0, 1), (np.random.uniform(3, [4, 5]).min(), 3, 5), (np.random.randn(2).max(), -3, 3),
            (np.random.randint(5), 0, 4), (np.random.randint(3, 5, 2).max(), 3, 4), (np.random.normal(5, 1), 2, 8),
            (np.random.beta(2, 3), 0, 1), (np.random.dirichlet([1, 3], 2)[1, 1], 0, 1), (np.random.poisson(3), 0, 9),
            (np.random.binomial(4, 0.5), 0, 4), (np.random.choice(5), 0, 4), (np.random.choice([3, 4], 3)[2], 3, 4),
            (np.random.choice([3, 4], p=[0, 1]), 4, 4), (np.random.choice(5, (2, 2), replace=False).max(), 0, 4),
            (np.random.exponential(2.0), 0, 9), (np.random.gamma(2.0), 0, 9), (np.random.standard_normal(), -3, 3),
            (float(torch.rand(())), 0, 1), (int(torch.randint(3, 5, ())), 3, 4), (float(torch.randn(())), -3, 3),
            (int(torch.multinomial(torch.tensor([0.0, 1.0]), 1)), 1, 1), (float(torch.normal(5.0, 1.0, ())), 2, 8),
        ]  # fmt: skip

    found, _, is_still, has_drawn = compute_with_fixed_rng(drawn, level)
    assert is_still
    assert has_drawn
    for place, (number, low, high) in enumerate(found):
        assert low <= number <= high, place


def test_sorting_is_what_it_was_where_numbers_differ() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]])
    found = compute_with_fixed_rng(lambda: (x.sort(1), x.topk(2, 1), torch.sort(x, dim=1, stable=True))).found
    assert found[0][0].tolist() == [[1, 2, 3], [0, 1, 1]]
    assert found[0][1].tolist() == [[1, 2, 0], [2, 1, 0]]
    assert found[1][0].tolist() == [[3, 2], [1, 1]]
    assert found[2][1].tolist() == [[1, 2, 0], [2, 0, 1]]
