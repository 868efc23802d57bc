"""A training: a model, data, losses, and how batches are drawn and computed. It is the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from codedreduce.errors import UsageError
from codedreduce.schemes.plan import Piece, Range
from codedreduce.torch.data.data_loader import what_to_give_instead
from codedreduce.torch.data.prefetch import BatchSource, Prefetch, loading
from codedreduce.torch.data.samples import Name, Order, Reading, collated
from codedreduce.torch.model.batch_norm import normalising
from codedreduce.torch.model.layout import on_device
from codedreduce.torch.model.loss_output import At, Form, Losses, LossOutput, read_loss_output, takes_step
from codedreduce.torch.training.rehearsal import Rehearsal, rehearse
from codedreduce.training.batches import Batches, Function
from codedreduce.training.samplers import Sampler

#: The value of `coupled`: samples may be coupled within a micro-batch.
MICRO_BATCH = "micro-batch"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model, its data, and how batches are drawn: the same on every rank."""

    model: torch.nn.Module
    dataset: Any
    losses: Losses
    batch_size: int
    steps: int = 0
    seed: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    micro_batch: int | None = None
    device: torch.device | None = None
    sampler: Sampler | Function | None = None
    drop_last: bool = True
    coupled: str | None = None
    first_round: int = 1
    epochs: int | None = None
    ahead: Prefetch = field(default_factory=Prefetch)  # how samples are loaded, which may differ between ranks

    def __post_init__(self) -> None:
        if isinstance(self.dataset, DataLoader):
            raise UsageError(f"the dataset is a DataLoader; {what_to_give_instead(self.dataset)}")
        if isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__"):
            raise UsageError(
                f"{type(self.dataset).__name__} can only be iterated: another process reads the samples of a late one, "
                "and a resumed run starts in the middle, so samples must be accessible by index. Give a dataset with "
                "__getitem__ and __len__: write the stream to files first (np.lib.format.open_memmap), or index what "
                "it reads (the files, and the positions in them)"
            )
        if not hasattr(self.dataset, "__len__"):
            raise UsageError(f"{type(self.dataset).__name__} has no length; give a dataset with __len__")
        self._settle_length()
        if not 1 <= self.first_round <= self.steps:
            raise UsageError(f"first_round={self.first_round}: the rounds are 1 to {self.steps}")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed}: use 0 or more")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UsageError(f"micro_batch={self.micro_batch}: a micro-batch has at least one sample")
        if self.coupled is not None:
            self._check_coupled()
        _ = self.batches, self.takes_step
        check_samples_are_apart(self.model, coupled=self.coupled is not None)

    def _settle_length(self) -> None:
        """Set the number of steps, from `epochs` if given."""
        if self.epochs is not None:
            if self.steps or self.epochs < 1:
                raise UsageError(f"steps={self.steps}, epochs={self.epochs}: set only one of them, to at least 1")
            object.__setattr__(self, "steps", self.batches.rounds(self.epochs))
        if self.steps < 1:
            raise UsageError(f"steps={self.steps}: at least one step is needed; set steps= or epochs=")

    @cached_property
    def batches(self) -> Batches:
        """The samples of each round."""
        return Batches(
            len(self.dataset), self.batch_size, self.seed, sampler=_of_ours(self.sampler), drop_last=self.drop_last
        )

    def _check_coupled(self) -> None:
        if self.coupled != MICRO_BATCH:
            raise UsageError(f'coupled={self.coupled!r}: use "{MICRO_BATCH}", or leave it out')
        if self.micro_batch is None:
            raise UsageError(f'coupled="{MICRO_BATCH}" needs micro_batch=, the number of samples that are coupled')
        if self.batch_size % self.micro_batch:
            raise UsageError(
                f"batch_size={self.batch_size} is not a multiple of micro_batch={self.micro_batch}: coupled "
                "micro-batches must be whole"
            )

    def after(self, kept: int) -> int:
        """The number of rounds that are over: by the checkpoint (`kept`) or by `first_round`, whichever is more."""
        return max(kept, self.first_round - 1)

    @property
    def planned(self) -> int:
        """The number of items that the plan divides: samples, or micro-batches (never cut) if they are coupled."""
        return self.batch_size // (self.micro_batch or 1) if self.coupled else self.batch_size

    def micro_batches(self, part: Range, round_: int, planned: int | None = None) -> Iterator[range]:
        """Yield the places in a round's batch that a part of the plan covers, at most a micro-batch at a time.

        A smaller batch uses the same plan: all bounds scale alike, so that parts still tile the batch, and each rank
        has less work. The same holds for a training that shares the plan of another; `planned` is that plan's count.
        """
        planned = planned or self.planned
        size, together = self.batches.size(round_), self.micro_batch or self.batch_size
        cut = together if self.coupled else 1
        start, stop = (cut * (bound * -(-size // cut) // planned) for bound in (part.start, part.stop))
        for first in range(start, min(stop, size), together):
            yield range(first, min(first + together, stop, size))

    @cached_property
    def takes_step(self) -> bool:
        """Whether `losses` takes the step as a third parameter."""
        return takes_step(self.losses)

    @cached_property
    def reading(self) -> Reading:
        """The reader of samples."""
        return Reading(self.dataset, self.collate_fn, self.seed, self.rehearsal.draws)

    def orders(self, part: Range, round_: int, planned: int | None = None) -> Iterator[Order]:
        """Yield the samples of a part of the plan, one micro-batch at a time."""
        for places in self.micro_batches(part, round_, planned):
            indices = self.batches.indices(round_, places.start, places.stop)
            yield Order(Name(round_, places), tuple(indices.tolist()))

    def loading(
        self, pieces: Sequence[Piece], after: int, planned: int | None = None
    ) -> AbstractContextManager[BatchSource]:
        """Return the source of batches; it loads these pieces ahead, in this order, for every round after `after`."""

        def orders(round_: int) -> list[Order]:
            return [order for piece in pieces for part in piece for order in self.orders(part, round_, planned)]

        return loading(self.reading, orders, range(after + 1, self.steps + 1), self.ahead)

    def evaluate_samples(self, samples: list[Any], round_: int = 1) -> LossOutput:
        """Compute the loss output for a round's samples that were read already."""
        return self.evaluate(collated(samples, self.collate_fn), len(samples), round_)

    def evaluate(self, batch: Any, samples: int, round_: int) -> LossOutput:
        """Move a batch of `samples` samples to the device and compute its loss output."""
        batch = on_device(batch, self.device)
        if self.takes_step:
            found = self.losses(self.model, batch, At(round_, self.batches.epoch(round_)))
        else:
            found = self.losses(self.model, batch)
        return read_loss_output(found, samples)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The findings of the rehearsal, which runs once and refuses what cannot work."""
        return rehearse(self)

    @property
    def form(self) -> Form:
        """The form of the loss output: which numbers come with the losses."""
        return self.rehearsal.form


def _of_ours(sampler: Any) -> Any:
    """Refuse torch's samplers, which can only be iterated, and name the replacement."""
    if isinstance(sampler, torch.utils.data.Sampler):
        kinds = {
            torch.utils.data.WeightedRandomSampler: "cr.Weighted(weights)",
            torch.utils.data.SequentialSampler: "cr.Sequential()",
        }
        instead = next((said for kind, said in kinds.items() if isinstance(sampler, kind)), None)
        if isinstance(sampler, torch.utils.data.RandomSampler):
            instead = "cr.WithReplacement()" if sampler.replacement else "cr.Shuffled()"
        raise UsageError(
            f"{type(sampler).__name__} can only be iterated, but every process must compute any round's samples by "
            f"itself; give sampler={instead or 'a function of (seed, round) that gives the samples of the batch'}"
        )
    return sampler


def check_samples_are_apart(model: torch.nn.Module, *, coupled: bool) -> None:
    """Refuse layers that make the loss of a sample depend on other samples, unless these are coupled on purpose."""
    for name, module in normalising(model):
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UsageError(
                f"{name or 'the model'} is SyncBatchNorm, which communicates with other processes by itself; use "
                f'BatchNorm with coupled="{MICRO_BATCH}", GroupNorm or LayerNorm'
            )
        if not coupled:
            raise UsageError(
                f"{name or 'the model'} is {type(module).__name__} in training mode: it couples the samples of a "
                f'batch. Set coupled="{MICRO_BATCH}" and micro_batch= to normalise over micro-batches of that size, as '
                "DDP does over each rank's; or use GroupNorm or LayerNorm, or call .eval() on it"
            )
