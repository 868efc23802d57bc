"""A unit of work: one forward and one backward pass over some samples, or several over micro-batches of them."""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate

from codedreduce.errors import UsageError
from codedreduce.schemes.work import Piece
from codedreduce.torch.layout import Layout, on_device
from codedreduce.training.batches import Batches, Indices

Losses = Callable[[torch.nn.Module, Any], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, on what, and how its batches are drawn: the same on every node."""

    model: torch.nn.Module
    dataset: Any
    losses: Losses
    batch_size: int
    steps: int
    seed: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    micro_batch: int | None = None
    device: torch.device | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__"):
            raise UsageError(
                f"{type(self.dataset).__name__} can only be iterated; every worker must be able to read any sample by "
                "its index, so a dataset with __getitem__ and __len__ is needed"
            )
        if not hasattr(self.dataset, "__len__"):
            raise UsageError(f"{type(self.dataset).__name__} has no length; a dataset with __len__ is needed")
        if self.steps < 1:
            raise UsageError(f"at least one step is needed, got {self.steps}")
        if self.seed < 0:
            raise UsageError(f"a seed cannot be negative, got {self.seed}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UsageError(f"a micro-batch has at least one sample, got {self.micro_batch}")
        Batches(len(self.dataset), self.batch_size)
        check_samples_are_apart(self.model)

    def batch(self, indices: Sequence[int] | Indices) -> Any:
        """Samples, collated and on the device."""
        samples = [self.dataset[int(index)] for index in indices]
        return on_device((self.collate_fn or default_collate)(samples), self.device)

    def evaluate(self, indices: Sequence[int] | Indices) -> torch.Tensor:
        """The losses of some samples, one for each."""
        found = self.losses(self.model, self.batch(indices))
        if not isinstance(found, torch.Tensor) or found.shape != (len(indices),):
            shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise UsageError(
                f"losses() must give one loss per sample: for {len(indices)} samples a tensor of shape "
                f"({len(indices)},); it gave {shape}. Is there a reduction='none' missing?"
            )
        return found

    def rehearse(self) -> None:
        """Evaluate two samples, so that what cannot work is found before anything has begun, and leave no trace."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self.evaluate([0, min(1, len(self.dataset) - 1)])


def check_samples_are_apart(model: torch.nn.Module) -> None:
    """Refuse what makes the loss of one sample depend on the others."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            raise UsageError(
                f"{name or 'the model'} is {type(module).__name__} in training mode: it couples the samples of a "
                "batch, so their gradients cannot be computed apart. Use GroupNorm or LayerNorm, or call .eval() on it"
            )


class UnitGradient:
    """Computes pieces of a round's batch with PyTorch; looks up after every micro-batch.

    With `given_model=False` the parameters are as the script has left them, and not what arrives with a round.
    """

    def __init__(self, training: Training, layout: Layout, *, given_model: bool = True) -> None:
        self._given_model = given_model
        self._training = training
        self._layout = layout
        self._loaded: weakref.ref[Any] = weakref.ref(self)  # the model that the parameters are
        self._batches = Batches(len(training.dataset), training.batch_size, training.seed)
        self.should_stop: Callable[[], bool] = lambda: False

    def __call__(
        self, piece: Piece, model: np.ndarray[Any, Any], round_: int, out: np.ndarray[Any, Any], node: int
    ) -> bool:
        """Write the gradient sum of a piece, and its loss, into `out`; False if it was told to stop."""
        loss = self._compute(piece, model, round_)
        if loss is None:
            return False
        self._layout.read_gradients(out, loss)
        return True

    def add(self, piece: Piece, model: np.ndarray[Any, Any], round_: int, out: np.ndarray[Any, Any], node: int) -> bool:
        """Add the gradient sum of a piece, and its loss, to what is in `out`."""
        loss = self._compute(piece, model, round_)
        if loss is None:
            return False
        self._layout.add_gradients(out, loss)
        return True

    def _compute(self, piece: Piece, model: np.ndarray[Any, Any], round_: int) -> float | None:
        """Have the gradients of a piece in the parameters; its loss, or None if it was told to stop."""
        if self._given_model and self._loaded() is not model:  # a root that came back may repeat a round with another
            self._layout.write_model(model)
            self._loaded = weakref.ref(model)
        self._layout.forget_gradients()
        loss = 0.0
        for first, indices, weight in self._micro_batches(piece, round_):
            if self.should_stop():
                return None
            seed_everything(self._training.seed, round_, first)
            total = self._training.evaluate(indices).sum() * weight
            total.backward()  # type: ignore[no-untyped-call]
            loss += float(total.detach())
        return loss

    def _micro_batches(self, piece: Piece, round_: int) -> Iterator[tuple[int, Indices, float]]:
        """Samples of one range at a time, as many as memory allows: where they begin, which they are, their weight.

        A range is what workers share: seeded by its begin, it has the same dropout in everyone's pass over it.
        """
        training = self._training
        batch = self._batches.indices(round_)
        for part in piece:
            size = training.micro_batch or len(part)
            for start in range(part.start, part.stop, size):
                yield start, batch[start : min(start + size, part.stop)], float(part.weight)


class GradientBesideScript(UnitGradient):
    """Computes on the root of a tree what missing workers would: as they do, and nothing of it is seen by its script.

    The parameters are what is sent to workers. Random generators, and with `one_core` the number of threads, are those
    of the script again afterwards.
    """

    def __init__(self, training: Training, layout: Layout, *, one_core: bool) -> None:
        super().__init__(training, layout)
        self._one_core = one_core and "OMP_NUM_THREADS" not in os.environ

    def _compute(self, piece: Piece, model: np.ndarray[Any, Any], round_: int) -> float | None:
        threads, of_python, of_numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
        if self._one_core:
            torch.set_num_threads(1)
        try:
            with torch.random.fork_rng():
                return super()._compute(piece, model, round_)
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            if self._one_core:
                torch.set_num_threads(threads)


#: Where random numbers begin that a script draws between two rounds: after all samples.
BETWEEN_ROUNDS = 2**32 - 1


#: Where there is nothing but the CPU `torch.manual_seed` still notes, with the whole stack, what a GPU would be seeded
#: with: 0.2 ms, where the generator itself takes a microsecond.
_has_devices = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
_seed_torch = torch.manual_seed if _has_devices else torch.default_generator.manual_seed


def seed_everything(seed: int, round_: int, first: int) -> None:
    """Dropout, and whatever a dataset draws, depend on the seed, the round and the samples: not on who computes."""
    state = np.random.SeedSequence([seed, round_, first]).generate_state(2)
    _seed_torch(int(state[0]))
    random.seed(int(state[1]))
    np.random.seed(int(state[1]))
