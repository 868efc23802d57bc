"""Samples are read, and made a batch of: in this process or in another, to the same bits.

Whatever a dataset draws follows from the seed, the round and the sample's place in the batch, and not from who reads
it, nor from what is read beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from codedreduce.errors import UsageError
from codedreduce.process.error_lines import place_in
from codedreduce.torch.seeding import ONE_SAMPLE, READING, seed_everything

Collate = Callable[[list[Any]], Any]


class Name(NamedTuple):
    """Which samples go through the model together: of which round, and at which places of its batch."""

    round: int
    places: range


class Order(NamedTuple):
    """Samples to be read: what they are called, and their numbers in the dataset."""

    name: Name
    indices: tuple[int, ...]

    @property
    def round(self) -> int:
        """Whose batch they are from."""
        return self.name.round

    @property
    def places(self) -> range:
        """Where they are in the batch."""
        return self.name.places


@dataclass(frozen=True)
class Reading:
    """Reads from a dataset. With `draws` its samples are seeded one by one: a part of what reading them costs."""

    dataset: Any
    collate_fn: Collate | None
    seed: int
    draws: bool

    def __call__(self, order: Order) -> Any:
        """The batch, on the CPU."""
        seed_everything(self.seed, order.round, order.places.start, READING)
        return self.collate(self._samples(order))

    def collate(self, samples: Sequence[Any]) -> Any:
        """A batch of samples that were read."""
        return collated(samples, self.collate_fn)

    def _samples(self, order: Order) -> list[Any]:
        found = []
        for place, index in zip(order.places, order.indices, strict=True):
            if self.draws:
                seed_everything(self.seed, order.round, place, ONE_SAMPLE)
            found.append(read_sample(self.dataset, index))
        return found


def read_sample(dataset: Any, index: int) -> Any:
    """A sample; an error of the dataset's names it, and where it was raised."""
    try:
        return dataset[index]
    except Exception as error:
        raise UsageError(f"sample {index} of {type(dataset).__name__} could not be read{_why(error)}") from error


def collated(samples: Sequence[Any], collate_fn: Collate | None) -> Any:
    """A batch of samples that were read."""
    try:
        return (collate_fn or default_collate)(list(samples))
    except Exception as error:
        instead = "" if collate_fn is not None else "; give collate_fn= to make a batch of samples like these"
        raise UsageError(f"{len(samples)} samples could not be made a batch{_why(error)}{instead}") from error


def _why(error: Exception) -> str:
    """Where in the script it was, and what, in one line."""
    where = place_in(error.__traceback__)
    return f"{f', at {where}' if where else ''}: {type(error).__name__}: {' '.join(str(error).split())}"
