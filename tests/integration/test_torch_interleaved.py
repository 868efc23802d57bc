"""Several trainings in one run: a discriminator and a generator, each step exact, over one set of connections."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce.errors import UsageError
from codedreduce.node.node import Node

from .torch_model import run_forked

RANKS, BATCH = 3, 24


def run(script: Callable[[], None], ranks: int = RANKS, **variables) -> None:
    """All ranks must end well."""
    found = run_forked(script, ranks, {f"CODEDREDUCE_{key.upper()}": str(variables[key]) for key in variables})
    assert not found.errors, found.errors
    assert set(found.codes.values()) == {0}, found.codes


def data() -> TensorDataset:
    """Points, and the noise that a fake is made of in each one's place."""
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(*(torch.randn(120, size, generator=generator, dtype=torch.float64) for size in (4, 3)))


class Gan:
    """Both models and their optimizers. The discriminator has dropout-free layers; the generator is wider."""

    def __init__(self, *, norm: bool = False) -> None:
        torch.manual_seed(4)
        norms = [nn.BatchNorm1d(8)] if norm else []
        self.d = nn.Sequential(nn.Linear(4, 8), *norms, nn.Tanh(), nn.Linear(8, 1)).double()
        self.g = nn.Sequential(
            nn.Linear(3, 8), *(nn.BatchNorm1d(8) for _ in norms), nn.Tanh(), nn.Linear(8, 4)
        ).double()
        self.d_opt = torch.optim.Adam(self.d.parameters(), lr=0.02)
        self.g_opt = torch.optim.Adam(self.g.parameters(), lr=0.03)

    def d_losses(self, d: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        real, noise = batch
        of_real, of_fake = d(torch.cat([real, self.g(noise)])).squeeze(1).chunk(2)
        return F.softplus(-of_real) + F.softplus(of_fake)

    def g_losses(self, g: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return F.softplus(-self.d(g(batch[1]))).squeeze(1)

    def bits(self) -> str:
        tensors = [*self.d.state_dict().values(), *self.g.state_dict().values()]
        return hashlib.blake2b(b"".join(one.numpy().tobytes() for one in tensors), digest_size=8).hexdigest()


def check_step(
    step: cr.Step, model: nn.Module, plain: nn.Module, loss: Callable[..., torch.Tensor], batch: int
) -> None:
    """The gradient of a step is that of the whole batch in one process, with a model of its own."""
    samples = data()[cr.batch_indices(120, batch, step.round, seed=3)]
    parameters = list(plain.parameters())
    found = loss(plain, samples).mean()
    gradients = torch.autograd.grad(found, parameters)
    assert abs(step.loss - found.item()) <= 1e-12
    for mine, theirs in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(mine.grad, theirs, rtol=1e-10, atol=1e-14)
    for one, gradient in zip(parameters, gradients, strict=True):
        one.grad = gradient


def test_a_gan_in_stripes_is_that_of_one_process(tmp_path: Path) -> None:
    """Both are asked for before either steps, as zip does; one rank stalls, now and then for longer than rounds are."""

    def script() -> None:
        entered = 0
        enter = Node.__enter__

        def count(node: Node) -> Node:
            nonlocal entered
            entered += 1
            return enter(node)

        Node.__enter__ = count  # type: ignore[method-assign]
        gan, plain = Gan(), Gan()
        with cr.join() as cluster:
            d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 6, seed=3, state=[gan.d_opt])
            g_steps = cluster.train(gan.g, data(), gan.g_losses, BATCH, 6, seed=3, state=[gan.g_opt])
            seen = []
            for d, g in zip(d_steps, g_steps, strict=True):
                check_step(d, gan.d, plain.d, plain.d_losses, BATCH)
                check_step(g, gan.g, plain.g, plain.g_losses, BATCH)
                for one in (gan, plain):
                    one.d_opt.step()
                    one.g_opt.step()
                seen.append((d.round, g.round))
                torch.testing.assert_close(gan.d[0].weight, plain.d[0].weight, rtol=1e-9, atol=1e-12)
            assert seen == [(step, step) for step in range(1, 7)]
            assert entered == 1, "one set of connections"
            (tmp_path / f"{cluster.rank}").write_text(gan.bits())

    run(script, inject="stalls:0.2:0.1s")
    assert len({(tmp_path / f"{rank}").read_text() for rank in range(RANKS)}) == 1


def test_a_rank_that_fell_behind_finds_its_place_in_both(tmp_path: Path) -> None:
    """Its script asks for one, and the others are about to ask for the other: it takes states until they agree.

    The generator steps every second time, with other batches. Sums of up to 64 rounds are held for those behind.
    """

    def script() -> None:
        gan, seen = Gan(), []
        with cr.join() as cluster:
            is_slow = (tmp_path / "slow").exists()
            d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 180, seed=3, state=[gan.d_opt])
            g_steps = cluster.train(gan.g, data(), gan.g_losses, 2 * BATCH, 90, seed=8, state=[gan.g_opt])
            for d in d_steps:
                seen.append(d.round)
                gan.d_opt.step()
                if is_slow and cluster.rank == 2 and len(seen) in (4, 13):
                    while not (tmp_path / f"round {d.round + 60}").exists():
                        time.sleep(0.01)
                if is_slow and cluster.rank == 0:
                    (tmp_path / f"round {d.round}").touch()
                if d.round % 2 == 0:
                    if is_slow:
                        time.sleep(0.01)
                    next(g_steps)
                    gan.g_opt.step()
            (tmp_path / f"{cluster.rank}").write_text(gan.bits())
            (tmp_path / f"seen by {cluster.rank}").write_text(str(len(seen)))

    run(script)
    calm = {(tmp_path / f"{rank}").read_text() for rank in range(RANKS)}
    (tmp_path / "slow").touch()
    run(script)
    assert calm == {(tmp_path / f"{rank}").read_text() for rank in range(RANKS)}
    assert len(calm) == 1
    assert int((tmp_path / "seen by 2").read_text()) < 70, "it took the others' state, twice"


