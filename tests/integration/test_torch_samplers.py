"""PyTorch with samplers and batches of several sizes: every step is that of one process over the same samples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

import codedreduce.torch as cr
from codedreduce import CodedReduce, GradientCoding, MasterWorker, Scheme, Striped, Tree
from codedreduce.errors import UsageError

from .test_torch_striped import bits_of, digest
from .torch_model import Model, data, losses, run_forked

RANKS, BATCH, STEPS = 4, 60, 9  # of 200 samples: an epoch's last batch has 20

WEIGHTS = np.linspace(0, 1, 200)


def hard_ones(seed: int, round_: int) -> torch.Tensor:
    """Now and then fewer than a batch has, even fewer than there are ranks."""
    generator = torch.Generator().manual_seed(1000 * seed + round_)
    return torch.randint(0, 200, (3 if round_ == 2 else BATCH,), generator=generator)


CHOICES: dict[str, dict] = {
    "kept": {"drop_last": False},
    "sequential": {"sampler": cr.Sequential(), "drop_last": False},
    "replacement": {"sampler": cr.WithReplacement()},
    "weighted": {"sampler": cr.Weighted(WEIGHTS)},
    "function": {"sampler": hard_ones},
}


def plain_indices(choice: str, round_: int) -> np.ndarray:
    """The samples of a round, where that can be said without asking the samplers."""
    if choice == "sequential":
        first = (round_ - 1) % 4 * BATCH
        return np.arange(first, min(first + BATCH, 200))
    if choice == "function":
        return hard_ones(3, round_).numpy()
    return cr.batch_indices(200, BATCH, round_, seed=3, **CHOICES[choice])


def compared(folder: Path, choice: str, scheme: Scheme | None) -> Callable[[], None]:
    """Every step against plain PyTorch, where it is taken."""

    def script() -> None:
        model, plain = Model(torch.float64), Model(torch.float64)
        optimizer, other = (torch.optim.AdamW(one.parameters(), lr=0.05) for one in (model, plain))
        dataset = data(torch.float64)
        seen = 0
        with cr.join(scheme) as cluster:
            for step in cluster.train(model, dataset, losses, BATCH, STEPS, seed=3, **CHOICES[choice]):
                x, y = dataset[plain_indices(choice, step.round)]
                other.zero_grad()
                loss = F.cross_entropy(plain(x), y)
                loss.backward()
                assert abs(step.loss - loss.item()) <= 1e-10 * abs(loss.item())
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    if theirs.grad is None:
                        assert mine.grad is None
                    else:
                        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-13)
                optimizer.step()
                other.step()
                seen += 1
            (folder / f"{cluster.rank}").write_text(f"{digest(*model.parameters())} {seen}")

    return script


@pytest.mark.parametrize("choice", CHOICES)
def test_every_step_is_that_of_one_process(tmp_path: Path, choice: str) -> None:
    compared(tmp_path, choice, MasterWorker(3))()
    assert (tmp_path / "0").read_text().endswith(f" {STEPS}")
    outcome = run_forked(compared(tmp_path, choice, Striped(RANKS)), RANKS, {})
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert bits_of(tmp_path).endswith(f" {STEPS}")


@pytest.mark.parametrize("scheme", [CodedReduce(Tree.regular(fanout=2, depth=2)), GradientCoding(6, 2, code="cyclic")])
@pytest.mark.parametrize("choice", ["kept", "function"])
def test_over_a_tree(tmp_path: Path, choice: str, scheme: Scheme) -> None:
    outcome = run_forked(compared(tmp_path, choice, scheme), 7, {})
    assert outcome.codes == dict.fromkeys(range(7), 0), outcome.errors
    assert (tmp_path / "0").read_text().endswith(f" {STEPS}")


@pytest.mark.parametrize("choice", ["kept", "weighted"])
def test_the_same_bits_whoever_straggles(tmp_path: Path, choice: str) -> None:
    found = []
    for inject in ("", "stalls:0.3:0.15s"):
        variables = {"CODEDREDUCE_INJECT": inject} if inject else {}
        outcome = run_forked(compared(tmp_path, choice, Striped(RANKS)), RANKS, variables)
        assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
        found.append(bits_of(tmp_path))
    assert found[0] == found[1]


def resumed(folder: Path, **options: object) -> None:
    with cr.join() as cluster:
        for _ in cluster.train(Model(), data(), losses, BATCH, 2, seed=3, checkpoint=folder, every=1, **options):
            pass


def test_another_sampler_is_not_resumed(tmp_path: Path) -> None:
    resumed(tmp_path, sampler=cr.Weighted(WEIGHTS))
    resumed(tmp_path, sampler=cr.Weighted(WEIGHTS), resume=True)
    with pytest.raises(UsageError, match=r"sampler 'weighted, weights [0-9a-f]+', now 'shuffled'"):
        resumed(tmp_path, resume=True)
    with pytest.raises(UsageError, match=r"sampler 'weighted, weights [0-9a-f]+', now 'weighted, weights [0-9a-f]+'"):
        resumed(tmp_path, resume=True, sampler=cr.Weighted(WEIGHTS + 1))


def test_another_sampler_on_another_node_is_refused() -> None:
    def script() -> None:
        with cr.join(Striped(2)) as cluster:
            sampler = cr.Weighted(WEIGHTS + cluster.rank)
            for _ in cluster.train(Model(), data(), losses, BATCH, 2, sampler=sampler):
                pass

    outcome = run_forked(script, 2, {"CODEDREDUCE_ALL_WITHIN": "5"})
    assert outcome.errors[1].startswith("JoinRefused: rank 1 has")
    assert "weighted, weights" in outcome.errors[1]


@pytest.mark.parametrize(
    ("sampler", "instead"),
    [
        (WeightedRandomSampler([1.0] * 200, 200), r"cr.Weighted\(weights\)"),
        (RandomSampler(range(200)), r"cr.Shuffled\(\)"),
        (RandomSampler(range(200), replacement=True), r"cr.WithReplacement\(\)"),
        (SequentialSampler(range(200)), r"cr.Sequential\(\)"),
    ],
)
def test_samplers_of_torch_are_refused_by_name(sampler: object, instead: str) -> None:
    with cr.join() as cluster, pytest.raises(UsageError, match=f"can only be iterated.*give sampler={instead}"):
        cluster.train(Model(), data(), losses, BATCH, 2, sampler=sampler)
