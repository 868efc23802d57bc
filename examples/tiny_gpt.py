"""A small character transformer, over workers that may stall.

codedreduce run -n 6 --inject stalls:0.1:0.3s examples/tiny_gpt.py
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import codedreduce.torch as cr

CONTEXT, WIDTH, HEADS, LAYERS = 48, 64, 4, 2
STEPS, BATCH, WARM_UP = 150, 48, 15


class Text(Dataset):
    """Windows of some text, the source of the standard library's argparse, and the same a character later."""

    def __init__(self):
        with open(argparse.__file__, encoding="utf-8") as file:
            text = file.read()
        self.letters = sorted(set(text))
        self.codes = torch.tensor([self.letters.index(letter) for letter in text])

    def __len__(self):
        return len(self.codes) - CONTEXT

    def __getitem__(self, index):
        return self.codes[index : index + CONTEXT], self.codes[index + 1 : index + CONTEXT + 1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        samples, length, _ = x.shape
        parts = self.project_in(self.before_attention(x)).view(samples, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project_out(attended.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class TinyGPT(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, letters, bias=False)

    def forward(self, codes):
        return self.head(self.blocks(self.letters(codes) + self.places.weight[: codes.shape[1]]))


def learning_rate(step):
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


parser = argparse.ArgumentParser()
parser.add_argument("--autocast", action="store_true", help="compute in bfloat16 where that is enough")
options = parser.parse_args()

torch.manual_seed(0)
dataset = Text()
model = TinyGPT(len(dataset.letters))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)


def losses(model, batch):
    inputs, targets = batch
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.autocast):
        logits = model(inputs)
    return F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none").mean(1)


with cr.join() as cluster:
    for step in cluster.train(model, dataset, losses, batch_size=BATCH, steps=STEPS):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if cluster.is_root and step.round % 25 == 0:
            print(f"step {step.round}: loss {step.loss:.3f}, learning rate {scheduler.get_last_lr()[0]:.4f}")
