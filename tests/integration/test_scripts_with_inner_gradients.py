"""Scripts whose losses take gradients themselves, or mix samples: as plain ones do, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce import Striped
from codedreduce.errors import UsageError

from .test_more_scripts import BATCH, CLASSES, STEPS, Batch, batches, drawn, each, mlp


def slope(found: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Of each sample's output by its input, to be learnt from."""
    return torch.autograd.grad(found.sum(), x, create_graph=True)[0]


def critic_with_gradient_penalty(model: nn.Module, batch: Batch) -> torch.Tensor:
    """WGAN-GP."""
    real, fake, between = batch
    mixed = (between * real + (1 - between) * fake).requires_grad_()
    steep = slope(model(mixed), mixed).norm(dim=1)
    return (model(fake) - model(real)).squeeze(1) + 10 * (steep - 1).square()


def discriminator_with_r1(model: nn.Module, batch: Batch) -> torch.Tensor:
    real, fake, _ = batch
    real = real.clone().requires_grad_()
    found = model(real)
    each = F.softplus(-found) + F.softplus(model(fake))
    return each.squeeze(1) + 5 * slope(found, real).square().sum(1)


def informed_by_physics(model: nn.Module, batch: Batch) -> torch.Tensor:
    """u'' = -u, and u as measured."""
    x = batch[0][:, :1].clone().requires_grad_()
    padded = torch.cat([x, torch.zeros(len(x), 5, dtype=x.dtype)], 1)
    u = model(padded)
    return (slope(slope(u, x), x) + u).square().squeeze(1) + (u - batch[2]).square().squeeze(1)


def adversarial(model: nn.Module, batch: Batch) -> torch.Tensor:
    """FGSM, with a gradient that reaches the input alone."""
    x = batch[0].clone().requires_grad_()
    (towards,) = torch.autograd.grad(model(x).square().sum(), x)
    return (model(x.detach() + 0.1 * towards.sign()) - batch[2]).square().squeeze(1)


def adversarial_by_backward(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The same as it is mostly written; what it leaves in the parameters a plain script then throws away."""
    x = batch[0].clone().requires_grad_()
    model(x).square().sum().backward()
    return (model(x.detach() + 0.1 * x.grad.sign()) - batch[2]).square().squeeze(1)


DATA = TensorDataset(drawn(6), drawn(6, seed=2), drawn(1, seed=3).sigmoid())


def plain(losses: Callable) -> list[torch.Tensor]:
    model = mlp(outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches(DATA):
        loss = losses(model, batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return list(model.parameters())


def ours(losses: Callable) -> list[torch.Tensor]:
    model = mlp(outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with cr.join(Striped(3), environment={}) as cluster:
        for _ in cluster.train(model, DATA, losses, BATCH, STEPS, state=[optimizer]):
            optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize(
    "losses", [critic_with_gradient_penalty, discriminator_with_r1, informed_by_physics, adversarial]
)
def test_gradients_within_losses_are_those_of_a_plain_script(
    losses: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    for one, other in zip(ours(losses), plain(losses), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert not caplog.records


def test_a_backward_pass_within_losses_leaks_nothing() -> None:
    found, refusal = [], ""
    try:
        found = ours(adversarial_by_backward)
    except UsageError as error:
        refusal = str(error)
    if refusal:
        assert "backward()" in refusal
        assert "\n" not in refusal
        return
    for one, other in zip(found, plain(adversarial_by_backward), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def mixup(model: nn.Module, batch: Batch) -> torch.Tensor:
    x, y = batch
    other = torch.randperm(len(x))
    return 0.7 * each(model, (0.7 * x + 0.3 * x[other], y)) + 0.3 * each(model, (0.7 * x + 0.3 * x[other], y[other]))


def mixed(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> Batch:
    x, y = torch.utils.data.default_collate(samples)
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y


@pytest.mark.parametrize(("losses", "collate"), [(mixup, None), (each, mixed)])
def test_mixing_samples_is_refused_as_coupling(losses: Callable, collate: Callable | None) -> None:
    with cr.join(environment={}) as cluster, pytest.raises(UsageError, match="couples samples") as caught:
        cluster.train(mlp(), CLASSES, losses, BATCH, STEPS, collate_fn=collate)
    assert "\n" not in str(caught.value)
