"""Tiny models and data for the tests of the trainer for Transformers."""

import os
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
)
from transformers import TrainingArguments as PlainArguments

from codedreduce.transformers import CodedReduceTrainer, TrainingArguments

torch.set_num_threads(1)

SAMPLES, BATCH = 100, 24
EACH = 5  # batches of an epoch, the last one smaller


class Texts(Dataset):
    """Rows of 4 to 16 numbers, as tokens; each is also of one of three kinds."""

    def __init__(self, samples: int = SAMPLES, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, 17, (samples,), generator=generator).tolist()
        self._rows = [torch.randint(0, 50, (length,), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self._rows[index], "label": int(self._rows[index][0] % 3)}


def padded(samples: list[dict]) -> dict[str, torch.Tensor]:
    """For a language model: padding does not count."""
    longest = max(len(one["input_ids"]) for one in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, one in enumerate(samples):
        length = len(one["input_ids"])
        ids[row, :length] = labels[row, :length] = one["input_ids"]
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def classified(samples: list[dict]) -> dict[str, torch.Tensor]:
    """For a classifier."""
    return {**padded(samples), "labels": torch.tensor([one["label"] for one in samples])}


def gpt(dropout: float = 0.0) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout,
            attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def bert(dropout: float = 0.0) -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer(
    kind: type[Trainer], folder: Path, model: torch.nn.Module, each: int = BATCH, *, plain_arguments: bool = False,
    **options,
) -> Trainer:  # fmt: skip
    """A trainer of that kind, with evaluation and checkpoints after every epoch, and the best one in the end."""
    is_classifier = isinstance(model, BertForSequenceClassification)
    more = {name: options.pop(name) for name in ("callbacks", "compute_loss_func", "train_dataset") if name in options}
    arguments = TrainingArguments if issubclass(kind, CodedReduceTrainer) and not plain_arguments else PlainArguments
    args = arguments(
        **{
            "output_dir": str(folder), "per_device_train_batch_size": each, "num_train_epochs": 3, "optim": "sgd",
            "learning_rate": 0.3, "max_grad_norm": 0.7, "warmup_steps": 3, "logging_steps": 2, "seed": 5,
            "save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True,
            "metric_for_best_model": "accuracy" if is_classifier else "loss", "greater_is_better": is_classifier,
            "report_to": [], "disable_tqdm": True, "train_sampling_strategy": "sequential",
            "dataloader_pin_memory": False, **options,
        }
    )  # fmt: skip
    return kind(
        model, args, **{
            "data_collator": classified if is_classifier else padded, "train_dataset": Texts(),
            "eval_dataset": Texts(20, seed=2), "compute_metrics": accuracy if is_classifier else None,
            "callbacks": [EarlyStoppingCallback(9)], **more,
        }
    )  # fmt: skip


def rank() -> int:
    return int(os.environ.get("RANK", 0))
