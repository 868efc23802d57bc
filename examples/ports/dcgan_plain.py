"""A generator of pictures, and a discriminator that tells them from real ones (DCGAN)."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--micro-batch", type=int, default=16, help="samples that are normalised together")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--samples", type=int, default=480)
parser.add_argument("--nz", type=int, default=16)
parser.add_argument("--ngf", type=int, default=8)
parser.add_argument("--ndf", type=int, default=8)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--in-order", action="store_true", help="take samples as they are numbered, each with its noise")
parser.add_argument("--save", help="keep the losses and the models here")
opt = parser.parse_args()


def weights_init(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def pictures(count):
    """One blob each, 16 x 16; and some noise that belongs to it."""
    generator = torch.Generator().manual_seed(0)
    place = 4 + 8 * torch.rand(count, 2, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    blobs = 2 * torch.exp(-((y - place[:, :1]) ** 2 + (x - place[:, 1:]) ** 2) / 6) - 1
    return TensorDataset(blobs, torch.randn(count, opt.nz, 1, 1, generator=generator))


def bce(output, label):
    """How wrong the discriminator is if all were of one kind."""
    return F.binary_cross_entropy_with_logits(output.flatten(), torch.full((len(output),), label))


torch.manual_seed(opt.seed)
net_g = nn.Sequential(
    nn.ConvTranspose2d(opt.nz, 2 * opt.ngf, 4, 1, 0, bias=False), nn.BatchNorm2d(2 * opt.ngf), nn.ReLU(),
    nn.ConvTranspose2d(2 * opt.ngf, opt.ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(opt.ngf), nn.ReLU(),
    nn.ConvTranspose2d(opt.ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
).apply(weights_init)  # fmt: skip
net_d = nn.Sequential(
    nn.Conv2d(1, opt.ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
    nn.Conv2d(opt.ndf, 2 * opt.ndf, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * opt.ndf), nn.LeakyReLU(0.2),
    nn.Conv2d(2 * opt.ndf, 1, 4, 1, 0, bias=False),
).apply(weights_init)  # fmt: skip
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
optimizer_g = torch.optim.Adam(net_g.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
dataset = pictures(opt.samples)
dataloader = DataLoader(dataset, opt.batch_size, shuffle=not opt.in_order, drop_last=True)
history = []

for epoch in range(1, opt.epochs + 1):
    for batch, (images, kept) in enumerate(dataloader, 1):
        noise = kept if opt.in_order else torch.randn_like(kept)
        parts = list(zip(images.split(opt.micro_batch), noise.split(opt.micro_batch), strict=True))
        optimizer_d.zero_grad()
        err_d = 0.0
        for real, z in parts:
            loss = (bce(net_d(real), 1.0) + bce(net_d(net_g(z).detach()), 0.0)) * len(z) / len(noise)
            loss.backward()
            err_d += loss.item()
        optimizer_d.step()
        optimizer_g.zero_grad()
        err_g = 0.0
        for _, z in parts:
            loss = bce(net_d(net_g(z)), 1.0) * len(z) / len(noise)
            loss.backward()
            err_g += loss.item()
        optimizer_g.step()
        history += [err_d, err_g]
        if batch == len(dataloader):
            print(f"epoch {epoch}: loss of D {err_d:.4f}, of G {err_g:.4f}")

if opt.save:
    torch.save({"losses": history, "model": nn.ModuleList([net_d, net_g]).state_dict()}, opt.save)
