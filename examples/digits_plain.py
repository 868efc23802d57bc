"""A small CNN on scikit-learn's digits, in one process: where examples/digits.py comes from."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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

step = 0
for _ in range(20):
    for inputs, targets in DataLoader(dataset, batch_size=120, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 40 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

model.eval()
accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
print(f"test accuracy {100 * accuracy:.1f} %")
