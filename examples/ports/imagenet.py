"""A ResNet-18, which normalises over batches."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import codedreduce.torch as cr

CLASSES = 8


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        around = x if self.downsample is None else self.downsample(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)) + around)


class ResNet18(nn.Module):
    """64 channels wide at first in the paper; narrower here."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = [nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))]
        for wide in (2 * width, 4 * width, 8 * width):
            stages.append(nn.Sequential(BasicBlock(wide // 2, wide, 2), BasicBlock(wide, wide, 1)))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(8 * width, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def pictures(count, size, seed):
    """Eight drawings, shifted and under noise."""
    drawings = torch.randn(CLASSES, 3, size, size, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shifts = torch.randint(-2, 3, (count, 2), generator=generator).tolist()
    shifted = torch.stack([drawings[label].roll(shift, (1, 2)) for label, shift in zip(labels, shifts, strict=True)])
    return TensorDataset(shifted + torch.randn(shifted.shape, generator=generator), labels)


def losses(model, batch):
    images, target = batch
    output = model(images)
    return F.cross_entropy(output, target, reduction="none"), {"right": output.argmax(1) == target}


def train(args, steps, model, optimizer, epoch, history):
    model.train()
    for batch, step in enumerate(steps, 1):
        optimizer.step()
        history.append(step.loss)
        if cluster.is_root and batch % args.print_freq == 0:
            right = step.metrics["right"]
            print(f"epoch {epoch}, batch {batch}: loss {step.loss:.4f}, accuracy {100 * right:.1f} %")


def validate(loader, model):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for images, target in loader:
            right += (model(images).argmax(1) == target).sum().item()
            count += len(target)
    print(f"validation: accuracy {100 * right / count:.2f} %")
    return right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--micro-batch", type=int, default=16, help="samples that are normalised together")
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--lr-step", type=int, default=2, help="epochs until the rate is a tenth")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--print-freq", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered")
    parser.add_argument("--save", help="keep the losses, the accuracy and the model here")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_set, val_set = pictures(args.samples, args.size, seed=1), pictures(500, args.size, seed=2)
    sampler = cr.Sequential() if args.in_order else cr.Shuffled()
    val_loader = DataLoader(val_set, 100)
    model = ResNet18(args.width)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum, weight_decay=args.weight_decay)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=args.lr_step, gamma=0.1)
    history, accuracy = [], 0.0

    training = cluster.train(
        model, train_set, losses, args.batch_size, epochs=args.epochs, seed=args.seed, sampler=sampler,
        micro_batch=args.micro_batch, coupled="micro-batch", state=[optimizer, scheduler],
    )  # fmt: skip
    for epoch, steps in cr.by_epoch(training):
        train(args, steps, model, optimizer, epoch, history)
        if cluster.is_root:
            accuracy = validate(val_loader, model)
        scheduler.step()

    if args.save and cluster.is_root:
        torch.save({"losses": history, "accuracy": accuracy, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    with cr.join() as cluster:
        main()
