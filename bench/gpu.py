"""What a step of GPT-2 small takes on one GPU: plain PyTorch, DDP over Gloo, and codedreduce; the same batches.

python -m bench.gpu [--out bench/results/gpu.json] [--steps 10] [--sides "plain|ddp|striped"]

All processes share the GPU, by MPS or (in turn) without it, and the ranks' vectors lie in its memory or (host) pass
through the host's. Each side is a run of its own, started anew; first rounds are told apart from the rest. A
stalled run has one rank that stalls for nine steps in one of four rounds. At the end, how fast vectors are added there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

import codedreduce.torch as cr
from bench.measure import save
from codedreduce import Striped
from codedreduce.launch.gpu_sharing import sharing_gpus
from codedreduce.process.addresses import free_port
from codedreduce.torch.device.device_sums import add_up

RANKS, BATCH, TOKENS, SAMPLES, VOCABULARY = 6, 48, 256, 960, 50257
WARM = 3  # steps that are told apart: what is allocated and compiled at first
DEVICE = "cuda"

HOST, IN_TURN = {"CODEDREDUCE_DEVICE_MEMORY": "0"}, {"CODEDREDUCE_MPS": "0"}

#: What each side is: its processes, and what its ranks are told.
SIDES: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (1, {}),
    "alone": (1, {}),
    "apart": (RANKS, {}),
    "ddp": (RANKS, {}),
    "striped": (RANKS, {}),
    "striped, stalls": (RANKS, {}),
    "striped, bfloat16": (RANKS, {"BENCH_WIRE": "bfloat16"}),
    "striped, four blocks": (RANKS, {"BENCH_BLOCKS": "4"}),
    "striped, host": (RANKS, HOST),
    "striped, host, stalls": (RANKS, HOST),
    "striped, host, bfloat16": (RANKS, {**HOST, "BENCH_WIRE": "bfloat16"}),
    "ddp, in turn": (RANKS, IN_TURN),
    "striped, in turn": (RANKS, IN_TURN),
    "striped, host, in turn": (RANKS, {**HOST, **IN_TURN}),
}


def network() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model: nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    return model


class Texts(torch.utils.data.Dataset[torch.Tensor]):
    """Random tokens, more often small ones, so that there is something to learn."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._all = (torch.rand(SAMPLES, TOKENS + 1, generator=generator) ** 4 * VOCABULARY).long()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._all[index]


