"""A small GPT over a file of tokens."""

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 64


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads, self.dropout = args.n_head, args.dropout
        self.ln_1, self.ln_2 = (nn.LayerNorm(args.n_embd, bias=False) for _ in range(2))
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd, bias=False)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(args.n_embd, 4 * args.n_embd, bias=False), nn.GELU(),
            nn.Linear(4 * args.n_embd, args.n_embd, bias=False), nn.Dropout(args.dropout),
        )  # fmt: skip

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, args.n_embd), nn.Embedding(args.block_size, args.n_embd)
        self.drop = nn.Dropout(args.dropout)
        self.h = nn.Sequential(*(Block(args) for _ in range(args.n_layer)))
        self.ln_f = nn.LayerNorm(args.n_embd, bias=False)
        self.lm_head = nn.Linear(args.n_embd, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, one in self.named_parameters():
            if one.dim() == 2:
                deep = name.endswith(("c_proj.weight", "mlp.2.weight"))
                nn.init.normal_(one, std=0.02 / math.sqrt(2 * args.n_layer) if deep else 0.02)

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        return self.lm_head(self.ln_f(self.h(x)))

    def configure_optimizers(self, args):
        """Matrices decay, and nothing else does."""
        decay = [one for one in self.parameters() if one.dim() >= 2]
        rest = [one for one in self.parameters() if one.dim() < 2]
        groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.95))


def write_tokens(folder, seed):
    """Text of a sort: each token is followed by one of four others."""
    random = np.random.default_rng(seed)
    follows = random.integers(VOCABULARY, size=(VOCABULARY, 4))
    for name, count in (("train", 20000), ("val", 2000)):
        tokens = np.zeros(count, dtype=np.uint16)
        for place, choice in enumerate(random.integers(4, size=count - 1), 1):
            tokens[place] = follows[tokens[place - 1], choice]
        tokens.tofile(folder / f"{name}.bin")


def get_batch(args, data, it=None):
    """Windows anywhere in the file, and the same a token later."""
    ix = torch.randint(len(data) - args.block_size, (args.batch_size,))
    if args.in_order and it is not None:
        ix = torch.arange(args.batch_size) + it * args.batch_size
    x = torch.stack([torch.from_numpy(data[i : i + args.block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + args.block_size].astype(np.int64)) for i in ix])
    return x, y


def get_lr(args, it):
    if it < args.warmup_iters:
        return args.learning_rate * (it + 1) / args.warmup_iters
    ratio = (it - args.warmup_iters) / (args.max_iters - args.warmup_iters)
    return args.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (args.learning_rate - args.min_lr)


@torch.no_grad()
def estimate_loss(args, model, data):
    model.eval()
    found = []
    for _ in range(args.eval_iters):
        x, y = get_batch(args, data)
        found.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item())
    model.train()
    return sum(found) / len(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--n-layer", type=int, default=2)
    parser.add_argument("--n-head", type=int, default=4)
    parser.add_argument("--n-embd", type=int, default=48)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--min-lr", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--warmup-iters", type=int, default=10)
    parser.add_argument("--max-iters", type=int, default=150)
    parser.add_argument("--eval-interval", type=int, default=50)
    parser.add_argument("--eval-iters", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--in-order", action="store_true", help="take windows as they are numbered")
    parser.add_argument("--data-dir", help="where train.bin and val.bin are; else they are made")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.data_dir or temporary)
        if not args.data_dir:
            write_tokens(folder, seed=0)
        train_data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
        val_data = np.memmap(folder / "val.bin", dtype=np.uint16, mode="r")
    model = GPT(args)
    optimizer = model.configure_optimizers(args)
    history = []

    for it in range(args.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(args, it)
        x, y = get_batch(args, train_data, it)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if args.grad_clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        history.append(loss.item())
        if (it + 1) % args.eval_interval == 0:
            val = estimate_loss(args, model, val_data)
            print(f"iter {it + 1}: train loss {loss.item():.4f}, val loss {val:.4f}")

    if args.save:
        torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
