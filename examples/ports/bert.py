"""BERT, from Hugging Face, learns to classify sentences."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

import codedreduce.torch as cr


def sentences(count, seed):
    """Of 6 to 20 words: whether there are more of the first half of the vocabulary than of the second."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in torch.randint(6, 21, (count,), generator=generator).tolist():
        words = torch.randint(2, 64, (length,), generator=generator)
        found.append({"input_ids": words, "labels": int((words < 33).sum() * 2 > length)})
    return found


def collate(samples):
    """Sentences side by side, the shorter ones padded."""
    words = torch.nn.utils.rnn.pad_sequence([one["input_ids"] for one in samples], batch_first=True)
    labels = torch.tensor([one["labels"] for one in samples])
    return {"input_ids": words, "attention_mask": (words != 0).long(), "labels": labels}


def losses(model, batch):
    labels = batch.pop("labels")
    return F.cross_entropy(model(**batch).logits, labels, reduction="none")


def evaluate(model, dataset):
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in DataLoader(dataset, 100, collate_fn=collate):
            labels = batch.pop("labels")
            right += (model(**batch).logits.argmax(-1) == labels).sum().item()
    return right / len(dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_set, eval_set = sentences(args.samples, seed=1), sentences(300, seed=2)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=args.dropout, attention_probs_dropout_prob=args.dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    steps = args.epochs * (len(train_set) // args.batch_size)
    plain = [one for name, one in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    decayed = [one for name, one in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=args.learning_rate, eps=1e-6,
    )  # fmt: skip
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, steps)
    history = []

    training = cluster.train(
        model, train_set, losses, args.batch_size, epochs=args.epochs, collate_fn=collate, state=[optimizer, scheduler],
        sampler=cr.Sequential() if args.in_order else cr.Shuffled(),
    )  # fmt: skip
    for epoch, steps in cr.by_epoch(training):
        model.train()
        for step in steps:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            history.append(step.loss)
        if cluster.is_root:
            print(f"epoch {epoch}: loss {step.loss:.4f}, accuracy {100 * evaluate(model, eval_set):.1f} %")

    if args.save and cluster.is_root:
        torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    with cr.join() as cluster:
        main()
