"""Reads samples and collates them into a batch: bit-identical in this process and in others.

The random draws of a dataset depend on the seed, the round and the sample's place in the batch. They do not depend on
the process that reads the sample, or on other samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from codedreduce.errors import UsageError
from codedreduce.process.error_lines import place_in
from codedreduce.torch.model.seeding import ONE_SAMPLE, READING, seed_everything

Collate = Callable[[list[Any]], Any]


class Name(NamedTuple):
    """Identifies samples that go through the model together, by their round and their places in its batch."""

    round: int
    places: range


class Order(NamedTuple):
    """Samples to be read: their name, and their indices in the dataset."""

    name: Name
    indices: tuple[int, ...]

    @property
    def round(self) -> int:
        """The round of their batch."""
        return self.name.round

    @property
    def places(self) -> range:
        """Their places in the batch."""
        return self.name.places


@dataclass(frozen=True)
class Reading:
    """Reads from a dataset. With `draws` it seeds the generators for each sample, which takes some time."""

    dataset: Any
    collate_fn: Collate | None
    seed: int
    draws: bool

    def __call__(self, order: Order) -> Any:
        """Return the batch, on the CPU."""
        seed_everything(self.seed, order.round, order.places.start, READING)
        samples = []
        for place, index in zip(order.places, order.indices, strict=True):
            if self.draws:
                seed_everything(self.seed, order.round, place, ONE_SAMPLE)
            samples.append(read_sample(self.dataset, index))
        return collated(samples, self.collate_fn)


def read_sample(dataset: Any, index: int) -> Any:
    """Read a sample; an error names the sample, and where the dataset raised it."""
    try:
        return dataset[index]
    except Exception as error:
        raise UsageError(f"sample {index} of {type(dataset).__name__} could not be read{_why(error)}") from error


def collated(samples: Sequence[Any], collate_fn: Collate | None) -> Any:
    """Collate samples into a batch."""
    try:
        return (collate_fn or default_collate)(list(samples))
    except Exception as error:
        instead = "" if collate_fn is not None else "; give collate_fn= to collate samples like these"
        raise UsageError(f"{len(samples)} samples could not be collated into a batch{_why(error)}{instead}") from error


def _why(error: Exception) -> str:
    """Describe an error in one line, with its place in the script."""
    where = place_in(error.__traceback__)
    return f"{f', at {where}' if where else ''}: {type(error).__name__}: {' '.join(str(error).split())}"
