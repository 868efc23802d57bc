"""A generator of pictures, and a discriminator that tells them from real ones (DCGAN)."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr

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
    return F.binary_cross_entropy_with_logits(output.flatten(), torch.full((len(output),), label), reduction="none")


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
sampler = cr.Sequential() if opt.in_order else cr.Shuffled()
history = []


def d_losses(net_d, batch):
    real, kept = batch
    noise = kept if opt.in_order else torch.randn_like(kept)
    return bce(net_d(real), 1.0) + bce(net_d(net_g(noise).detach()), 0.0)


def g_losses(net_g, batch):
    noise = batch[1] if opt.in_order else torch.randn_like(batch[1])
    return bce(net_d(net_g(noise)), 1.0)


with cr.join() as cluster:
    how = {"epochs": opt.epochs, "sampler": sampler, "micro_batch": opt.micro_batch, "coupled": "micro-batch"}
    d_steps = cluster.train(net_d, dataset, d_losses, opt.batch_size, state=[optimizer_d], **how)
    g_steps = cluster.train(net_g, dataset, g_losses, opt.batch_size, state=[optimizer_g], **how)
    for d in d_steps:
        optimizer_d.step()
        g = next(g_steps)
        optimizer_g.step()
        history += [d.loss, g.loss]
        if cluster.is_root and d.ends_epoch:
            print(f"epoch {d.epoch}: loss of D {d.loss:.4f}, of G {g.loss:.4f}")

if opt.save and cluster.is_root:
    torch.save({"losses": history, "model": nn.ModuleList([net_d, net_g]).state_dict()}, opt.save)
