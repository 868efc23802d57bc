"""Refuses, before the first round, options of a `Trainer` or a module that cannot work as specified."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torchmetrics import Metric

from codedreduce.errors import UsageError


def check(trainer: pl.Trainer) -> None:
    """Raise an error if the trainer or its module has such an option."""
    module = trainer.lightning_module
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UsageError(
            f"{name} optimizes manually (automatic_optimization = False), but gradients are known only once per batch: "
            "write the loop with codedreduce.torch, where a script steps by itself"
        )
    if trainer.accumulate_grad_batches != 1 or any(
        isinstance(one, GradientAccumulationScheduler)
        for one in trainer.callbacks  # type: ignore[attr-defined]
    ):
        raise UsageError(
            "accumulate_grad_batches is for batches that do not fit into memory: use "
            "CodedReduceStrategy(batch_size=..., micro_batch=...), the whole batch and the samples of one pass"
        )
    if getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
        raise UsageError(
            "reload_dataloaders_every_n_epochs: the data of all rounds must be known before the first; leave it out"
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise UsageError("precision='16-mixed' scales losses, which is not supported; use 'bf16-mixed'")
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise UsageError(f"{name}.training_step takes dataloader_iter; let it take a batch")


def refuse_metrics(module: pl.LightningModule) -> None:
    """Refuse metrics with a state, which would cover only the samples of this rank."""
    for name, one in module.named_modules():
        if isinstance(one, Metric) and one.update_called:
            raise UsageError(
                f"training_step updates {name} ({type(one).__name__}), which would cover only the samples of this "
                "rank; log a mean over the samples, or a number for each: self.log then has the mean over the batch"
            )
