"""What a `DataLoader` says, for those who are given one: the data, and how batches are drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch.utils.data as of_torch
from torch.utils.data.distributed import DistributedSampler

from codedreduce.errors import UsageError
from codedreduce.training.batches import Batches, Function
from codedreduce.training.permutation import Indices
from codedreduce.training.samplers import Sampler, Sequential, Shuffled, Weighted, WithReplacement


@dataclass(frozen=True, kw_only=True)
class LoaderSource:
    """Data, and how batches are drawn from it. `each_epoch`: how many samples an epoch has."""

    dataset: Any
    batch_size: int
    sampler: Sampler | Function = field(default_factory=Shuffled)
    drop_last: bool = False
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    each_epoch: int

    @property
    def batches(self) -> int:
        """How many batches an epoch has."""
        whole, rest = divmod(self.each_epoch, self.batch_size)
        has_epochs = not isinstance(self.sampler, Sampler) or self.sampler.has_epochs
        return whole + (rest > 0 and has_epochs and not self.drop_last)

    def limited(self, batches: int, seed: int) -> LoaderSource:
        """The same with shorter epochs: each has the first batches of what it had."""
        if batches >= self.batches:
            return self
        return replace(self, sampler=first_of_each_epoch(self.drawn(seed), batches, self.batches))

    def drawn(self, seed: int) -> Batches:
        """Which samples each round has."""
        return Batches(len(self.dataset), self.batch_size, seed, sampler=self.sampler, drop_last=self.drop_last)


class Counted(NamedTuple):
    """A batch, and how many samples it is of, which cannot be seen of every batch."""

    samples: int
    batch: Any


@dataclass(frozen=True)
class Counting:
    """Collates as another does, and says how many samples there were."""

    collate_fn: Callable[[list[Any]], Any] | None

    def __call__(self, samples: list[Any]) -> Counted:
        """The batch and its size."""
        return Counted(len(samples), (self.collate_fn or of_torch.default_collate)(samples))


def first_of_each_epoch(drawn: Batches, first: int, of: int) -> Function:
    """A sampler: of epochs that have so many batches the first ones."""

    def first_batches(seed: int, round_: int) -> Indices:
        epoch, place = divmod(round_ - 1, first)
        return drawn.indices(epoch * of + place + 1)

    return first_batches


def read_loader(loader: Any, sampler: Sampler | Function | None = None) -> LoaderSource:
    """What a loader says; `sampler` is what the script wants instead of the loader's. What we cannot do is refused."""
    if not isinstance(loader, of_torch.DataLoader):
        raise UsageError(
            f"training data come from one torch.utils.data.DataLoader, and not from {type(loader).__name__}"
        )
    if isinstance(loader.dataset, of_torch.IterableDataset):
        raise UsageError(
            f"{type(loader.dataset).__name__} can only be iterated: the samples of a late process are read by another, "
            "so any sample must be found by its number. Give a dataset with __getitem__ and __len__"
        )
    batches = loader.batch_sampler
    if type(batches) is not of_torch.BatchSampler:
        raise UsageError(
            "which samples a batch has must be known of any round: a DataLoader with batch_size, not with a "
            "batch_sampler of its own or without batches; say sampler= to draw in an order of your own"
        )
    source = LoaderSource(
        dataset=loader.dataset, batch_size=batches.batch_size, drop_last=batches.drop_last,
        collate_fn=loader.collate_fn, num_workers=loader.num_workers, each_epoch=len(loader.dataset),  # type: ignore[arg-type]
    )  # fmt: skip
    return replace(source, sampler=sampler) if sampler is not None else _drawn_as(source, batches.sampler)


def what_to_give_instead(loader: of_torch.DataLoader[Any]) -> str:
    """The arguments of `train` that say what a loader says."""
    source = read_loader(loader)
    said = [f"batch_size={source.batch_size}", f"drop_last={source.drop_last}"]
    kind = type(source.sampler)
    if kind is not Shuffled:
        said.append(f"sampler=cr.{kind.__name__}({'weights' if kind is Weighted else ''})")
    if source.collate_fn not in (None, of_torch.default_collate):
        said.append("collate_fn=loader.collate_fn")
    if source.num_workers:
        said.append(f"num_workers={source.num_workers}")
    dataset = "loader.dataset"
    if source.dataset is not loader.dataset:
        dataset = "Subset(loader.dataset, loader.sampler.indices)"
    return f"give its data, and say of batches what it says: train(model, {dataset}, losses, {', '.join(said)}, ...)"


def _drawn_as(source: LoaderSource, sampler: Any) -> LoaderSource:
    """Draw as one of torch's samplers does, though in an order of our own."""
    if isinstance(sampler, DistributedSampler):
        return replace(source, sampler=Shuffled() if sampler.shuffle else Sequential())
    if isinstance(sampler, of_torch.SequentialSampler):
        return replace(source, sampler=Sequential())
    if isinstance(sampler, of_torch.SubsetRandomSampler):
        subset: Any = of_torch.Subset(source.dataset, list(sampler.indices))
        return replace(source, dataset=subset, each_epoch=len(subset))
    if isinstance(sampler, of_torch.WeightedRandomSampler) and sampler.replacement:
        return replace(source, sampler=Weighted(sampler.weights), each_epoch=sampler.num_samples)
    if isinstance(sampler, of_torch.RandomSampler):
        if sampler.replacement:
            return replace(source, sampler=WithReplacement(), each_epoch=sampler.num_samples)
        if sampler.num_samples == source.each_epoch:
            return source
    raise UsageError(
        f"{type(sampler).__name__} can only be iterated, and every process must know any round's samples by itself; "
        "say sampler=: Shuffled(), Sequential(), WithReplacement(), Weighted(weights) of codedreduce.torch, or a "
        "function of (seed, round) that gives the samples of the batch"
    )
