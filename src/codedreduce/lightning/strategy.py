"""The strategy: every process runs the `Trainer`, and gradients come from rounds of the whole run.

Lightning's loops stay as they are. The train loader is replaced by one whose batches are rounds (`RoundLoader`): when
one is asked for, this rank computes its part of the batch, by the module's `training_step`, and others'; then the
gradient of the whole batch is here. The training step that Lightning calls afterwards only logs, and `backward` has
the gradient where the optimizer looks for it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.rank_zero import rank_zero_only

import codedreduce.torch as cr
from codedreduce.errors import UsageError
from codedreduce.lightning.fit_state import FitState, save_where
from codedreduce.lightning.logged import Logged
from codedreduce.lightning.refused import check, refuse_metrics
from codedreduce.lightning.round_loader import RoundLoader, SummedBatch
from codedreduce.schemes import Scheme, Striped
from codedreduce.torch.broadcast import share
from codedreduce.torch.data.data_loader import Counted, Counting, LoaderSource, read_loader
from codedreduce.torch.gradient.loss_output import At, Sum
from codedreduce.training.batches import Function
from codedreduce.training.samplers import Sampler

#: Rounds of a training that has no end of its own.
MANY = 2**31 - 1


class CodedReduceStrategy(Strategy):
    """Exact data-parallel training that does not wait for stragglers.

    `training_step` gives one loss a sample, or `{"loss": sums, "weights": weights}`; a module whose loss is the mean
    over the samples it is given says so by an attribute, `mean_loss = True`. A step has `batch_size` samples over all
    ranks: by default what the loader has for each of them, as with DDP. `sampler` draws otherwise than the loader says,
    by the `seed` (that of `seed_everything`, or 0). `scheme` is for `codedreduce.torch.join`, further options are for
    `Cluster.train`: `micro_batch`, `coupled`, `wire`, ...
    """

    strategy_name = "codedreduce"

    def __init__(
        self, *, batch_size: int | None = None, sampler: Sampler | Function | None = None, seed: int | None = None,
        scheme: Scheme | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._cluster = cr.join(scheme)
        if self._cluster.size > 1 and not isinstance(self._cluster.scheme, Striped):
            raise UsageError(
                f"{self._cluster.scheme} has its state at the root, and every rank runs the Trainer: use stripes"
            )
        self._batch_size, self._sampler, self._seed, self._options = batch_size, sampler, seed, options
        self._source: LoaderSource | None = None
        self._steps: Generator[cr.Step] | None = None
        self._place: FitState | None = None
        self._logged = Logged()
        self._taken: SummedBatch | None = None
        self._gradients: list[tuple[torch.nn.Parameter, torch.Tensor | None]] = []
        self._round = self._total = 0
        self.local_rank = int(os.environ.get("LOCAL_RANK", self._cluster.rank))
        self.set_world_ranks()

    # -- who and where

    def set_world_ranks(self) -> None:
        """Have Lightning know which rank this is: loggers write on rank 0 alone."""
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    @property
    def global_rank(self) -> int:
        """This process's rank in the run."""
        return self._cluster.rank

    @property
    def world_size(self) -> int:
        """How many processes the run has."""
        return self._cluster.size

    @property
    def is_global_zero(self) -> bool:
        """Whether to save here: on the rank that leads, 0 or another after its death."""
        return self._cluster.is_root

    @property
    def root_device(self) -> torch.device:
        """Where this rank computes: on a device of its own, if there are as many."""
        if isinstance(self.accelerator, pl.accelerators.CUDAAccelerator):
            return torch.device("cuda", self.local_rank % torch.cuda.device_count())
        return torch.device("mps" if isinstance(self.accelerator, pl.accelerators.MPSAccelerator) else "cpu")

    def model_to_device(self) -> None:
        """Move the module to where it is computed."""
        assert self.model is not None
        self.model.to(self.root_device)

    # -- what every rank has by itself: each validates and tests with all data

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The same: it is the whole already."""
        return tensor

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """The same: it is the whole already."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Nobody waits: a rank that is late takes what it missed from others."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Before the first round what rank 0 has (folders); then ranks agree, or that one decides which leads."""
        module = self.lightning_module
        if obj is True and not self.is_global_zero:  # a file is there, time is up
            return False
        if self._steps is None and module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            return share(self._cluster, obj)
        return obj

    # -- training

    def process_dataloader(self, dataloader: object) -> object:
        """Have rounds instead of the train loader; others are as they are, all of it on every rank."""
        module = self.lightning_module
        if module is None or not module.trainer.training:
            return dataloader
        if self._source is not None:
            raise UsageError("training data come from one DataLoader; make one dataset of them")
        source = read_loader(dataloader, self._sampler)
        source = replace(source, batch_size=self._batch_size or source.batch_size * self.world_size)
        if not source.batches:
            raise UsageError(
                f"a step has {source.batch_size} samples over all ranks, and the dataset {source.each_epoch}; say "
                "CodedReduceStrategy(batch_size=...)"
            )
        self._source = source
        return RoundLoader(self._take, source.dataset, source.batches)

    def _take(self) -> SummedBatch:
        """A round, when Lightning asks for a batch: the gradient of a whole batch."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if self._steps is None:
            self._steps = self._begin(trainer)
        step = next(self._steps, None)
        if step is None:  # the run was ended by who leads it
            trainer.should_stop = True
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
            raise StopIteration
        self._gradients = [(one, one.grad) for one in self.lightning_module.parameters()]
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        fetcher.fetched = trainer.fit_loop.epoch_loop.batch_progress.current.ready  # as if it had fetched all before
        self._round, self._taken = step.round, SummedBatch(step, self._batches.size(step.round))
        return self._taken

    def _begin(self, trainer: pl.Trainer) -> Generator[cr.Step]:
        check(trainer)
        module, source = self.lightning_module, self._source
        assert module is not None
        assert source is not None
        length = int(trainer.num_training_batches)
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if self._seed is None else self._seed
        source = source.limited(length, seed)
        self._length, self._batches = length, source.drawn(seed)
        self._place = FitState(trainer)
        self._leave_rounds_alone(module)
        state = [*self.optimizers, *(one.scheduler for one in self.lr_scheduler_configs), self._place]
        self._total = min(
            [trainer.max_steps] * (trainer.max_steps >= 0)
            + [(trainer.max_epochs or 0) * length] * ((trainer.max_epochs or -1) >= 0)
            + [MANY]
        )
        begun: Any = self._cluster.train(
            module, source.dataset, self._losses, source.batch_size, self._total, seed, sampler=source.sampler,
            drop_last=source.drop_last, collate_fn=Counting(source.collate_fn), state=state,
            first_round=trainer.global_step + 1, **{"num_workers": source.num_workers, **self._options},
        )  # fmt: skip
        refuse_metrics(module)
        return begun  # type: ignore[no-any-return]

    def _losses(self, module: pl.LightningModule, batch: Counted, step: At) -> Any:
        """What the module's training step gives for some samples, wherever they are computed."""
        inputs = self.precision_plugin.convert_input(batch.batch)
        inputs = module._on_before_batch_transfer(inputs, dataloader_idx=0)
        inputs = self.batch_to_device(inputs, dataloader_idx=0)
        takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        index = [(step.round - 1) % self._length] if takes_index else []
        with self._logged.instead_of(module, batch.samples) as metrics:
            found = super().training_step(inputs, *index)
        weights = found.get("weights") if isinstance(found, Mapping) else None
        loss: Any = found["loss"] if isinstance(found, Mapping) else found
        if isinstance(loss, torch.Tensor) and not loss.ndim:
            if not getattr(module, "mean_loss", False):
                raise UsageError(
                    f"{type(module).__name__}.training_step gives one loss for all samples; give one for each "
                    "(reduction='none'), or say that it is their mean: set mean_loss = True in the module"
                )
            loss = Sum(loss * batch.samples)
        return loss, weights, metrics

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Log what was found, and give the loss of the whole batch."""
        taken, module = args[0], self.lightning_module
        assert isinstance(taken, SummedBatch)
        assert module is not None
        if taken is not self._taken:
            raise UsageError(
                "the optimizer evaluates a batch several times in a step (as LBFGS does), and its gradient is known "
                "where the step began only; use another optimizer"
            )
        self._taken = None
        self._logged.log(module, taken.step.metrics, taken.samples)
        assert self._place is not None
        self._place.complete()
        return torch.tensor(taken.step.loss, device=self.root_device)

    def backward(
        self, closure_loss: torch.Tensor, optimizer: torch.optim.Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Have the gradient of the whole batch where the optimizer looks for it."""
        assert self.lightning_module is not None
        self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._gradients = []
        self.precision_plugin.post_backward(closure_loss, self.lightning_module)
        return closure_loss

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Move a batch; a round has nothing to move."""
        return batch if isinstance(batch, SummedBatch) else super().batch_to_device(batch, device, dataloader_idx)

    def _leave_rounds_alone(self, module: pl.LightningModule) -> None:
        """What a module does to batches before they are moved it does where they are computed."""
        before = type(module)._on_before_batch_transfer

        def only_batches(batch: Any, dataloader_idx: int = 0) -> Any:
            return batch if isinstance(batch, SummedBatch) else before(module, batch, dataloader_idx)

        module._on_before_batch_transfer = only_batches  # type: ignore[method-assign]

    def on_train_start(self) -> None:
        """Lightning need not warn that a loader cannot go on in the middle of an epoch: rounds can."""
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch ended")

    def on_train_end(self) -> None:
        """Leave the run, with all others; they learn what callbacks of the one that leads know (which file is best)."""
        self._leave()
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if not trainer.checkpoint_callbacks:
            return
        states = share(self._cluster, {one.state_key: one.state_dict() for one in trainer.checkpoint_callbacks})
        if not self.is_global_zero:
            save_where(trainer, states)
            for callback in trainer.checkpoint_callbacks:
                callback.load_state_dict(states[callback.state_key])

    def on_exception(self, exception: BaseException) -> None:
        """Leave the run: by an error others may go on without this rank, an interrupt ends it for all."""
        steps, self._steps, self._source = self._steps, None, None
        if steps is not None:
            if isinstance(exception, Exception):
                self._cluster.__exit__(type(exception), exception, exception.__traceback__)
            steps.close()

    def _leave(self) -> None:
        """The last round is over, or Lightning stops before it, on all ranks alike."""
        steps, self._steps, self._source = self._steps, None, None
        if steps is not None:
            assert self.lightning_module is not None
            del self.lightning_module._on_before_batch_transfer
            if self._round == self._total:
                next(steps, None)
            steps.close()
            self._cluster.__exit__(None, None, None)
