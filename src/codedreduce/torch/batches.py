"""Which samples a round's batch has: a function of the seed and the round, the same on every node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError

Indices = npt.NDArray[np.intp]


def batch_indices(samples: int, batch_size: int, round_: int, seed: int = 0) -> Indices:
    """The samples of a round's batch. Rounds are counted from 1.

    An epoch goes through the data in a new random order and leaves out what does not fill a batch, as a `DataLoader`
    with `shuffle=True, drop_last=True`.

    >>> batch_indices(10, 4, round_=1).tolist(), batch_indices(10, 4, round_=2).tolist()
    ([4, 6, 2, 7], [3, 5, 9, 0])
    """
    if not 1 <= batch_size <= samples:
        raise UsageError(f"a batch has 1 to {samples} samples, as many as the dataset has; got {batch_size}")
    if round_ < 1:
        raise UsageError(f"rounds are counted from 1, got {round_}")
    epoch, place = divmod(round_ - 1, samples // batch_size)
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return order[place * batch_size : (place + 1) * batch_size].astype(np.intp)
