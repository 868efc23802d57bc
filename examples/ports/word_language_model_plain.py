"""A word-level LSTM language model."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 50


class RNNModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.drop = nn.Dropout(args.dropout)
        self.encoder = nn.Embedding(WORDS, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid, args.nlayers, dropout=args.dropout)
        self.decoder = nn.Linear(args.nhid, WORDS)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, columns):
        return tuple(torch.zeros(self.rnn.num_layers, columns, self.rnn.hidden_size) for _ in range(2))


def corpus(count, seed):
    """Words of which each is followed by one of three others."""
    generator = torch.Generator().manual_seed(0)
    follows = torch.randint(WORDS, (WORDS, 3), generator=generator).tolist()
    generator.manual_seed(seed)
    words = [0]
    for choice in torch.randint(3, (count - 1,), generator=generator).tolist():
        words.append(follows[words[-1]][choice])
    return torch.tensor(words)


def batchify(words, columns):
    """Text in columns, which are read from top to bottom."""
    rows = len(words) // columns
    return words[: rows * columns].view(columns, rows).t().contiguous()


def get_batch(args, source, i):
    length = min(args.bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length]


def repackage_hidden(hidden):
    """The same numbers, without how they came to be."""
    return tuple(one.detach() for one in hidden)


def evaluate(args, model, source):
    model.eval()
    total, hidden = 0.0, model.init_hidden(source.shape[1])
    with torch.no_grad():
        for i in range(0, len(source) - 1, args.bptt):
            data, targets = get_batch(args, source, i)
            output, hidden = model(data, hidden)
            total += len(data) * F.cross_entropy(output.flatten(0, 1), targets.flatten()).item()
    return total / (len(source) - 1)


def train(args, model, source, lr, epoch, history):
    model.train()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, len(source) - 1, args.bptt), 1):
        data, targets = get_batch(args, source, i)
        model.zero_grad()
        hidden = model.init_hidden(args.batch_size) if args.zero_state else repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = F.cross_entropy(output.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-lr)
        history.append(loss.item())
        if batch % args.log_interval == 0:
            print(f"epoch {epoch}, batch {batch}: lr {lr:.3f}, loss {loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--emsize", type=int, default=32)
    parser.add_argument("--nhid", type=int, default=48)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=10.0)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--bptt", type=int, default=16)
    parser.add_argument("--batches", type=int, default=40, help="how much text there is")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1111)
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--zero-state", action="store_true", help="begin every window anew, and take them in order")
    parser.add_argument("--save", help="keep the losses and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_data = batchify(corpus(args.batch_size * (args.bptt * args.batches + 1), seed=1), args.batch_size)
    val_data = batchify(corpus(1000, seed=2), 10)
    model = RNNModel(args)
    lr, best = args.lr, math.inf
    history = []

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_data, lr, epoch, history)
        val_loss = evaluate(args, model, val_data)
        print(f"epoch {epoch}: valid loss {val_loss:.3f}, perplexity {math.exp(val_loss):.2f}")
        if val_loss < best:
            best = val_loss
        else:
            lr /= 4.0

    if args.save:
        torch.save({"losses": history, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
