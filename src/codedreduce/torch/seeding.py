"""Random generators of torch, NumPy and Python: seeded by what is computed, and given back as they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

#: Where random numbers begin that a script draws between two rounds: after all samples.
BETWEEN_ROUNDS = 2**32 - 1


#: Where there is nothing but the CPU `torch.manual_seed` still notes, with the whole stack, what a GPU would be seeded
#: with: 0.2 ms, where the generator itself takes a microsecond.
_has_devices = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
_seed_torch = torch.manual_seed if _has_devices else torch.default_generator.manual_seed


#: What generators are seeded for, if not for a pass: to read some samples, or a single one.
READING, ONE_SAMPLE = 1, 2


def seed_everything(seed: int, round_: int, first: int, *purpose: int) -> None:
    """Dropout, and whatever a dataset draws, depend on the seed, the round and the samples: not on who computes."""
    state = np.random.SeedSequence([seed, round_, first, *purpose]).generate_state(2)
    _seed_torch(int(state[0]))
    random.seed(int(state[1]))
    np.random.seed(int(state[1]))


def drawn_beside_torch() -> bytes:
    """Where the generators of NumPy and Python stand: the same until something is drawn from them."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return repr((np.asarray(keys).tobytes(), rest, random.getstate())).encode()


def drawn() -> bytes:
    """Where all generators of the CPU stand."""
    return drawn_beside_torch() + torch.get_rng_state().numpy().tobytes()


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """What is drawn in here is not missed by the script."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
