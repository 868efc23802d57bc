"""What a `Trainer` or a module asks for that would not be as it is said: refused before the first round."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torchmetrics import Metric

from codedreduce.errors import UsageError


def check(trainer: pl.Trainer) -> None:
    """Refuse it."""
    module = trainer.lightning_module
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UsageError(
            f"{name} optimizes by itself (automatic_optimization = False), and gradients are known once a batch: write "
            "the loop with codedreduce.torch, where a script steps by itself"
        )
    if trainer.accumulate_grad_batches != 1 or any(
        isinstance(one, GradientAccumulationScheduler)
        for one in trainer.callbacks  # type: ignore[attr-defined]
    ):
        raise UsageError(
            "accumulate_grad_batches is for batches that do not fit into memory: say "
            "CodedReduceStrategy(batch_size=..., micro_batch=...), the whole batch and what is computed at once"
        )
    if getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
        raise UsageError("reload_dataloaders_every_n_epochs: the data of all rounds must be known before the first")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise UsageError("precision='16-mixed' scales losses, and gradients are summed as they are; use 'bf16-mixed'")
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise UsageError(f"{name}.training_step takes dataloader_iter; let it take a batch")


def refuse_metrics(module: pl.LightningModule) -> None:
    """Metrics with a state would have what this rank happens to compute."""
    for name, one in module.named_modules():
        if isinstance(one, Metric) and one.update_called:
            raise UsageError(
                f"training_step updates {name} ({type(one).__name__}), which would have what this rank happens to "
                "compute; log a mean over the samples, or a number for each: self.log then has the mean over the batch"
            )
