"""The strategy: every process runs the `Trainer`, and gradients come from rounds of the whole run.

Lightning's loops do not change. `RoundLoader` replaces the train loader; its batches are rounds. When Lightning
requests one, this rank computes its part of the batch with the module's `training_step`, and work of other ranks if
needed. Then the gradient of the whole batch is known. The training step that Lightning calls afterwards only logs, and
`backward` sets `.grad` for the optimizer.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
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
from codedreduce.schemes import Scheme
from codedreduce.torch.broadcast import share
from codedreduce.torch.cluster import join_ranks
from codedreduce.torch.data.data_loader import Counted, Counting, LoaderSource, read_loader
from codedreduce.torch.model.loss_output import At, Sum
from codedreduce.training.batches import Function
from codedreduce.training.samplers import Sampler

#: The number of rounds of a training without a limit.
MANY = 2**31 - 1


class SummedBatch:
    """Takes the place of a batch: the result of all ranks for it. Hooks receive it as `batch`."""

    def __init__(self, step: cr.Step, samples: int) -> None:
        self.step = step
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield an empty tensor, by which Lightning sees the number of samples of the batch."""
        yield torch.empty(self.samples, 0)

    def __repr__(self) -> str:
        return f"SummedBatch({self.step})"


class RoundLoader:
    """Loads nothing: each of its batches is a round. It has the length of an epoch, and continues with the next one."""

    def __init__(self, take: Callable[[], SummedBatch], dataset: Any, length: int) -> None:
        self.dataset = dataset
        self._take = take
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SummedBatch]:
        return self

    def __next__(self) -> SummedBatch:
        return self._take()


