"""Samplers: the sample at each place. They have no state, so that any process can compute it for any round.

Samplers that go through the data have epochs, and places within an epoch. Samplers that draw with replacement count
places over the whole training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from codedreduce.digests import digest
from codedreduce.errors import UsageError
from codedreduce.training.permutation import Indices, Permutation

_Words = npt.NDArray[np.uint64]

#: Makes these draws independent of draws for other purposes.
_DRAWS = 0x5A4D


class Sampler(ABC):
    """Computes the samples at given places from the seed."""

    #: True if it goes through the data in epochs, False if it draws without end.
    has_epochs: ClassVar[bool]

    @property
    def samples(self) -> int | None:
        """The number of samples that the data must have; None for any number."""
        return None

    @abstractmethod
    def pick(self, samples: int, seed: int, epoch: int, places: Indices) -> Indices:
        """The samples at these places of an epoch; without epochs, of the training."""

    @abstractmethod
    def __str__(self) -> str:
        """A text that is equal for equal samplers only."""


class Shuffled(Sampler):
    """All samples, in another random order in every epoch.

    >>> Shuffled().pick(5, 0, 0, np.arange(5)).tolist(), Shuffled().pick(5, 0, 1, np.arange(5)).tolist()
    ([4, 0, 1, 3, 2], [2, 4, 3, 0, 1])
    """

    has_epochs = True

    def pick(self, samples: int, seed: int, epoch: int, places: Indices) -> Indices:
        """By the permutation of that epoch."""
        return _permutation(samples, seed, epoch)(places)

    def __str__(self) -> str:
        return "shuffled"


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Permutation:
    return Permutation(samples, [seed, epoch])


class Sequential(Sampler):
    """All samples, in the order of their numbers."""

    has_epochs = True

    def pick(self, samples: int, seed: int, epoch: int, places: Indices) -> Indices:
        """The places themselves."""
        return places

    def __str__(self) -> str:
        return "sequential"


class WithReplacement(Sampler):
    """Every draw is any sample, with equal probability."""

    has_epochs = False

    def pick(self, samples: int, seed: int, epoch: int, places: Indices) -> Indices:
        """floor(u samples), u uniform in [0, 1) in steps of 2^-64."""
        return _upper_product(_words(seed, places), samples).astype(np.intp)

    def __str__(self) -> str:
        return "with replacement"


class Weighted(Sampler):
    """Every draw is sample i with probability weights_i / sum(weights), as in torch's `WeightedRandomSampler`.

    >>> Weighted([0, 1, 0, 1]).pick(4, 0, 0, np.arange(8)).tolist()
    [3, 1, 1, 1, 3, 3, 3, 3]
    """

    has_epochs = False

    def __init__(self, weights: Sequence[float] | npt.NDArray[Any] | Any) -> None:
        each = np.asarray(weights, dtype=np.float64)
        if each.ndim != 1 or not len(each):
            raise UsageError(f"weights must be one number for each sample; got the shape {each.shape}")
        wrong = ~(np.isfinite(each) & (each >= 0))
        if wrong.any():
            where = int(np.argmax(wrong))
            raise UsageError(f"weights must be finite and 0 or more; sample {where} has {each[where]}")
        if not each.any():
            raise UsageError("all weights are 0; at least one must be above 0")
        with np.errstate(over="ignore"):
            self._sums = np.cumsum(each)
        self._last = int(np.flatnonzero(each)[-1])
        if not np.isfinite(self._sums[-1]):
            raise UsageError("the sum of the weights is not finite; make them smaller")
        self._digest = digest(each)[:4].hex()

    @property
    def samples(self) -> int:
        """The number of weights."""
        return len(self._sums)

    def pick(self, samples: int, seed: int, epoch: int, places: Indices) -> Indices:
        """The first sample at which the cumulative sum of the weights exceeds u sum(weights)."""
        uniform = (_words(seed, places) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        found = np.searchsorted(self._sums, uniform * self._sums[-1], side="right")
        picked: Indices = np.minimum(found, self._last).astype(np.intp)
        return picked

    def __str__(self) -> str:
        return f"weighted, weights {self._digest}"


def _words(seed: int, places: Indices) -> _Words:
    """64 random bits for each of some consecutive places, by Philox (Salmon et al. 2011)."""
    first = int(places[0]) if len(places) else 0
    blocks, skipped = divmod(first, 4)  # of four words each
    key = np.random.SeedSequence([seed, _DRAWS]).generate_state(2, np.uint64)
    source = np.random.Philox(key=key)
    source.advance(blocks)
    words: _Words = source.random_raw(skipped + len(places))
    return words[skipped:]


def _upper_product(words: _Words, factor: int) -> _Words:
    """The upper 64 of the 128 bits of a product."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    upper, lower = words >> half, words & low
    factor_upper, factor_lower = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    middle = upper * factor_lower + ((lower * factor_lower) >> half)
    found: _Words = upper * factor_upper + (middle >> half) + ((lower * factor_upper + (middle & low)) >> half)
    return found