def test_alone_each_step_is_exact_and_the_other_is_left_alone() -> None:
    gan, plain = Gan(), Gan()
    with cr.join(environment={}) as cluster:
        d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 4, seed=3)
        g_steps = cluster.train(gan.g, data(), gan.g_losses, 2 * BATCH, 9, seed=3)
        for d in d_steps:
            check_step(d, gan.d, plain.d, plain.d_losses, BATCH)
            before = [one.grad.clone() for one in gan.d.parameters()]
            g = next(g_steps)
            assert all(torch.equal(one.grad, was) for one, was in zip(gan.d.parameters(), before, strict=True))
            check_step(g, gan.g, plain.g, plain.g_losses, 2 * BATCH)
            for one in (gan, plain):
                one.d_opt.step()
                one.g_opt.step()
        assert [g.round for g in g_steps] == [5, 6, 7, 8, 9], "one ends, and the other goes on"
        again = cluster.train(gan.d, data(), gan.d_losses, BATCH, 1)
        assert [step.round for step in again] == [1], "a run of its own, after both"


def plain_pass(
    model: nn.Module, other: nn.Module, losses: Callable[..., torch.Tensor], round_: int, micro: int
) -> None:
    """In one process: a gradient over micro-batches, and running statistics by the averages of what they had."""
    layers = [one for each in (model, other) for one in each.modules() if isinstance(one, nn.BatchNorm1d)]
    were = [(one.running_mean.clone(), one.running_var.clone()) for one in layers]
    averages = [[torch.zeros(8).double(), torch.zeros(8).double()] for _ in layers]
    indices = cr.batch_indices(120, BATCH, round_, seed=3)
    found = []
    for begin in range(0, BATCH, micro):
        for one in layers:
            one.momentum = 1.0  # it then has what the last pass saw
        total = losses(model, data()[indices[begin : begin + micro]]).sum()
        found.append(torch.autograd.grad(total, list(model.parameters())))
        for one, average in zip(layers, averages, strict=True):
            average[0] += one.running_mean * micro / BATCH
            average[1] += one.running_var * micro / BATCH
    for one, (mean, variance), average in zip(layers, were, averages, strict=True):
        one.running_mean.copy_(0.9 * mean + 0.1 * average[0])
        one.running_var.copy_(0.9 * variance + 0.1 * average[1])
    for one, parts in zip(model.parameters(), zip(*found, strict=True), strict=True):
        one.grad = sum(parts) / BATCH