class CodedReduceStrategy(Strategy):
    """Exact data-parallel training that does not wait for stragglers.

    `training_step` returns one loss per sample, or `{"loss": sums, "weights": weights}`. If the loss is the mean over
    the given samples, set the module's attribute `mean_loss = True`. A step has `batch_size` samples over all ranks;
    the default is the loader's batch size for each rank, as with DDP. `sampler` replaces the loader's order; `seed`
    defaults to that of `seed_everything`, or 0. `scheme` is for `codedreduce.torch.join`, further options are for
    `Cluster.train`: `micro_batch`, `coupled`, `wire`, ...
    """

    strategy_name = "codedreduce"

    def __init__(
        self, *, batch_size: int | None = None, sampler: Sampler | Function | None = None, seed: int | None = None,
        scheme: Scheme | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._cluster = join_ranks(scheme)
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

    # -- rank and device

    def set_world_ranks(self) -> None:
        """Tell Lightning this process's rank: loggers write on rank 0 only."""
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    @property
    def global_rank(self) -> int:
        """This process's rank in the run."""
        return self._cluster.rank

    @property
    def world_size(self) -> int:
        """The number of processes in the run."""
        return self._cluster.size

    @property
    def is_global_zero(self) -> bool:
        """Whether this rank saves: the leader, which is rank 0, or another rank after it fails."""
        return self._cluster.is_root

    @property
    def root_device(self) -> torch.device:
        """The device of this rank: its own, if there are enough devices."""
        if isinstance(self.accelerator, pl.accelerators.CUDAAccelerator):
            return torch.device("cuda", self.local_rank % torch.cuda.device_count())
        return torch.device("mps" if isinstance(self.accelerator, pl.accelerators.MPSAccelerator) else "cpu")

    def model_to_device(self) -> None:
        """Move the module to this rank's device."""
        assert self.model is not None
        self.model.to(self.root_device)

    # -- collectives without communication: each rank validates and tests with all data

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the tensor, which covers all data already."""
        return tensor

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Return the tensor, which covers all data already."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Do not wait: a late rank catches up by state transfer."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Share an object of the leader (folders) before the first round; later ranks agree, or the leader decides."""
        module = self.lightning_module
        if obj is True and not self.is_global_zero:  # a file exists, or the time limit is reached
            return False
        if self._steps is None and module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            return share(self._cluster, obj)
        return obj

    # -- training

    def process_dataloader(self, dataloader: object) -> object:
        """Replace the train loader by rounds; other loaders stay, and every rank reads all of their data."""
        module = self.lightning_module
        if module is None or not module.trainer.training:
            return dataloader
        if self._source is not None:
            raise UsageError("there are several DataLoaders for training: combine their datasets into one")
        source = read_loader(dataloader, self._sampler)
        source = replace(source, batch_size=self._batch_size or source.batch_size * self.world_size)
        if not source.batches:
            raise UsageError(
                f"a step has {source.batch_size} samples over all ranks, but an epoch only {source.each_epoch}; set "
                "CodedReduceStrategy(batch_size=...)"
            )
        self._source = source
        return RoundLoader(self._take, source.dataset, source.batches)

    def _take(self) -> SummedBatch:
        """Run a round when Lightning requests a batch; return the result for the whole batch."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if self._steps is None:
            self._steps = self._begin(trainer)
        step = next(self._steps, None)
        if step is None:  # the leader has ended the run
            trainer.should_stop = True
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
            raise StopIteration
        self._gradients = [(one, one.grad) for one in self.lightning_module.parameters()]
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        fetcher.fetched = trainer.fit_loop.epoch_loop.batch_progress.current.ready  # as if it had fetched all batches
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
        """Return the loss output of the module's training step for some samples."""
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
                    f"{type(module).__name__}.training_step returns one loss for all samples; return one for each "
                    "(reduction='none'), or set mean_loss = True in the module if it is their mean"
                )
            loss = Sum(loss * batch.samples)
        return loss, weights, metrics

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Log the metrics of the round, and return the loss of the whole batch."""
        taken, module = args[0], self.lightning_module
        assert isinstance(taken, SummedBatch)
        assert module is not None
        if taken is not self._taken:
            raise UsageError(
                "the optimizer evaluates a batch several times in a step (as LBFGS does), but the gradient is known "
                "only at the start of the step; use another optimizer"
            )
        self._taken = None
        self._logged.log(module, taken.step.metrics, taken.samples)
        assert self._place is not None
        self._place.complete()
        return torch.tensor(taken.step.loss, device=self.root_device)

    def backward(
        self, closure_loss: torch.Tensor, optimizer: torch.optim.Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Set `.grad` of every parameter to the gradient of the whole batch."""
        assert self.lightning_module is not None
        self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._gradients = []
        self.precision_plugin.post_backward(closure_loss, self.lightning_module)
        return closure_loss

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Move a batch to the device; return a round unchanged."""
        return batch if isinstance(batch, SummedBatch) else super().batch_to_device(batch, device, dataloader_idx)

    def _leave_rounds_alone(self, module: pl.LightningModule) -> None:
        """Skip the module's hook before the transfer for rounds: the hook runs when the real batches are computed."""
        before = type(module)._on_before_batch_transfer

        def only_batches(batch: Any, dataloader_idx: int = 0) -> Any:
            return batch if isinstance(batch, SummedBatch) else before(module, batch, dataloader_idx)

        module._on_before_batch_transfer = only_batches  # type: ignore[method-assign]

    def on_train_start(self) -> None:
        """Silence Lightning's warning that loaders cannot resume within an epoch: rounds can."""
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch ended")

    def on_train_end(self) -> None:
        """Leave the run on all ranks, and share the states of the leader's checkpoint callbacks (the best file)."""
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
        """Leave the run: after an error other ranks may continue without this one; an interrupt ends the run."""
        steps, self._steps, self._source = self._steps, None, None
        if steps is not None:
            if isinstance(exception, Exception):
                self._cluster.__exit__(type(exception), exception, exception.__traceback__)
            steps.close()

    def _leave(self) -> None:
        """Leave the run after the last round, or when Lightning stops earlier, on all ranks alike."""
        steps, self._steps, self._source = self._steps, None, None
        if steps is not None:
            assert self.lightning_module is not None
            del self.lightning_module._on_before_batch_transfer
            if self._round == self._total:
                next(steps, None)
            steps.close()
            self._cluster.__exit__(None, None, None)
