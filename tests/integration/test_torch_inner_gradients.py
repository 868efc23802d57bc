"""Losses that have backward passes of their own, or gradients in them: step by step against plain PyTorch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import codedreduce.torch as cr
from codedreduce import CodedReduce, Scheme, Striped, Tree
from codedreduce.errors import UsageError
from codedreduce.torch.training.training import Training

from .test_torch_striped import bits_of, digest
from .torch_model import BATCH, Model, data, losses, run_forked

Lossy = Callable[[nn.Module, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]


def fast_gradient_sign(model: nn.Module, batch) -> torch.Tensor:
    """FGSM: the gradient of the input, which parameters get, too."""
    x, y = batch
    x = x.clone().requires_grad_()
    losses(model, (x, y)).mean().backward()
    return losses(model, ((x + 0.1 * x.grad.sign()).detach(), y))


def projected_gradient(model: nn.Module, batch) -> torch.Tensor:
    """PGD, as Madry et al. have it."""
    x, y = batch
    moved = x + 0.01
    for _ in range(3):
        moved = moved.detach().requires_grad_()
        torch.autograd.backward([losses(model, (moved, y)).sum()])
        moved = x + (moved + 0.05 * moved.grad.sign() - x).clamp(-0.1, 0.1)
    return losses(model, (moved.detach(), y)) + losses(model, batch)


def inner_optimizer(model: nn.Module, batch) -> torch.Tensor:
    """An attack that an optimizer makes, of all samples at once."""
    x, y = batch
    moved = torch.zeros_like(x, requires_grad=True)
    attack = torch.optim.SGD([moved], lr=0.5)
    for _ in range(2):
        attack.zero_grad()
        (-losses(model, (x + moved, y)).sum()).backward()
        attack.step()
    return losses(model, (x + moved.detach(), y))


def with_a_graph(model: nn.Module, batch) -> torch.Tensor:
    """Double backward through `.grad`: R1, written as some do."""
    x, y = batch
    x = x.clone().requires_grad_()
    each = losses(model, (x, y))
    each.sum().backward(create_graph=True)
    return losses(model, batch) + x.grad.square().sum(1)


def gradient_penalty(model: nn.Module, batch) -> torch.Tensor:
    """WGAN-GP: a critic, whose gradient at the points between has the length 1."""
    x, _ = batch
    real, fake = x, x.roll(1, dims=1) * 0.5
    between = (0.3 * real + 0.7 * fake).requires_grad_()
    (slope,) = torch.autograd.grad(model(between)[:, 0].sum(), between, create_graph=True)
    return model(fake)[:, 0] - model(real)[:, 0] + 10 * (slope.norm(dim=1) - 1) ** 2


def physics_informed(model: nn.Module, batch) -> torch.Tensor:
    """A PINN: the second derivative is what an equation says."""
    x = batch[0].clone().requires_grad_()
    u = model(x)[:, 0]
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
    return (second[:, 0] + u) ** 2 + first[:, 1] ** 2


LOSSES: list[Lossy] = [
    fast_gradient_sign, projected_gradient, inner_optimizer, with_a_graph, gradient_penalty, physics_informed,
]  # fmt: skip


def compared(folder: Path, lossy: Lossy, scheme: Scheme | None, **options) -> Callable[[], None]:
    """Every step against plain PyTorch, which forgets what the inner passes left."""

    def script() -> None:
        model, plain = Model(torch.float64), Model(torch.float64)
        optimizer, other = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain))
        dataset, seen = data(torch.float64), 0
        with cr.join(scheme) as cluster:
            for step in cluster.train(model, dataset, lossy, BATCH, 4, seed=3, state=[optimizer], **options):
                each = lossy(plain, dataset[cr.batch_indices(200, BATCH, step.round, seed=3)])
                other.zero_grad()
                each.mean().backward()
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    assert (mine.grad is None) == (theirs.grad is None)
                    if theirs.grad is not None:
                        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-12)
                optimizer.step()
                other.step()
                seen += 1
            (folder / f"{cluster.rank}").write_text(f"{seen} {digest(*model.parameters())}")

    return script


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
@pytest.mark.parametrize("lossy", LOSSES)
@pytest.mark.parametrize("options", [{}, {"micro_batch": 5}])
def test_the_gradient_is_that_of_the_losses_alone(lossy: Lossy, options: dict, tmp_path: Path) -> None:
    """A process alone; with micro-batches gradients are added up while inner passes go on."""
    compared(tmp_path, lossy, None, **options)()
    assert (tmp_path / "0").read_text().startswith("4 ")


@pytest.mark.parametrize(("scheme", "ranks"), [(Striped(3), 3), (CodedReduce(Tree.regular(fanout=2, depth=1)), 3)])
@pytest.mark.parametrize("lossy", [fast_gradient_sign, gradient_penalty])
def test_ranks_come_to_the_same(lossy: Lossy, scheme: Scheme, ranks: int, tmp_path: Path) -> None:
    outcome = run_forked(compared(tmp_path, lossy, scheme, micro_batch=4), ranks)
    assert outcome.codes == dict.fromkeys(range(ranks), 0), outcome.errors
    if isinstance(scheme, Striped):
        bits_of(tmp_path, ranks)
    assert (tmp_path / "0").read_text().startswith("4 ")


def test_a_compiled_model_is_attacked(tmp_path: Path) -> None:
    model, plain = Model(torch.float64), Model(torch.float64)
    compiled = torch.compile(model, backend="eager")
    with cr.join() as cluster:
        step = next(iter(cluster.train(compiled, data(torch.float64), fast_gradient_sign, BATCH, 1, seed=3)))
        each = fast_gradient_sign(plain, data(torch.float64)[cr.batch_indices(200, BATCH, step.round, seed=3)])
        plain.zero_grad()
        each.mean().backward()
        torch.testing.assert_close(model.first.weight.grad, plain.first.weight.grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("lossy", [fast_gradient_sign, gradient_penalty])
def test_a_rehearsal_leaves_gradients_as_they_were(lossy: Lossy) -> None:
    """Those of the model, and those of another that losses go through."""
    model, teacher = Model(), Model()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    teacher.first.weight.grad = torch.ones_like(teacher.first.weight)

    def both(model: nn.Module, batch) -> torch.Tensor:
        losses(teacher, batch).sum().backward()
        return lossy(model, batch)

    rehearsal = Training(model=model, dataset=data(), losses=both, batch_size=BATCH, steps=1).rehearsal
    assert rehearsal.warnings == ()
    for one in (model, teacher):
        assert (one.first.weight.grad == 1).all()
        assert [name for name, each in one.named_parameters() if each.grad is not None] == ["first.weight"]


def test_a_rehearsal_keeps_no_graph() -> None:
    """Also if a buffer has come to depend on parameters."""
    model = Model()
    model.register_buffer("total", torch.ones(()))

    def adding(model: nn.Module, batch) -> torch.Tensor:
        each = losses(model, batch)
        model.total += each.mean()
        return each

    assert Training(model=model, dataset=data(), losses=adding, batch_size=BATCH, steps=1).rehearsal.warnings == ()
    assert model.total == 1
    assert model.total.grad_fn is None


def backward_of_the_result(model: nn.Module, batch) -> torch.Tensor:
    each = losses(model, batch)
    each.mean().backward()
    return each


def a_step_within(model: nn.Module, batch) -> torch.Tensor:
    losses(model, batch).mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return losses(model, batch)


@pytest.mark.parametrize(
    ("lossy", "message"),
    [
        (backward_of_the_result, r"^losses\(\) calls \.backward\(\) on the losses that it returns"),
        (a_step_within, r"^losses\(\) changed the parameter 'first.weight'"),
    ],
)
def test_what_cannot_be_kept_apart_is_refused(lossy: Lossy, message: str) -> None:
    with cr.join() as cluster, pytest.raises(UsageError, match=message) as error:
        cluster.train(Model(), data(), lossy, BATCH, 2)
    assert "\n" not in str(error.value)
