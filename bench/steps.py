"""A training step as users write it: codedreduce with its defaults beside DDP and torchft, on one host and on several.

python -m bench.steps [4 6@1gbit 4x3@1gbit] [--troubles none,stall,kill] [--repeats 3] [--out bench/results/steps.json]

A place is RANKS on this host, or HOSTS@RATE, or HOSTSxRANKS@RATE: hosts are network namespaces whose links have that
rate (as root). Every rank is a process of its own with one thread; all sides train the same model on as many samples
per step. Sides take turns, and figures are medians over repeats.

Troubles: `none`; `stall`: rank 2 sleeps for nine fault-free DDP steps in one step of four, in its loss function;
`kill`: rank 2 is killed with SIGKILL in step 8, and nobody starts it again. Of each side: the first step (from the
moment all ranks are connected), and the steps after the third (median, mean, slowest), CPU seconds and new pages of
rank 0 per step. A side whose run ends, or that loses steps, says so.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import resource
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench import torch_ft
from bench.measure import save
from codedreduce.lab import Lab
from codedreduce.process.addresses import free_port
from codedreduce.units import rate

SIDES = ("ddp", "torchft", "codedreduce")
TROUBLES = {"none": "fault-free", "stall": "one stalls 10x in 1 of 4 steps", "kill": "one is killed"}
LAYERS, SAMPLES = 8, 4096
UNLUCKY, KILLED_AT, WARM = 2, 8, 3
WITHIN = 300.0


@dataclass(frozen=True)
class Place:
    """So many hosts with so many ranks each; without a rate it is this host.

    >>> Place.parse("4"), Place.parse("4x3@1gbit")
    (Place(hosts=1, each=4, rate=None), Place(hosts=4, each=3, rate=125000000.0))
    """

    hosts: int
    each: int
    rate: float | None

    @classmethod
    def parse(cls, text: str) -> Place:
        match = re.fullmatch(r"(\d+)(?:x(\d+))?(?:@(\w+))?", text)
        if match is None or (match[2] and not match[3]):
            raise SystemExit(f"a place is 4, 6@1gbit or 4x3@1gbit, not {text!r}")
        if match[3] is None:
            return cls(1, int(match[1]), None)
        return cls(int(match[1]), int(match[2] or 1), rate(match[3]))

    @property
    def ranks(self) -> int:
        return self.hosts * self.each

    def __str__(self) -> str:
        if self.rate is None:
            return f"{self.ranks} ranks on one host"
        each = "" if self.each == 1 else f" with {self.each} ranks each"
        return f"{self.hosts} hosts{each}, {self.rate * 8 / 1e6:g} Mbit/s"


class Case(msgspec.Struct, frozen=True):
    """What one process is told."""

    side: str
    trouble: str
    parameters: int
    batch: int
    steps: int
    stall: float
    out: str
    address: str


# -- what a rank runs


class Script:
    """A user's script: model, data, optimizer, and a loss function that stalls or dies if the case is so."""

    def __init__(self, case: Case) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        self.case = case
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        width = int((case.parameters / LAYERS) ** 0.5)
        torch.manual_seed(0)
        self.model = nn.Sequential(*(one for _ in range(LAYERS) for one in (nn.Linear(width, width), nn.Tanh())))
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(SAMPLES, width, generator=generator)
        self.data = torch.utils.data.TensorDataset(x, x.roll(1, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._reached = 0  # steps that are over
        self._stalled = 0
        self._log = open(f"{case.out}-{self.rank}", "w", buffering=1)  # noqa: SIM115
        self._last = 0.0

    def losses(self, model: Any, batch: Any) -> Any:
        """One loss per sample."""
        import torch.nn.functional as F  # noqa: N812

        step = self._reached + 1
        if self.rank == UNLUCKY and step > 1 and self._stalled < step:
            self._stalled = step
            if self.case.trouble == "kill" and step == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.case.trouble == "stall" and step % 4 == 0:
                time.sleep(self.case.stall)
        x, y = batch
        return F.mse_loss(model(x), y, reduction="none").mean(1)

    def own_losses(self, model: Any, ranks: int, rank: int) -> Any:
        """The mean loss of a rank's part of the batch, for the sides that divide it themselves."""
        import torch

        mine = self.case.batch // ranks
        begin = self._reached * self.case.batch + rank * mine
        return self.losses(model, self.data[torch.arange(begin, begin + mine) % SAMPLES]).mean()

    def connected(self) -> None:
        """All ranks are there; the first step begins."""
        self._last = time.monotonic()

    def over(self, *, lost: bool = False) -> None:
        """A step is over; it is lost if no rank could apply its gradient."""
        now = time.monotonic()
        used = resource.getrusage(resource.RUSAGE_SELF)
        line = [now - self._last, float(lost), used.ru_utime + used.ru_stime, float(used.ru_minflt)]
        self._log.write(" ".join(map(repr, line)) + "\n")
        self._last = now
        self._reached += 1


def run_codedreduce(script: Script) -> None:
    import codedreduce.torch as cr

    case = script.case
    with cr.join() as cluster:
        script.connected()
        for _ in cluster.train(
            script.model, script.data, script.losses, case.batch, case.steps, state=[script.optimizer]
        ):
            script.optimizer.step()
            script.over()


def run_ddp(script: Script) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(script.model)
    dist.barrier()
    script.connected()
    for _ in range(script.case.steps):
        script.optimizer.zero_grad()
        script.own_losses(model, script.ranks, script.rank).backward()
        script.optimizer.step()
        script.over()
    dist.destroy_process_group()


def run_torchft(script: Script) -> None:
    torch_ft.train(
        script.model, script.optimizer, lambda model: script.own_losses(model, script.ranks, script.rank),
        replicas=script.ranks, steps=script.case.steps, host=script.case.address, connected=script.connected,
        over=lambda committed: script.over(lost=not committed),
    )  # fmt: skip


# -- starting ranks


def run(place: Place, lab: Lab | None, case: Case) -> dict[str, Any]:
    """One training on one side; what rank 0 wrote down."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        port = free_port()
        host = lab.address(0) if lab else "127.0.0.1"
        common = {
            **os.environ, "WORLD_SIZE": str(place.ranks), "LOCAL_WORLD_SIZE": str(place.each), "MASTER_ADDR": host,
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "eth0" if lab else "lo", "CODEDREDUCE_SECRET": secrets.token_urlsafe(32),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        if case.side == "torchft":
            enter = (lambda: lab.enter(0)) if lab else None
            common["TORCHFT_LIGHTHOUSE"] = stack.enter_context(torch_ft.lighthouse(place.ranks, host, enter))
        words = open(f"{folder}/words", "w+")  # noqa: SIM115
        stack.callback(words.close)
        ranks = []
        for rank in range(place.ranks):
            node = rank // place.each
            given = msgspec.structs.replace(
                case, out=f"{folder}/steps", address=lab.address(node) if lab else "127.0.0.1"
            )
            command = [sys.executable, "-m", "bench.steps", "--rank", msgspec.json.encode(given).decode()]
            names = {"RANK": str(rank), "LOCAL_RANK": str(rank % place.each)}
            enter = (lambda node=node: lab.enter(node)) if lab else None
            ranks.append(
                stack.enter_context(
                    subprocess.Popen(command, env={**common, **names}, stdout=words, stderr=words, preexec_fn=enter)
                )
            )
        _wait(ranks)
        path = Path(f"{folder}/steps-0")
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) < case.steps:
            words.seek(0)
            told = [line for line in words.read().splitlines() if "rror" in line]
            print(f"{case.side} ended after {len(lines)} steps:", *told[:12], sep="\n  ", flush=True)
        return _figures([[float(one) for one in line.split()] for line in lines], case.steps)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Until rank 0 has ended, then a moment for the others."""
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            ranks[0].wait(WITHIN)
        deadline = time.monotonic() + 10
        for one in ranks[1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for one in ranks:
            one.kill()


def _figures(lines: list[list[float]], steps: int) -> dict[str, Any]:
    """What a run showed; a step that was lost counts into the time of the next one that was not."""
    if not lines:
        return {"steps": 0, "of": steps, "lost": 0}
    seconds, pending = [], 0.0
    for took, lost, *_ in lines:
        pending += took
        if not lost:
            seconds.append(pending)
            pending = 0.0
    usual = seconds[WARM:] or seconds
    between = max(1, len(lines) - WARM)
    return {
        "steps": len(lines), "of": steps, "lost": sum(bool(line[1]) for line in lines), "first": seconds[0],
        "median": statistics.median(usual), "mean": statistics.fmean(usual), "slowest": max(usual),
        "cpu": (lines[-1][2] - lines[WARM - 1][2]) / between if len(lines) > WARM else None,
        "pages": (lines[-1][3] - lines[WARM - 1][3]) / between if len(lines) > WARM else None,
    }  # fmt: skip


# -- comparing


@contextlib.contextmanager
def lab_of(place: Place) -> Iterator[Lab | None]:
    if place.rate is None:
        yield None
        return
    lab = Lab.up(nodes=place.hosts, rate=place.rate, name=f"b{os.getpid() % 100000}")
    try:
        yield lab
    finally:
        lab.down()


def compare(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    """All sides under all troubles; stalls follow from DDP's fault-free step."""
    found: dict[str, Any] = {}
    stall = 0.0
    with lab_of(place) as lab:
        for trouble in options.troubles.split(","):
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in ("ddp", *options.sides.split(","))}
            for _, side in itertools.product(range(options.repeats), runs):
                case = Case(
                    side, trouble, options.parameters, options.batch * place.ranks, options.steps, stall, "", ""
                )
                runs[side].append(run(place, lab, case))
                print(f"{place}, {trouble}, {side}: {runs[side][-1]}", flush=True)
            if trouble == "none":
                stall = 9 * statistics.median(one["median"] for one in runs["ddp"])
            found[trouble] = {side: _middle(of_side) for side, of_side in runs.items()}
    return found


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median mean step of those that took steps; what each took, and how many did not begin."""
    begun = sorted((one for one in runs if one["steps"]), key=lambda one: one["mean"])
    middle = begun[(len(begun) - 1) // 2] if begun else runs[0]
    return {**middle, "runs": [round(one["mean"], 4) for one in begun], "not begun": len(runs) - len(begun)}


def table(results: dict[str, Any]) -> str:
    """Milliseconds of a step, as Markdown."""
    lines = [
        "| | condition | DDP | torchft | codedreduce | codedreduce / DDP |",
        "|---|---|---|---|---|---|",
    ]
    for place, troubles in results.items():
        for trouble, sides in troubles.items():
            value = "median" if trouble == "none" else "mean"
            cells = [_cell(sides[side], value) if side in sides else "" for side in SIDES]
            if "ddp" in sides and "codedreduce" in sides and sides["ddp"]["steps"] == sides["ddp"]["of"]:
                cells.append(f"{sides['codedreduce'][value] / sides['ddp'][value]:.2f}")
            else:
                cells.append("")
            lines.append("| " + " | ".join([place, TROUBLES[trouble], *cells]) + " |")
    return "\n".join(lines)


def _cell(one: dict[str, Any], value: str) -> str:
    if one["steps"] < one["of"]:
        return f"the run ends in step {one['steps'] + 1}"
    lost = f"; {one['lost']} steps lost" if one["lost"] else ""
    lost += (
        f"; {one['not begun']} of {one['not begun'] + len(one['runs'])} runs did not begin" if one["not begun"] else ""
    )
    return f"{1000 * one[value]:.0f} ms (first {1000 * one['first']:.0f}, slowest {1000 * one['slowest']:.0f}){lost}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", default=["4", "6@1gbit"])
    parser.add_argument("--troubles", default=",".join(TROUBLES))
    parser.add_argument("--sides", default="torchft,codedreduce", help="beside DDP, which all are compared with")
    parser.add_argument("--parameters", type=int, default=8_000_000)
    parser.add_argument("--batch", type=int, default=24, help="samples per rank and step")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        script = Script(msgspec.json.decode(options.rank, type=Case))
        {"codedreduce": run_codedreduce, "ddp": run_ddp, "torchft": run_torchft}[script.case.side](script)
        return
    results: dict[str, Any] = {}
    for place in map(Place.parse, options.places):
        results[str(place)] = compare(place, options)
        said = {"parameters": options.parameters, "batch": options.batch, "steps": options.steps}
        save(options.out, {**said, "repeats": options.repeats, "places": results}, quietly=True)
    print(table(results))


if __name__ == "__main__":
    main()
