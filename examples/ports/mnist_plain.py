"""A small CNN with dropout that tells ten kinds of pictures apart."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(dropout / 2), nn.Dropout(dropout)
        self.fc1 = nn.Linear(576, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout1(x).flatten(1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def pictures(count, seed):
    """Ten faint drawings under noise, 16 x 16."""
    drawings = torch.randn(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(0.4 * drawings[labels] + torch.randn(count, 1, 16, 16, generator=generator), labels)


def train(args, model, loader, optimizer, epoch, history):
    model.train()
    for batch, (data, target) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if batch % args.log_interval == 0:
            print(f"epoch {epoch}, batch {batch}: loss {loss.item():.4f}")


def test(model, dataset):
    model.eval()
    wrong = loss = 0
    with torch.no_grad():
        for data, target in DataLoader(dataset, batch_size=500):
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            wrong += (output.argmax(1) != target).sum().item()
    print(f"test: loss {loss / len(dataset):.4f}, accuracy {100 - 100 * wrong / len(dataset):.1f} %")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_set, test_set = pictures(args.samples, seed=1), pictures(1000, seed=2)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=not args.in_order)
    model = Net(args.dropout)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    history = []

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch, history)
        test(model, test_set)
        scheduler.step()

    if args.save:
        torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
