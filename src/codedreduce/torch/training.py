"""What is trained: a model, data, losses, and how batches are drawn and computed. The same on every node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from codedreduce.errors import UsageError
from codedreduce.schemes.work import Piece, Range
from codedreduce.torch.checks.rehearsal import Rehearsal, rehearse
from codedreduce.torch.data.data_loader import what_to_give_instead
from codedreduce.torch.data.prefetch import BatchSource, Prefetch, loading
from codedreduce.torch.data.samples import Name, Order, Reading, collated, read_sample
from codedreduce.torch.gradient.batch_norm import normalising
from codedreduce.torch.gradient.loss_output import At, Form, Losses, LossOutput, read_loss_output, takes_step
from codedreduce.torch.layout import on_device
from codedreduce.training.batches import Batches, Function
from codedreduce.training.permutation import Indices
from codedreduce.training.samplers import Sampler

#: What samples may be coupled within.
MICRO_BATCH = "micro-batch"


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, on what, and how its batches are drawn: the same on every node."""

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
    ahead: Prefetch = field(default_factory=Prefetch)  # how samples are loaded, which may differ between nodes

    def __post_init__(self) -> None:
        if isinstance(self.dataset, DataLoader):
            raise UsageError(f"the dataset is a DataLoader; {what_to_give_instead(self.dataset)}")
        if isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__"):
            raise UsageError(
                f"{type(self.dataset).__name__} can only be iterated: the samples of a late process are read by "
                "another, and a resumed run reads from the middle on, so any sample must be found by its number. Give "
                "a dataset with __getitem__ and __len__: write the stream to files first (as np.lib.format.open_memmap "
                "does), or number what it reads (the files, and the places in them)"
            )
        if not hasattr(self.dataset, "__len__"):
            raise UsageError(f"{type(self.dataset).__name__} has no length; a dataset with __len__ is needed")
        self._settle_length()
        if not 1 <= self.first_round <= self.steps:
            raise UsageError(f"rounds are 1 to {self.steps}; the first cannot be {self.first_round}")
        if self.seed < 0:
            raise UsageError(f"a seed cannot be negative, got {self.seed}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UsageError(f"a micro-batch has at least one sample, got {self.micro_batch}")
        if self.coupled is not None:
            self._check_coupled()
        _ = self.batches, self.takes_step
        check_samples_are_apart(self.model, coupled=self.coupled is not None)

    def _settle_length(self) -> None:
        """By epochs, or by steps."""
        if self.epochs is not None:
            if self.steps or self.epochs < 1:
                raise UsageError(f"say steps={self.steps}, or epochs={self.epochs}, and one at least; not both")
            object.__setattr__(self, "steps", self.batches.rounds(self.epochs))
        if self.steps < 1:
            raise UsageError(f"at least one step is needed, got {self.steps}: say steps= or epochs=")

    @cached_property
    def batches(self) -> Batches:
        """Which samples each round has."""
        return Batches(
            len(self.dataset), self.batch_size, self.seed, sampler=_of_ours(self.sampler), drop_last=self.drop_last
        )

    def _check_coupled(self) -> None:
        if self.coupled != MICRO_BATCH:
            raise UsageError(f'samples can be coupled="{MICRO_BATCH}", or not at all; not {self.coupled!r}')
        if self.micro_batch is None:
            raise UsageError(f'coupled="{MICRO_BATCH}" needs micro_batch=, the number of samples that are coupled')
        if self.batch_size % self.micro_batch:
            raise UsageError(
                f"a batch of {self.batch_size} does not consist of whole micro-batches of {self.micro_batch}, which "
                "are to be coupled"
            )

    def after(self, kept: int) -> int:
        """How many rounds have been: those of a checkpoint, if there is one, or what the script says."""
        return max(kept, self.first_round - 1)

    @property
    def planned(self) -> int:
        """What a plan is laid over: samples; if they are coupled, micro-batches, which are never cut."""
        return self.batch_size // (self.micro_batch or 1) if self.coupled else self.batch_size

    def micro_batches(self, part: Range, round_: int, planned: int | None = None) -> Iterator[range]:
        """The places in a round's batch that a part of the plan has, as many at a time as memory allows.

        A smaller batch is laid over the same plan: all bounds move alike, so that parts still tile it, and everyone has
        less to do. So is that of a training which shares the plan of another: `planned` is what it was laid over.
        """
        planned = planned or self.planned
        size, together = self.batches.size(round_), self.micro_batch or self.batch_size
        cut = together if self.coupled else 1
        start, stop = (cut * (bound * -(-size // cut) // planned) for bound in (part.start, part.stop))
        for first in range(start, min(stop, size), together):
            yield range(first, min(first + together, stop, size))

    def read_samples(self, indices: Sequence[int] | Indices) -> list[Any]:
        """Samples as the dataset has them."""
        return [read_sample(self.dataset, int(index)) for index in indices]

    @cached_property
    def takes_step(self) -> bool:
        """Whether losses are told the step."""
        return takes_step(self.losses)

    @cached_property
    def reading(self) -> Reading:
        """How samples are read."""
        return Reading(self.dataset, self.collate_fn, self.seed, self.rehearsal.draws)

    def orders(self, part: Range, round_: int, planned: int | None = None) -> Iterator[Order]:
        """The samples of a part of the plan, as many at a time as go through the model together."""
        for places in self.micro_batches(part, round_, planned):
            indices = self.batches.indices(round_, places.start, places.stop)
            yield Order(Name(round_, places), tuple(indices.tolist()))

    def loading(
        self, pieces: Sequence[Piece], after: int, planned: int | None = None
    ) -> AbstractContextManager[BatchSource]:
        """Where batches come from, of which these pieces are asked for in every round after that one, in this order."""

        def orders(round_: int) -> list[Order]:
            return [order for piece in pieces for part in piece for order in self.orders(part, round_, planned)]

        return loading(self.reading, orders, range(after + 1, self.steps + 1), self.ahead)

    def evaluate_samples(self, samples: list[Any], round_: int = 1) -> LossOutput:
        """The losses of samples that were read, in a round, and what comes beside them."""
        return self.evaluate(collated(samples, self.collate_fn), len(samples), round_)

    def evaluate(self, batch: Any, samples: int, round_: int) -> LossOutput:
        """The same of a batch of so many samples, which is moved to the device."""
        batch = on_device(batch, self.device)
        if self.takes_step:
            found = self.losses(self.model, batch, At(round_, self.batches.epoch(round_)))
        else:
            found = self.losses(self.model, batch)
        return read_loss_output(found, samples)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """What some samples show, tried once; what cannot work is refused."""
        return rehearse(self)

    @property
    def form(self) -> Form:
        """What comes beside the losses."""
        return self.rehearsal.form


def _of_ours(sampler: Any) -> Any:
    """Refuse torch's samplers, which can only be iterated, and say which of ours is meant."""
    if isinstance(sampler, torch.utils.data.Sampler):
        kinds = {
            torch.utils.data.WeightedRandomSampler: "cr.Weighted(weights)",
            torch.utils.data.SequentialSampler: "cr.Sequential()",
        }
        instead = next((said for kind, said in kinds.items() if isinstance(sampler, kind)), None)
        if isinstance(sampler, torch.utils.data.RandomSampler):
            instead = "cr.WithReplacement()" if sampler.replacement else "cr.Shuffled()"
        raise UsageError(
            f"{type(sampler).__name__} can only be iterated, and every process must know any round's samples by "
            f"itself; give sampler={instead or 'a function of (seed, round) that gives the samples of the batch'}"
        )
    return sampler


def check_samples_are_apart(model: torch.nn.Module, *, coupled: bool) -> None:
    """Refuse layers that make the loss of one sample depend on the others, unless they are coupled on purpose."""
    for name, module in normalising(model):
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UsageError(
                f"{name or 'the model'} is SyncBatchNorm, which talks to other processes by itself; use BatchNorm with "
                f'coupled="{MICRO_BATCH}", GroupNorm or LayerNorm'
            )
        if not coupled:
            raise UsageError(
                f"{name or 'the model'} is {type(module).__name__} in training mode: it couples the samples of a "
                f'batch. Say coupled="{MICRO_BATCH}" and micro_batch= to normalise over micro-batches of that size, as '
                "DDP does over each rank's; or use GroupNorm or LayerNorm, or call .eval() on it"
            )
