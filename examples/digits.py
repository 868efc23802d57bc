"""A small CNN on scikit-learn's digits, over workers that may stall.

codedreduce run -n 6 --inject stalls:0.1:0.2s examples/digits.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
order = torch.randperm(len(x))
train, test = order[:1440], order[1440:]
dataset = TensorDataset(x[train], y[train])

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def losses(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets, reduction="none")


with cr.join() as cluster:
    for step in cluster.train(model, dataset, losses, batch_size=120, steps=240):
        optimizer.step()
        if cluster.is_root and step.round % 40 == 0:
            print(f"step {step.round}: loss {step.loss:.4f}, {step.saved:.1f} s saved against waiting for all")

if cluster.is_root:
    model.eval()
    accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    print(f"test accuracy {100 * accuracy:.1f} %")
