"""A classifier of pictures by Lightning."""

import argparse

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, dropout, learning_rate):
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10)
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


class History(pl.Callback):
    """Keeps the loss of every step."""

    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(trainer.callback_metrics["train_loss"].item())


def pictures(count, seed):
    """Ten faint drawings under noise, 12 x 12."""
    drawings = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(0.4 * drawings[labels] + torch.randn(count, 1, 12, 12, generator=generator), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=1440)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    pl.seed_everything(args.seed)
    train_loader = DataLoader(pictures(args.samples, seed=1), args.batch_size, shuffle=not args.in_order)
    val_loader = DataLoader(pictures(500, seed=2), 100)
    model, history = Classifier(args.dropout, args.learning_rate), History()
    trainer = pl.Trainer(
        max_epochs=args.epochs, callbacks=[history], accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, train_loader, val_loader)

    if trainer.is_global_zero:
        print(f"accuracy {100 * trainer.callback_metrics['val_accuracy'].item():.1f} %")
    if args.save and trainer.is_global_zero:
        torch.save({"losses": history.losses, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
