"""Which samples a round's batch has: a function of the seed and the round, the same on every node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Indices = npt.NDArray[np.intp]


class Batches:
    """The batches of a training, one a round.

    An epoch goes through the data in a new random order and leaves out what does not fill a batch, as a `DataLoader`
    with `shuffle=True, drop_last=True`. The order of the epoch that was last asked for is kept.

    >>> batches = Batches(10, 4)
    >>> batches.indices(1).tolist(), batches.indices(2).tolist()
    ([4, 6, 2, 7], [3, 5, 9, 0])
    """

    def __init__(self, samples: int, batch_size: int, seed: int = 0) -> None:
        if not 1 <= batch_size <= samples:
            raise UsageError(f"a batch has 1 to {samples} samples, as many as the dataset has; got {batch_size}")
        self._samples = samples
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.intp)

    def indices(self, round_: int) -> Indices:
        """The samples of a round's batch. Rounds are counted from 1."""
        if round_ < 1:
            raise UsageError(f"rounds are counted from 1, got {round_}")
        epoch, place = divmod(round_ - 1, self._samples // self._batch_size)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._samples).astype(np.intp)
            self._epoch = epoch
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]


def batch_indices(samples: int, batch_size: int, round_: int, seed: int = 0) -> Indices:
    """The samples of one round's batch, as `Batches` draws them.

    >>> batch_indices(10, 4, round_=2).tolist()
    [3, 5, 9, 0]
    """
    return Batches(samples, batch_size, seed).indices(round_)
