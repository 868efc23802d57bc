"""The samples of a round's batch: a function of the seed and the round, the same on every node."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from codedreduce.digests import digest
from codedreduce.errors import UsageError
from codedreduce.training.permutation import MOST, Indices
from codedreduce.training.samplers import Sampler, Shuffled

#: A user's sampler: (seed, round) -> the samples of that round's batch.
Function = Callable[[int, int], Any]

#: The number of places in one call of a sampler, and of calls that are cached. A call for a few places costs nearly as
#: little as a call for one.
TOGETHER, KEPT = 256, 256

#: The number of rounds with which a function is tested before the first round.
TRIED = 4


class _Batch(NamedTuple):
    epoch: int
    first: int  # its first place in the epoch; without epochs, in the training
    size: int


class Batches:
    """The batches of a training, one per round. The cost depends on the requested samples, not on the size of the data.

    By default an epoch goes through the data in a new random order and drops an incomplete last batch, as a
    `DataLoader` with `shuffle=True, drop_last=True`. With `drop_last=False` the last batch is smaller. `sampler`:
    another `Sampler`, or a function of the seed and the round that returns the samples of the round's batch, at most
    `batch_size`.

    >>> batches = Batches(10, 4)
    >>> batches.indices(1).tolist(), batches.indices(2).tolist()
    ([2, 5, 3, 6], [0, 4, 8, 9])
    >>> kept = Batches(10, 4, drop_last=False)
    >>> [kept.size(round_) for round_ in (1, 2, 3, 4)], kept.epoch(3), kept.epoch(4)
    ([4, 4, 2, 4], 1, 2)
    >>> kept.rounds(epochs=2), kept.ends_epoch(2), kept.ends_epoch(3)
    (6, False, True)
    """

    def __init__(
        self, samples: int, batch_size: int, seed: int = 0, *, sampler: Sampler | Function | None = None,
        drop_last: bool = True,
    ) -> None:  # fmt: skip
        if not 1 <= samples <= MOST:
            raise UsageError(f"a dataset must have 1 to 2^62 samples, got {samples}")
        self._samples = samples
        self._batch_size = batch_size
        self._seed = seed
        self._drop_last = drop_last
        drawn = _checked(sampler, samples)
        self._sampler = drawn if isinstance(drawn, Sampler) else None
        self._function = None if isinstance(drawn, Sampler) else drawn
        self._has_epochs = self._sampler is not None and self._sampler.has_epochs
        if batch_size < 1 or (self._has_epochs and drop_last and batch_size > samples):
            raise UsageError(f"a batch has 1 to {samples} samples, as many as the dataset has; got {batch_size}")
        self._chunk = lru_cache(KEPT)(self._pick)
        self._given = lru_cache(2)(self._ask)
        self._tried = self._try() if self._function is not None else ""

    def __str__(self) -> str:
        """A text that describes how batches are drawn; it differs if they are drawn differently."""
        if self._function is not None:
            return f"by {_name(self._function)}, digest {self._tried}"
        return f"{self._sampler}{', the last batch kept' if self._has_epochs and not self._drop_last else ''}"

    def size(self, round_: int) -> int:
        """The number of samples in a round's batch. Rounds are counted from 1."""
        return self._at(round_).size

    def epoch(self, round_: int) -> int:
        """The epoch of a round, counted from 1; for draws with replacement, the epoch of the round's first draw."""
        if round_ < 1:
            raise UsageError(f"rounds are counted from 1, got {round_}")
        return 1 + (
            (round_ - 1) // self._of_epoch if self._has_epochs else (round_ - 1) * self._batch_size // self._samples
        )

    def ends_epoch(self, round_: int) -> bool:
        """Whether the next round is in another epoch."""
        return self.epoch(round_ + 1) > self.epoch(round_)

    def rounds(self, epochs: int) -> int:
        """The number of rounds in this number of epochs."""
        return epochs * self._of_epoch if self._has_epochs else -(-epochs * self._samples // self._batch_size)

    def indices(self, round_: int, start: int = 0, stop: int | None = None) -> Indices:
        """The samples of a round's batch, or of its places start..stop-1."""
        at = self._at(round_)
        stop = at.size if stop is None else min(stop, at.size)
        if self._function is not None:
            return self._given(round_)[start:stop]
        first, end = at.first + start, at.first + stop
        if first >= end:
            return np.empty(0, dtype=np.intp)
        chunks = range(first // TOGETHER, -(-end // TOGETHER))
        found = np.concatenate([self._chunk(at.epoch, chunk) for chunk in chunks])
        offset = chunks[0] * TOGETHER
        return found[first - offset : end - offset]

    @property
    def _of_epoch(self) -> int:
        """Batches in an epoch, where there are epochs."""
        return self._samples // self._batch_size if self._drop_last else -(-self._samples // self._batch_size)

    def _at(self, round_: int) -> _Batch:
        if round_ < 1:
            raise UsageError(f"rounds are counted from 1, got {round_}")
        if not self._has_epochs:
            size = self._batch_size if self._function is None else len(self._given(round_))
            return _Batch(0, (round_ - 1) * self._batch_size, size)
        epoch, batch = divmod(round_ - 1, self._of_epoch)
        first = batch * self._batch_size
        return _Batch(epoch, first, min(self._batch_size, self._samples - first))

    def _pick(self, epoch: int, chunk: int) -> Indices:
        """The samples at consecutive places, up to the end of an epoch."""
        assert self._sampler is not None
        first, end = chunk * TOGETHER, (chunk + 1) * TOGETHER
        if self._has_epochs:
            end = min(end, self._samples)
        return self._sampler.pick(self._samples, self._seed, epoch, np.arange(first, end, dtype=np.intp))

    # -- a user's function

    def _ask(self, round_: int) -> Indices:
        assert self._function is not None
        name = _name(self._function)
        found = np.asarray(self._function(self._seed, round_))
        if found.ndim != 1 or found.dtype.kind not in "iu" or not 1 <= len(found) <= self._batch_size:
            raise UsageError(
                f"sampler={name} must return the numbers of 1 to {self._batch_size} samples (batch_size); for round "
                f"{round_} it returned the shape {found.shape} of {found.dtype}"
            )
        if found.min() < 0 or found.max() >= self._samples:
            raise UsageError(
                f"sampler={name} returned sample {found.min() if found.min() < 0 else found.max()} for round {round_}; "
                f"samples are 0 to {self._samples - 1}"
            )
        return found.astype(np.intp)

    def _try(self) -> str:
        """A digest of the function's first rounds; raise `UsageError` if it does not return the same samples again."""
        rounds = range(1, TRIED + 1)
        found, again = ([self._ask(round_) for round_ in order] for order in (rounds, reversed(rounds)))
        for round_, one, other in zip(rounds, found, reversed(again), strict=True):
            if not np.array_equal(one, other):
                raise UsageError(
                    f"sampler={_name(self._function)} returned other samples for round {round_} in a second call; "
                    "every process calls it, so the samples must depend on the seed and the round only: draw them from "
                    "np.random.default_rng([seed, round])"
                )
        return digest(np.concatenate(found)).hex()[:8]


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _checked(sampler: Any, samples: int) -> Sampler | Function:
    if sampler is None:
        return Shuffled()
    if isinstance(sampler, Sampler):
        if sampler.samples not in (None, samples):
            raise UsageError(f"there are {sampler.samples} weights for {samples} samples; give one for each")
        return sampler
    if isinstance(sampler, type) and issubclass(sampler, Sampler):
        raise UsageError(f"sampler={sampler.__name__} is a class; write {sampler.__name__}(...)")
    if not callable(sampler) or hasattr(sampler, "__iter__"):
        raise UsageError(
            f"sampler={type(sampler).__name__} cannot compute the samples of any round, as every process must; give "
            "Shuffled(), Sequential(), WithReplacement(), Weighted(weights), or a function of (seed, round)"
        )
    return sampler  # type: ignore[no-any-return]


def batch_indices(
    samples: int, batch_size: int, round_: int, seed: int = 0, *, sampler: Sampler | Function | None = None,
    drop_last: bool = True,
) -> Indices:  # fmt: skip
    """The samples of one round's batch, as `Batches` draws them.

    >>> batch_indices(10, 4, round_=2).tolist()
    [0, 4, 8, 9]
    """
    return Batches(samples, batch_size, seed, sampler=sampler, drop_last=drop_last).indices(round_)
