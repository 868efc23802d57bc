"""A module, data and a `Trainer` for the tests of the Lightning strategy."""

import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import codedreduce.torch as cr

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec|log interval|logging interval).*")

SAMPLES, BATCH = 200, 36
EACH = 6  # batches of an epoch, the last one smaller


class Net(pl.LightningModule):
    """One loss a sample, logged by step and by epoch; a schedule by steps; validation and test."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 4))

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        x, y = batch
        out = self.body(x)
        loss = F.cross_entropy(out, y, reduction="none")
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("right", (out.argmax(1) == y).float().mean(), on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def on_before_batch_transfer(self, batch, dataloader_idx: int):
        return [batch[0] + 0.5, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        return [batch[0] * 2, batch[1]]

    def on_train_batch_end(self, outputs, batch, batch_idx: int) -> None:
        self.log("after", outputs["loss"], on_step=False, on_epoch=True)

    def validation_step(self, batch, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.body(x), y))

    test_step = validation_step

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Mean(Net):
    """The same as plain Lightning wants it: the mean loss of a batch."""

    mean_loss = True

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        x, y = batch
        out = self.body(x)
        loss = F.cross_entropy(out, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("right", (out.argmax(1) == y).float().mean(), on_step=False, on_epoch=True, prog_bar=True)
        return loss


def data(samples: int = SAMPLES, seed: int = 2) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 10, generator=generator)
    return TensorDataset(x, torch.randint(0, 4, (samples,), generator=generator))


def validation() -> DataLoader:
    return DataLoader(data(60, seed=3), batch_size=30)


def plain_loader(epochs: int) -> list[list[int]]:
    """Batches as ours are drawn, one epoch after the other, for plain Lightning."""
    drawn = [
        cr.batch_indices(SAMPLES, BATCH, round_, seed=5, drop_last=False).tolist()
        for round_ in range(1, EACH * epochs + 1)
    ]

    class Epochs:
        """Batches of the epoch that Lightning says."""

        def __init__(self) -> None:
            self.epoch = 0
            self.sampler = self  # where Lightning looks for something to tell the epoch

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return EACH

        def __iter__(self):
            yield from drawn[self.epoch * EACH : (self.epoch + 1) * EACH]

    return DataLoader(data(), batch_sampler=Epochs())


def trainer(folder: Path, strategy="auto", *callbacks, epochs: int = 3, **options) -> pl.Trainer:
    kept = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True)
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", strategy=strategy, logger=CSVLogger(folder),
        callbacks=[kept, EarlyStopping("val_loss", patience=50), LearningRateMonitor(), *callbacks],
        gradient_clip_val=0.5, log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
