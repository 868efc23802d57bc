"""The trainer: every process runs it, and gradients come from rounds of the whole run.

The loop of Transformers does not change. `RoundBatches` replaces its loader; its inputs are rounds. When the loop
requests inputs, this rank computes its part of the batch with `compute_loss`, and work of other ranks if needed. Then
`.grad` has the gradient of the whole batch, and `training_step` has no work left.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import codedreduce.torch as cr
from codedreduce.errors import UsageError
from codedreduce.schemes import Scheme
from codedreduce.torch.broadcast import share
from codedreduce.torch.cluster import join_ranks
from codedreduce.torch.data.data_loader import Counting, LoaderSource, read_loader
from codedreduce.training.batches import Function
from codedreduce.training.samplers import Sampler
from codedreduce.transformers.arguments import TrainingArguments as OwnArguments
from codedreduce.transformers.arguments import adopt, lead
from codedreduce.transformers.losses import ItemLosses
from codedreduce.transformers.trainer_state import TrainerProgress


class SummedInputs(dict[str, Any]):
    """Takes the place of inputs, and is empty: the result of all ranks for a batch.

    With gradient accumulation, a round counts as several inputs; each has its part of the loss.
    """

    def __init__(self, step: cr.Step, parts: int) -> None:
        super().__init__()
        self.step = step
        self.loss = step.loss / parts


class RoundBatches:
    """Loads nothing: `take` returns the next round of this epoch, or None at its end."""

    def __init__(self, take: Callable[[bool], cr.Step | None], dataset: Any, rounds: int, parts: int) -> None:
        self.dataset = dataset
        self.rounds = rounds
        self._parts = parts
        self._take = take

    def __len__(self) -> int:
        return self.rounds * self._parts

    def __iter__(self) -> Iterator[SummedInputs]:
        has_begun = False
        while (step := self._take(has_begun)) is not None:
            has_begun = True
            yield from [SummedInputs(step, self._parts)] * self._parts


class _Counts(TrainerCallback):
    """Counts epochs by rounds: a rank that fell behind has skipped some."""

    def __init__(self, trainer: CodedReduceTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        rounds = self._trainer._rounds
        if rounds is not None and state.global_step:
            epochs, place = divmod(state.global_step - 1, rounds.rounds)
            state.epoch = epochs + (place + 1) * (len(rounds) // rounds.rounds) / len(rounds)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        control.should_epoch_stop = False  # it was set to end the epoch, which has ended


class CodedReduceTrainer(Trainer):
    """A `Trainer` with exact data-parallel training that does not wait for stragglers.

    A batch has `per_device_train_batch_size` x `gradient_accumulation_steps` samples for each rank. Arguments beyond
    those of `Trainer`: `scheme` for `codedreduce.torch.join`; `sampler`, and `options` (`micro_batch`, `coupled`,
    `wire` and others) for `Cluster.train`.
    """

    def __init__(
        self, model: Any = None, args: TrainingArguments | None = None, *more: Any, scheme: Scheme | None = None,
        sampler: Sampler | Function | None = None, options: dict[str, Any] | None = None, **named: Any,
    ) -> None:  # fmt: skip
        self._cluster = join_ranks(scheme)
        self._sampler, self._options = sampler, options or {}
        self._steps: Generator[cr.Step] | None = None
        self._source: LoaderSource | None = None
        self._rounds: RoundBatches | None = None
        args = args if args is not None else OwnArguments(output_dir="tmp_trainer")
        adopt(args, self._cluster)
        super().__init__(model, args, *more, **named)
        self.callback_handler.callbacks.insert(0, _Counts(self))

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the number of samples of a step over all ranks."""
        return int(self._train_batch_size * args.gradient_accumulation_steps * self._cluster.size)

    def get_train_dataloader(self) -> Any:
        """Return a loader of rounds instead of inputs."""
        source = read_loader(super().get_train_dataloader(), self._sampler)
        size = self.get_total_train_batch_size(self.args)
        self._source = replace(source, batch_size=size)
        if not self._source.batches:
            raise UsageError(
                f"a step has {size} samples over all ranks, but an epoch only {source.each_epoch}: set a smaller "
                "per_device_train_batch_size"
            )
        parts = self.args.gradient_accumulation_steps
        self._rounds = RoundBatches(self._take, source.dataset, self._source.batches, parts)
        return self._rounds

    def _begin(self) -> Generator[cr.Step]:
        source, args = self._source, self.args
        assert source is not None
        if getattr(self.accelerator, "scaler", None) is not None:
            raise UsageError("losses are not scaled: use bf16 instead of fp16")
        accumulates = args.gradient_accumulation_steps > 1
        options = {
            "num_workers": source.num_workers, "micro_batch": self._train_batch_size if accumulates else None,
            **self._options,
        }  # fmt: skip
        begun: Any = self._cluster.train(
            self.model_wrapped, source.dataset, ItemLosses(self), source.batch_size, self.state.max_steps,
            args.seed if args.data_seed is None else args.data_seed, sampler=source.sampler,
            drop_last=source.drop_last, collate_fn=Counting(source.collate_fn),
            state=[self.optimizer, self.lr_scheduler, TrainerProgress(self)],
            first_round=self.state.global_step + 1, **options,
        )  # fmt: skip
        return begun  # type: ignore[no-any-return]

    def _take(self, has_begun: bool) -> cr.Step | None:
        """Return the next round of an epoch, with its gradient; None at the end of the epoch, and of the run."""
        assert self._rounds is not None
        if has_begun and self.state.global_step % self._rounds.rounds == 0:
            self.control.should_epoch_stop = True
            return None
        self.model_wrapped.train()
        if self._steps is None:
            self._steps = self._begin()
        step = next(self._steps, None)
        if step is None:  # the leader has ended the run
            self.control.should_training_stop = True
        lead(self.args, self._cluster)
        return step

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the loss of the whole batch; `.grad` is set already."""
        assert isinstance(inputs, SummedInputs)
        set_to_train = getattr(self.optimizer, "train", None)  # schedule-free optimizers have two modes
        if callable(set_to_train):
            set_to_train()
        return torch.tensor(inputs.loss, device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: no rank sees all inputs."""
        return 0

    def _init_training_state(self, *args: Any, **named: Any) -> tuple[int, int]:
        """Continue with the rounds after a checkpoint, without inputs to skip."""
        epochs, _ = super()._init_training_state(*args, **named)
        return epochs, 0

    def _run_epoch(self, *args: Any, **named: Any) -> None:
        """Run until the rounds of the epoch are over; this rank may have skipped some."""
        super()._run_epoch(*args, **{**named, "num_update_steps_per_epoch": sys.maxsize})  # type: ignore[no-untyped-call]

    def _inner_training_loop(self, *args: Any, **named: Any) -> Any:
        try:
            return super()._inner_training_loop(*args, **named)
        except Exception as error:
            if self._steps is not None:  # other ranks may continue without this one
                self._cluster.__exit__(type(error), error, error.__traceback__)
            raise
        finally:
            if self._steps is not None:  # there was an error
                self._steps.close()
                self._steps = None

    def _finalize_training(self, *args: Any, **named: Any) -> Any:
        """Leave the run on all ranks; when the leader arrives here, its files are complete."""
        steps, self._steps = self._steps, None
        if steps is not None:
            if self.state.global_step >= self.state.max_steps:
                next(steps, None)
            steps.close()
            self._cluster.__exit__(None, None, None)
        best = share(self._cluster, self.state.best_model_checkpoint)
        self.state.best_model_checkpoint = best
        return super()._finalize_training(*args, **named)  # type: ignore[no-untyped-call]

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save on the leader; other ranks record the folder of the best checkpoint."""
        if self.is_world_process_zero():
            super()._save_checkpoint(model, trial)
        elif self.state.best_global_step:
            folder = f"checkpoint-{self.state.best_global_step}"
            self.state.best_model_checkpoint = os.path.join(self._get_output_dir(trial), folder)
