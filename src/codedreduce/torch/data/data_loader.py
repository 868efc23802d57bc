"""Reads the settings of a `DataLoader`: the data, and how batches are drawn from it."""

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
    """Data, and how batches are drawn from it. `each_epoch`: the number of samples of an epoch."""

    dataset: Any
    batch_size: int
    sampler: Sampler | Function = field(default_factory=Shuffled)
    drop_last: bool = False
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    each_epoch: int

    @property
    def batches(self) -> int:
        """The number of batches of an epoch."""
        whole, rest = divmod(self.each_epoch, self.batch_size)
        has_epochs = not isinstance(self.sampler, Sampler) or self.sampler.has_epochs
        return whole + (rest > 0 and has_epochs and not self.drop_last)

    def limited(self, batches: int, seed: int) -> LoaderSource:
        """Return the same source with shorter epochs, which have only the first `batches` batches."""
        if batches >= self.batches:
            return self
        drawn, of = self.drawn(seed), self.batches

        def first_batches(seed: int, round_: int) -> Indices:
            epoch, place = divmod(round_ - 1, batches)
            return drawn.indices(epoch * of + place + 1)

        return replace(self, sampler=first_batches)

    def drawn(self, seed: int) -> Batches:
        """Return the samples of each round."""
        return Batches(len(self.dataset), self.batch_size, seed, sampler=self.sampler, drop_last=self.drop_last)


class Counted(NamedTuple):
    """A batch with its number of samples, which not every batch shows."""

    samples: int
    batch: Any


@dataclass(frozen=True)
class Counting:
    """Wraps a collate function, and counts the samples."""

    collate_fn: Callable[[list[Any]], Any] | None

    def __call__(self, samples: list[Any]) -> Counted:
        """Return the batch and its size."""
        return Counted(len(samples), (self.collate_fn or of_torch.default_collate)(samples))


def read_loader(loader: Any, sampler: Sampler | Function | None = None) -> LoaderSource:
    """Read the settings of a loader, and refuse what is not supported; `sampler` replaces the loader's."""
    if not isinstance(loader, of_torch.DataLoader):
        raise UsageError(f"training data come from a {type(loader).__name__}: give one torch.utils.data.DataLoader")
    if isinstance(loader.dataset, of_torch.IterableDataset):
        raise UsageError(
            f"{type(loader.dataset).__name__} can only be iterated: another process reads the samples of a late one, "
            "so samples must be accessible by index. Give a dataset with __getitem__ and __len__"
        )
    batches = loader.batch_sampler
    if type(batches) is not of_torch.BatchSampler:
        raise UsageError(
            "the DataLoader has a batch_sampler of its own, or no batches, but the samples of any round must be known: "
            "give a DataLoader with batch_size=; to set your own order, use sampler="
        )
    source = LoaderSource(
        dataset=loader.dataset, batch_size=batches.batch_size, drop_last=batches.drop_last,
        collate_fn=loader.collate_fn, num_workers=loader.num_workers, each_epoch=len(loader.dataset),  # type: ignore[arg-type]
    )  # fmt: skip
    return replace(source, sampler=sampler) if sampler is not None else _drawn_as(source, batches.sampler)


def what_to_give_instead(loader: of_torch.DataLoader[Any]) -> str:
    """Return the arguments of `train` that correspond to a loader's settings, as text for an error."""
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
    return f"give its data and its settings instead: train(model, {dataset}, losses, {', '.join(said)}, ...)"


def _drawn_as(source: LoaderSource, sampler: Any) -> LoaderSource:
    """Draw with the same distribution as one of torch's samplers, but in another order."""
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
        f"{type(sampler).__name__} can only be iterated, but every process must compute any round's samples by itself; "
        "set sampler=: Shuffled(), Sequential(), WithReplacement(), Weighted(weights) of codedreduce.torch, or a "
        "function of (seed, round) that gives the samples of the batch"
    )
