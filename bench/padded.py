"""A small GPT-2 by Hugging Face over sentences of different lengths: as its own loss has it, and as ranks train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import GPT2Config, GPT2LMHeadModel

import codedreduce.torch as cr

WORDS, BATCH, IGNORED = 64, 24, -100

Batch = dict[str, torch.Tensor]


class Trained(NamedTuple):
    """What a training came to, of sentences it has not seen."""

    loss: float
    accuracy: float


def model(seed: int, dropout: float = 0.0) -> GPT2LMHeadModel:
    """With weights as they are drawn."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=48, n_layer=2, n_head=4, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]


def sentences(count: int, seed: int) -> list[torch.Tensor]:
    """Of 4 to 24 words, each followed by one of four others."""
    follows = torch.randint(1, WORDS, (WORDS, 4), generator=torch.Generator().manual_seed(0)).tolist()
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in torch.randint(4, 25, (count,), generator=generator).tolist():
        words = [int(torch.randint(1, WORDS, (), generator=generator))]
        for choice in torch.randint(4, (length - 1,), generator=generator).tolist():
            words.append(follows[words[-1]][choice])
        found.append(torch.tensor(words))
    return found


def padded(samples: list[torch.Tensor]) -> Batch:
    """Sentences side by side; what fills the shorter ones is not looked at, and does not count."""
    words = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    there = words != 0
    return {"input_ids": words, "attention_mask": there.long(), "labels": words.masked_fill(~there, IGNORED)}


def losses(model: GPT2LMHeadModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each sentence the sum over its words, and how many they are."""
    labels = batch["labels"][:, 1:]
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return each.sum(1), (labels != IGNORED).sum(1)


def optimizer_of(model: GPT2LMHeadModel) -> torch.optim.Optimizer:
    """With an epsilon that biases of keys, whose gradient is nothing but rounding, do not exceed."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-6)


def evaluated(model: GPT2LMHeadModel) -> Trained:
    """By its own loss."""
    model.train(False)
    batch = padded(sentences(400, seed=2))
    with torch.no_grad():
        found = model(**batch)
    labels = batch["labels"][:, 1:]
    there = labels != IGNORED
    right = (found.logits[:, :-1].argmax(-1) == labels)[there]
    return Trained(found.loss.item(), right.float().mean().item())


def train_plainly(seed: int, steps: int) -> Trained:
    """In one process, by the loss that the model gives."""
    one, data = model(seed), sentences(960, seed=1)
    one.train()
    optimizer = optimizer_of(one)
    for round_ in range(1, steps + 1):
        optimizer.zero_grad()
        one(**padded([data[i] for i in cr.batch_indices(len(data), BATCH, round_, seed)])).loss.backward()
        optimizer.step()
    return evaluated(one)


def train_on_ranks(seed: int, steps: int, tell: Callable[[Trained], Any]) -> None:
    """As a rank; the one that leads tells what came of it."""
    one = model(seed)
    one.train()
    optimizer = optimizer_of(one)
    with cr.join() as cluster:
        for _ in cluster.train(
            one, sentences(960, seed=1), losses, BATCH, steps, seed, collate_fn=padded, state=[optimizer]
        ):
            optimizer.step()
        if cluster.is_root:
            tell(evaluated(one))
