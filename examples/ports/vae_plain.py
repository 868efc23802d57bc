"""A variational auto-encoder whose second loss comes in slowly."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce, kld


def train(args, model, loader, optimizer, epoch, history):
    model.train()
    beta = min(1.0, epoch / WARM_UP)
    for batch, (data,) in enumerate(loader, 1):
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        bce, kld = loss_function(recon, data, mu, logvar)
        loss = (bce + beta * kld) / len(data)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if batch % args.log_interval == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, BCE {bce / len(data):.3f}, KLD {kld / len(data):.3f}")


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
    train_loader = DataLoader(train_set, args.batch_size, shuffle=not args.in_order, drop_last=True)
    model = VAE(args.noise)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch, history)
        test(model, test_set)

    if args.save:
        torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
