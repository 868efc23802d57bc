"""Random generators of torch, NumPy and Python: seeded by what is computed, and restored afterwards."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

#: The "first sample" that seeds what a script draws between two rounds: larger than the index of any sample.
BETWEEN_ROUNDS = 2**32 - 1


#: Without devices, `torch.manual_seed` still records the seed for a GPU, together with the whole stack. That takes
#: 0.2 ms; the CPU generator itself takes a microsecond.
_has_devices = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
_seed_torch = torch.manual_seed if _has_devices else torch.default_generator.manual_seed


#: The purposes of a seed other than a pass: to read some samples, or a single one.
READING, ONE_SAMPLE = 1, 2


def seed_everything(seed: int, round_: int, first: int, *purpose: int) -> None:
    """Seed all generators: what dropout and datasets draw depends on seed, round and samples, not on the rank."""
    state = np.random.SeedSequence([seed, round_, first, *purpose]).generate_state(2)
    _seed_torch(int(state[0]))
    random.seed(int(state[1]))
    np.random.seed(int(state[1]))


def drawn_beside_torch() -> bytes:
    """Return the states of the generators of NumPy and Python, which change with every draw."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return repr((np.asarray(keys).tobytes(), rest, random.getstate())).encode()


def drawn() -> bytes:
    """Return the states of all generators of the CPU."""
    return drawn_beside_torch() + torch.get_rng_state().numpy().tobytes()


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore all random generators at the end, so that draws in here do not affect the script."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
