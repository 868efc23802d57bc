"""A variational auto-encoder whose second loss comes in slowly."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import codedreduce.torch as cr

WARM_UP = 4  # epochs until the KLD counts fully


class VAE(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.noise = noise
        self.fc1 = nn.Linear(144, 64)
        self.fc21, self.fc22 = nn.Linear(64, 8), nn.Linear(64, 8)
        self.fc3 = nn.Linear(8, 64)
        self.fc4 = nn.Linear(64, 144)

    def encode(self, x):
        hidden = F.relu(self.fc1(x))
        return self.fc21(hidden), self.fc22(hidden)

    def reparameterize(self, mu, logvar):
        return mu + self.noise * torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def pictures(count, seed):
    """One blob each, somewhere in 12 x 12."""
    place = 3 + 5 * torch.rand(count, 2, 1, 1, generator=torch.Generator().manual_seed(seed))
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    return TensorDataset(torch.exp(-((y - place[:, 0]) ** 2 + (x - place[:, 1]) ** 2) / 4).flatten(1))


def loss_function(recon, x, mu, logvar):
    """How unlike it is, and how far from normal."""
    bce = F.binary_cross_entropy(recon, x, reduction="none").sum(1)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
    return bce, kld


def losses(model, batch, step):
    (data,) = batch
    recon, mu, logvar = model(data)
    bce, kld = loss_function(recon, data, mu, logvar)
    return bce + min(1.0, step.epoch / WARM_UP) * kld, {"BCE": bce, "KLD": kld}


def train(args, model, steps, optimizer, epoch, history):
    model.train()
    for batch, step in enumerate(steps, 1):
        optimizer.step()
        history.append(step.loss)
        if cluster.is_root and batch % args.log_interval == 0:
            print(f"epoch {epoch}: loss {step.loss:.3f}, BCE {step.metrics['BCE']:.3f}, KLD {step.metrics['KLD']:.3f}")


def test(model, dataset):
    model.eval()
    loss = 0
    with torch.no_grad():
        for (data,) in DataLoader(dataset, batch_size=500):
            recon, mu, logvar = model(data)
            bce, kld = loss_function(recon, data, mu, logvar)
            loss += (bce + kld).sum().item()
    print(f"test: loss {loss / len(dataset):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--noise", type=float, default=1.0, help="0 decodes the mean")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_set, test_set = pictures(args.samples, seed=1), pictures(500, seed=2)
    sampler = cr.Sequential() if args.in_order else cr.Shuffled()
    model = VAE(args.noise)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []

    training = cluster.train(
        model, train_set, losses, args.batch_size, epochs=args.epochs, sampler=sampler, state=[optimizer]
    )
    for epoch, steps in cr.by_epoch(training):
        train(args, model, steps, optimizer, epoch, history)
        if cluster.is_root:
            test(model, test_set)

    if args.save and cluster.is_root:
        torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    with cr.join() as cluster:
        main()
