"""Batch normalisation over fixed micro-batches: steps and running statistics against plain PyTorch."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce import CodedReduce, GradientCoding, MasterWorker, Scheme, Striped, Tree
from codedreduce.errors import UsageError

from .test_torch_striped import bits_of, digest
from .torch_model import run_forked

BATCH, MICRO, STEPS, SAMPLES = 48, 6, 5, 200


class Residual(nn.Module):
    """A ResNet in small: a stem, a block with a way around it, a layer that is frozen, and one without memory."""

    def __init__(self, dtype: torch.dtype = torch.float64, momentum: float | None = 0.1, *, recomputed: bool = False):
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, momentum=momentum))
        self.block = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, momentum=momentum), nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, momentum=momentum),
        )  # fmt: skip
        self.frozen = nn.BatchNorm2d(6)
        self.frozen.running_mean += 0.1
        self.untracked = nn.BatchNorm1d(6, track_running_stats=False)
        self.head = nn.Linear(6, 4)
        self.recomputed = recomputed
        self.to(dtype)
        self.train()

    def train(self, mode: bool = True) -> "Residual":
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + (checkpoint(self.block, x, use_reentrant=False) if self.recomputed else self.block(x)))
        return self.head(self.untracked(self.frozen(x).mean((2, 3))))


def pictures(dtype: torch.dtype = torch.float64) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 4, (SAMPLES,), generator=generator)
    x = torch.randn(SAMPLES, 1, 6, 6, generator=generator) + labels.view(-1, 1, 1, 1) * torch.linspace(-1, 1, 6)
    return TensorDataset(x.to(dtype), labels)


def losses(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


class Plain:
    """A script without codedreduce: micro-batches one after the other, their statistics worked out from inputs."""

    def __init__(self, micro: int, **options) -> None:
        self.model = Residual(**options)
        self.micro = micro
        self.seen: dict[nn.Module, list[tuple[int, torch.Tensor, torch.Tensor]]] = {}
        self.tracked = [
            one for one in self.model.modules()
            if isinstance(one, nn.modules.batchnorm._BatchNorm) and one.training and one.running_mean is not None
        ]  # fmt: skip
        self.running = {one: (one.running_mean.clone(), one.running_var.clone()) for one in self.tracked}
        for one in self.tracked:
            one.register_forward_pre_hook(self._notice)

    def _notice(self, layer: nn.Module, given: tuple[torch.Tensor]) -> None:
        x = given[0].detach().transpose(0, 1).flatten(1)
        self.seen.setdefault(layer, []).append((len(given[0]), x.mean(1), x.var(1, unbiased=True)))

    def step(self, x: torch.Tensor, y: torch.Tensor, momentum: float) -> float:
        self.model.zero_grad()
        self.seen = {}
        total = 0.0
        for first in range(0, len(x), self.micro):
            each = losses(self.model, (x[first : first + self.micro], y[first : first + self.micro]))
            (each.sum() / len(x)).backward()
            total += each.sum().item()
        for layer in self.tracked:
            mean = sum(count * one for count, one, _ in self.seen[layer]) / len(x)
            variance = sum(count * one for count, _, one in self.seen[layer]) / len(x)
            was = self.running[layer]
            self.running[layer] = tuple(
                (1 - momentum) * one + momentum * now for one, now in zip(was, (mean, variance), strict=True)
            )
        return total / len(x)


def compared(folder: Path, scheme: Scheme, micro: int = MICRO, momentum: float | None = 0.1) -> Callable[[], None]:
    """Every step, where it is taken: loss, gradient, and what layers remember."""

    def script() -> None:
        model, plain = Residual(momentum=momentum), Plain(micro, momentum=momentum)
        optimizer, other = (torch.optim.AdamW(one.parameters(), lr=0.02) for one in (model, plain.model))
        dataset, seen = pictures(), 0
        with cr.join(scheme) as cluster:
            for step in cluster.train(
                model, dataset, losses, BATCH, STEPS, seed=3, micro_batch=micro, coupled="micro-batch", drop_last=False,
                state=[optimizer],
            ):  # fmt: skip
                chosen = cr.batch_indices(SAMPLES, BATCH, step.round, seed=3, drop_last=False)
                loss = plain.step(*dataset[chosen], momentum=1 / step.round if momentum is None else momentum)
                assert math.isclose(step.loss, loss, rel_tol=1e-9)
                for mine, theirs in zip(model.parameters(), plain.model.parameters(), strict=True):
                    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-7, atol=1e-11)
                names = dict(zip(plain.model.modules(), model.modules(), strict=True))
                for layer, (mean, variance) in plain.running.items():
                    torch.testing.assert_close(names[layer].running_mean, mean, rtol=1e-9, atol=1e-11)
                    torch.testing.assert_close(names[layer].running_var, variance, rtol=1e-9, atol=1e-11)
                    assert names[layer].num_batches_tracked == step.round
                assert torch.equal(
                    model.frozen.running_mean, torch.full((6,), 0.1, dtype=torch.float64).float().double()
                )
                optimizer.step()
                other.step()
                seen += 1
            model.eval()
            with torch.no_grad():
                answers = model(pictures()[:][0])
            (folder / f"{cluster.rank}").write_text(
                f"{seen} {digest(*model.parameters())} {digest(*model.buffers())} {digest(answers)}"
            )

    return script


SCHEMES = [
    (MasterWorker(1), 0),
    (Striped(4), 4),
    (CodedReduce(Tree.regular(fanout=2, depth=2)), 7),
    (GradientCoding(6, 2, code="cyclic"), 7),
]


@pytest.mark.parametrize(("scheme", "processes"), SCHEMES, ids=str)
def test_every_step_is_that_of_one_process(tmp_path: Path, scheme: Scheme, processes: int) -> None:
    """The last batch of an epoch has 8 samples: a whole micro-batch, and one of two."""
    if processes:
        outcome = run_forked(compared(tmp_path, scheme), processes, {})
        assert outcome.codes == dict.fromkeys(range(processes), 0), outcome.errors
    else:
        compared(tmp_path, scheme)()
    assert (tmp_path / "0").read_text().startswith(f"{STEPS} ")


@pytest.mark.parametrize("momentum", [0.3, 1.0, None])
def test_any_momentum(tmp_path: Path, momentum: float | None) -> None:
    compared(tmp_path, Striped(2), momentum=momentum)()


@pytest.mark.parametrize(("scheme", "processes"), SCHEMES[1:3], ids=str)
def test_the_same_bits_whoever_straggles(tmp_path: Path, scheme: Scheme, processes: int) -> None:
    """Parameters, running statistics, and what the model answers when it is evaluated."""
    found = []
    for inject in ("", "stalls:0.3:0.15s"):
        variables = {"CODEDREDUCE_INJECT": inject} if inject else {}
        outcome = run_forked(compared(tmp_path, scheme), processes, variables)
        assert outcome.codes == dict.fromkeys(range(processes), 0), outcome.errors
        found.append(bits_of(tmp_path, processes) if isinstance(scheme, Striped) else (tmp_path / "0").read_text())
    compared(tmp_path, scheme)()
    assert {(tmp_path / "0").read_text(), *found} == {found[0]}, "also alone, by the plan of the run"


def trained(model: nn.Module, steps: int = 6, micro: int = BATCH, **options) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    with cr.join(MasterWorker(1), environment={}) as cluster:
        for step in cluster.train(
            model, pictures(torch.float32), losses, BATCH, steps, seed=3, micro_batch=micro, coupled="micro-batch",
            state=[optimizer], **options,
        ):  # fmt: skip
            optimizer.step()
            found.append(step.loss)
    return found


def test_one_micro_batch_is_an_ordinary_script() -> None:
    """Nothing but torch on the other side: its own running statistics, too; in float32."""
    model, plain = Residual(torch.float32), Residual(torch.float32)
    found = trained(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for round_, loss in enumerate(found, 1):
        x, y = pictures(torch.float32)[cr.batch_indices(SAMPLES, BATCH, round_, seed=3)]
        optimizer.zero_grad()
        mean = F.cross_entropy(plain(x), y)
        mean.backward()
        optimizer.step()
        assert math.isclose(loss, mean.item(), rel_tol=1e-4)
    for mine, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    model.eval(), plain.eval()
    x, y = pictures(torch.float32)[:]
    with torch.no_grad():
        assert (model(x).argmax(1) == y).sum() == (plain(x).argmax(1) == y).sum(), "evaluated alike"


def test_recomputed_activations_are_not_counted_twice() -> None:
    plain, recomputed = Residual(torch.float32), Residual(torch.float32, recomputed=True)
    assert trained(plain, micro=12) == trained(recomputed, micro=12)
    for mine, theirs in zip(recomputed.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_layer_that_is_set_to_evaluation_later_remembers_no_more() -> None:
    model = Residual(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cr.join(Striped(2), environment={}) as cluster:
        for step in cluster.train(
            model, pictures(torch.float32), losses, BATCH, 5, micro_batch=12, coupled="micro-batch"
        ):
            optimizer.step()
            if step.round == 2:
                for layer in (model.stem, model.block):
                    layer.eval()
                kept = [one.clone() for one in model.buffers()]
    for mine, theirs in zip(model.buffers(), kept, strict=True):
        assert torch.equal(mine, theirs)
    assert model.stem[1].num_batches_tracked == 2


def test_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, first, second = (Residual(torch.float32) for _ in range(3))
    trained(whole, steps=6, micro=12)
    trained(first, steps=3, micro=12, checkpoint=tmp_path, every=1)
    trained(second, steps=6, micro=12, checkpoint=tmp_path, every=1, resume=True)
    for mine, theirs in zip(second.state_dict().values(), whole.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_cannot_be_normalised_is_refused() -> None:
    def begin(model: nn.Module, **options) -> None:
        with cr.join(environment={}) as cluster:
            cluster.train(model, pictures(torch.float32), losses, BATCH, 2, **options)

    with pytest.raises(UsageError, match=r'stem\.1 is BatchNorm2d in training mode.*Set coupled="micro-batch"'):
        begin(Residual(torch.float32))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Residual(torch.float32))
    with pytest.raises(UsageError, match="is SyncBatchNorm, which communicates with other processes by itself"):
        begin(model, micro_batch=6, coupled="micro-batch")