def test_batch_normalisation_remembers_what_passes_through_either(tmp_path: Path) -> None:
    micro = 8

    def script() -> None:
        gan, plain = Gan(norm=True), Gan(norm=True)
        options = {"micro_batch": micro, "coupled": "micro-batch", "seed": 3}
        with cr.join() as cluster:
            d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 3, **options)
            g_steps = cluster.train(gan.g, data(), gan.g_losses, BATCH, 3, **options)
            for d in d_steps:
                gan.d_opt.step()
                next(g_steps)
                gan.g_opt.step()
                plain_pass(plain.d, plain.g, plain.d_losses, d.round, micro)
                plain.d_opt.step()
                plain_pass(plain.g, plain.d, plain.g_losses, d.round, micro)
                plain.g_opt.step()
            for mine, theirs in ((gan.d, plain.d), (gan.g, plain.g)):
                for name, found in mine.state_dict().items():
                    if "tracked" not in name:
                        torch.testing.assert_close(found, theirs.state_dict()[name], rtol=1e-9, atol=1e-12)
            (tmp_path / f"{cluster.rank}").write_text(gan.bits())

    run(script)
    assert len({(tmp_path / f"{rank}").read_text() for rank in range(RANKS)}) == 1


def test_ranks_that_ask_in_another_order_end_with_an_error(tmp_path: Path) -> None:
    """All do, unless they had done without what the odd one computed: no sum is mixed, and no step has any of it."""

    def script() -> None:
        gan, plain, said = Gan(), Gan(), "through"
        try:
            with cr.join() as cluster:
                d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 2, seed=3)
                g_steps = cluster.train(gan.g, data(), gan.g_losses, BATCH, 1, seed=3)
                check_step(next(d_steps), gan.d, plain.d, plain.d_losses, BATCH)
                if cluster.rank == 1:
                    next(g_steps)
                else:
                    check_step(next(d_steps), gan.d, plain.d, plain.d_losses, BATCH)
        except UsageError as error:
            said = str(error)
        (tmp_path / f"{cluster.rank}").write_text(said)

    found = run_forked(script, RANKS, {})
    said = [(tmp_path / f"{rank}").read_text() for rank in range(RANKS)]
    assert "round 2: the requests of the ranks differ: trainings 1 and 2" in said[1], found
    assert all("the requests of the ranks differ" in one or one == "through" for one in said), said


def test_over_a_tree_several_at_once_are_refused(tmp_path: Path) -> None:
    def both() -> None:
        gan = Gan()
        with cr.join() as cluster:
            d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 4)
            g_steps = cluster.train(gan.g, data(), gan.g_losses, BATCH, 4)
            for _ in zip(d_steps, g_steps, strict=True):
                (tmp_path / f"{cluster.rank} has begun").touch()

    def script() -> None:
        with pytest.raises(UsageError, match=r"over a tree one training runs at a time.*use stripes"):
            both()

    run(script, tree="2x1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_a_checkpoint_of_one_has_both_and_a_resumed_run_has_the_same_bits(tmp_path: Path, ranks: int) -> None:
    def script(stop: int = 0) -> None:
        gan = Gan()
        options = {"checkpoint": tmp_path / "kept", "every": 5, "resume": True, "state": [gan.d_opt]}
        with cr.join() as cluster:
            d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 12, seed=3, **options)
            g_steps = cluster.train(gan.g, data(), gan.g_losses, BATCH, 12, seed=4, state=[gan.g_opt])
            rounds = []
            for d, g in zip(d_steps, g_steps, strict=True):
                gan.d_opt.step()
                gan.g_opt.step()
                rounds.append((d.round, g.round))
                if d.round == stop:
                    break
            (tmp_path / f"{cluster.rank}").write_text(f"{gan.bits()} {rounds[0]}")

    def found(stop: int = 0) -> list[str]:
        if ranks == 1:
            script(stop)
        else:
            run(lambda: script(stop))
        return [(tmp_path / f"{rank}").read_text() for rank in range(ranks)]

    (whole,) = set(found())
    for file in (tmp_path / "kept").iterdir():
        file.unlink()
    found(stop=8)
    (resumed,) = set(found())
    assert resumed.split()[0] == whole.split()[0]
    assert resumed.endswith("(6, 6)"), "it went on after the last checkpoint"


def test_what_trainings_of_a_run_must_have_in_common() -> None:
    gan = Gan()

    def both() -> None:
        with cr.join(environment={}) as cluster:
            d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 4)
            g_steps = cluster.train(gan.g, data(), gan.g_losses, BATCH, 4, nonfinite="pass")
            next(d_steps)
            next(g_steps)

    with pytest.raises(UsageError, match=r"must have the same nonfinite="):
        both()


def test_one_may_be_made_while_another_is_under_way() -> None:
    gan = Gan()
    with cr.join(environment={}) as cluster:
        d_steps = cluster.train(gan.d, data(), gan.d_losses, BATCH, 4)
        next(d_steps)
        (step,) = cluster.train(gan.g, data(), gan.g_losses, BATCH, 1)
        assert (step.round, next(d_steps).round) == (1, 2)
