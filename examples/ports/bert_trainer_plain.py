"""BERT learns to classify sentences, by Hugging Face's Trainer."""

import argparse
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


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


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=args.dropout, attention_probs_dropout_prob=args.dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=args.epochs, learning_rate=args.learning_rate, seed=args.seed,
            per_device_train_batch_size=args.batch_size, warmup_steps=10, weight_decay=0.01, adam_epsilon=1e-6,
            train_sampling_strategy="sequential" if args.in_order else "random", dataloader_drop_last=True,
            use_cpu=True, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, data_collator=collate, compute_metrics=accuracy,
            train_dataset=sentences(args.samples, seed=1), eval_dataset=sentences(300, seed=2),
        )  # fmt: skip
        trainer.train()
        found = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"accuracy {100 * found['eval_accuracy']:.1f} %")
        if args.save:
            history = [one["loss"] for one in trainer.state.log_history if "loss" in one]
            torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