def losses(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        logits = model(batch[:, :-1]).logits
    each = F.cross_entropy(logits.float().transpose(1, 2), batch[:, 1:], reduction="none")
    return each.mean(1)


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


class Diary:
    """When each step was over, and its loss."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rounds: list[float] = []
        self.losses: list[float] = []
        self._last = time.monotonic()

    def step(self, loss: float, seconds: float = 0.0) -> None:
        torch.cuda.synchronize()
        now = time.monotonic()
        self.seconds.append(now - self._last)
        self.rounds.append(seconds)
        self.losses.append(loss)
        self._last = now

    def write(self, model: nn.Module, out: str) -> None:
        digest = hashlib.blake2b()
        for one in model.parameters():
            digest.update(one.detach().cpu().numpy().tobytes())
        memory = torch.cuda.max_memory_allocated()
        found = {
            "seconds": self.seconds, "rounds": self.rounds, "losses": self.losses, "memory": memory,
            "digest": digest.hexdigest()[:16],
        }  # fmt: skip
        Path(out).write_text(json.dumps(found))


def plain(steps: int, out: str) -> None:
    model, data = network().to(DEVICE), Texts()
    optimizer, diary = optimizer_for(model), Diary()
    for step in range(1, steps + 1):
        batch = torch.stack([data[i] for i in cr.batch_indices(SAMPLES, BATCH, step)]).to(DEVICE)
        optimizer.zero_grad()
        loss = losses(model, batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        diary.step(float(loss))
    diary.write(model, out)


def ddp(steps: int, out: str) -> None:
    rank, mine = int(os.environ["RANK"]), BATCH // RANKS
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo")
    data = Texts()
    model = nn.parallel.DistributedDataParallel(network().to(DEVICE))
    optimizer, diary = optimizer_for(model), Diary()
    for step in range(1, steps + 1):
        indices = cr.batch_indices(SAMPLES, BATCH, step)[rank * mine : (rank + 1) * mine]
        batch = torch.stack([data[i] for i in indices]).to(DEVICE)
        optimizer.zero_grad()
        loss = losses(model, batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total = loss.detach().cpu()
        dist.all_reduce(total)
        diary.step(float(total) / RANKS)
    if rank == 0:
        diary.write(model.module, out)
    dist.destroy_process_group()


def apart(steps: int, out: str) -> None:
    """What ranks compute, at the same time, and nothing else: what remains of a step if sums cost nothing."""
    rank, mine = int(os.environ["RANK"]), BATCH // RANKS
    model, data, diary = network().to(DEVICE), Texts(), Diary()
    for step in range(1, steps + 1):
        indices = cr.batch_indices(SAMPLES, BATCH, step)[rank * mine : (rank + 1) * mine]
        batch = torch.stack([data[i] for i in indices]).to(DEVICE)
        model.zero_grad()
        loss = losses(model, batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        diary.step(float(loss))
    if rank == 0:
        diary.write(model, out)


def coded(steps: int, out: str) -> None:
    model, data = network(), Texts()
    blocks = int(os.environ.get("BENCH_BLOCKS", "0")) or None
    size = int(os.environ.get("WORLD_SIZE", "1"))
    scheme = Striped(size, blocks=blocks) if blocks else None
    with cr.join(scheme) as cluster:
        model.to(DEVICE)
        optimizer = optimizer_for(model)
        diary = Diary()
        wire = os.environ.get("BENCH_WIRE")
        for step in cluster.train(model, data, losses, BATCH, steps, device=DEVICE, state=[optimizer], wire=wire):
            optimizer.step()
            diary.step(step.loss, step.seconds)
        if cluster.rank == 0:
            diary.write(model, out)


def summing(vectors: int = 8, length: int = 124_000_000, repeats: int = 20) -> dict[str, float]:
    """Seconds that the sum of some vectors takes, and a copy of one, in turns; and their bytes a second."""
    terms = [torch.randn(length, device=DEVICE) for _ in range(vectors)]
    out = torch.empty_like(terms[0])

    def seconds(act: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        act()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    sums, copies = [], []
    for _ in range(repeats):
        sums.append(seconds(lambda: add_up(terms, out)))
        copies.append(seconds(lambda: out.copy_(terms[0])))
    found = {"sum": statistics.median(sums), "copy": statistics.median(copies), "first": sums[0]}
    found["speed"] = ((vectors + 1) / found["sum"]) / (2 / found["copy"])
    print(
        f"the sum of {vectors} vectors {1000 * found['sum']:.2f} ms (the first {1000 * found['first']:.0f}), a copy of "
        f"one {1000 * found['copy']:.2f} ms: {100 * found['speed']:.0f} % of its speed",
        flush=True,
    )
    return found


@contextlib.contextmanager
def processes(count: int, settings: dict[str, str], arguments: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    port = str(free_port())
    running = []
    for rank in range(count):
        told = {
            **os.environ, **settings, "OMP_NUM_THREADS": "2", "RANK": str(rank), "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        if count == 1:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                told.pop(name)
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "bench.gpu", *arguments],
                env=told,
                stderr=None if rank == 0 else subprocess.DEVNULL,
            )
        )
    try:
        yield running
    finally:
        for one in running:
            one.kill()
            one.wait()


def run(side: str, steps: int, more: dict[str, str]) -> dict[str, Any]:
    count, settings = SIDES[side]
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/found"
        begin = time.monotonic()
        arguments = ["--process", side, "--steps", str(steps), "--out", out]
        told = {**settings, **more}
        with (
            sharing_gpus(count, {**os.environ, **told}, print) as shared,
            processes(count, {**told, **shared}, arguments) as all_of_them,
        ):
            codes = [one.wait(timeout=400) for one in all_of_them]
        if any(codes):
            raise SystemExit(f"{side}: a process ended with {codes}")
        found: dict[str, Any] = json.loads(Path(out).read_text())
    found["whole"] = time.monotonic() - begin
    found["first"] = found["seconds"][:WARM]
    found["step"] = statistics.median(found["seconds"][WARM:])
    found["mean"] = statistics.mean(found["seconds"][WARM:])
    found["round"] = statistics.median(found["rounds"][WARM:])
    print(
        f"{side:24} {1000 * found['step']:8.0f} ms a step (mean {1000 * found['mean']:.0f}, round "
        f"{1000 * found['round']:.0f}), first {', '.join(f'{one:.2f}' for one in found['first'])} s; "
        f"{found['memory'] / 2**30:.1f} GiB; loss {found['losses'][-1]!r} {found['digest']}; {found['whole']:.0f} s",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu.json"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sides", default="|".join(SIDES))
    parser.add_argument("--process", default="")
    options = parser.parse_args()
    if options.process:
        {"plain": plain, "ddp": ddp, "apart": apart}.get(options.process, coded)(options.steps, str(options.out))
        return
    found: dict[str, Any] = {}
    for side in options.sides.split("|"):
        more = {}
        if "stalls" in side:
            calm = found[side.removesuffix(", stalls")]["step"]
            more["CODEDREDUCE_INJECT"] = f"worker:2:0.25:{9 * calm:.3f}s"
        found[side] = run(side, options.steps, more)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    save(options.out, {**about, "summing": summing(), "sides": found})


if __name__ == "__main__":
    main()
